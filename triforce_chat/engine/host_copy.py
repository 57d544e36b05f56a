"""Numbers on their way from the device to the host, which has better things to do than to wait for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class HostCopy:
    """A copy of ``numbers`` (a tensor of integers) in host memory, behind all that was launched so far."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)  # torch takes pinned memory for it
        self.sent: torch.cuda.Event | None = None  # None on a device without a queue: they are there
        if numbers.is_cuda:
            self.sent = torch.cuda.current_stream(numbers.device).record_event()

    def read(self) -> Any:
        """The numbers as nested lists. Waits until they are there, and for nothing that was launched later."""
        if self.sent is not None:
            self.sent.synchronize()
        return self.numbers.tolist()
