"""Asynchronous copies of small tensors from the device to the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class HostCopy:
    """Copies an integer tensor to pinned host memory, after all work that was launched before."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory
        self.sent: torch.cuda.Event | None = None  # None on a CPU, where the copy is complete
        if numbers.is_cuda:
            self.sent = torch.cuda.current_stream(numbers.device).record_event()

    def read(self) -> Any:
        """The numbers as nested lists; waits for this copy, but for nothing that was launched later."""
        if self.sent is not None:
            self.sent.synchronize()
        return self.numbers.tolist()
