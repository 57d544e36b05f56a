"""Work on tensors that stay where they are: recorded as a CUDA graph once, and replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar

import torch

Made = TypeVar("Made")


class Graph(Generic[Made]):
    """One piece of work. On a device without graphs it is done anew at every call.

    ``pool`` is asked, just before the capture, where the graph shall take its memory from.
    """

    def __init__(self, device: torch.device, pool: Callable[[], Any]) -> None:
        self.device, self.pool = device, pool
        self.captured: tuple[torch.cuda.CUDAGraph, Made] | None = None

    def __call__(self, work: Callable[[], Made]) -> Made:
        """What ``work`` returns, which is the same at every call; the next call overwrites it."""
        if self.device.type != "cuda":
            return work()
        if self.captured is None:
            with torch.cuda.device(self.device):  # other threads have another one
                self.captured = self._capture(work)
        graph, made = self.captured
        graph.replay()
        return made

    def _capture(self, work: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        graph, aside = torch.cuda.CUDAGraph(), stream_of(self.device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Kernels are compiled, libraries allocate, ranks connect for sums of this size: nothing of a graph.
            work()
            # torch.cuda.graph would give all unused memory back first, which takes a while in midst of an answer.
            graph.capture_begin(self.pool(), capture_error_mode="thread_local")
            try:
                made = work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)
        return graph, made


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """Where graphs are captured: one for all, as memory that a stream has used is kept for that stream."""
    return torch.cuda.Stream(device)
