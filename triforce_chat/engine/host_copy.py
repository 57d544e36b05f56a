"""What the device tells the host, which has better things to do than to wait for it."""

from __future__ import annotations

import torch
from torch import Tensor


class Message:
    """Whole numbers [n] on their way to the host, behind what the device was told to do so far."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)  # torch takes pinned memory for it
        self.sent: torch.cuda.Event | None = None  # None on a device without a queue: it is there
        if numbers.is_cuda:
            self.sent = torch.cuda.current_stream(numbers.device).record_event()

    def read(self) -> list[int]:
        """Waits until they are there, and for nothing that the device was told later."""
        if self.sent is not None:
            self.sent.synchronize()
        told: list[int] = self.numbers.tolist()
        return told
