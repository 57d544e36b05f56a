"""Work on tensors that stay where they are: recorded as a CUDA graph once, and replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable
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
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # kernels are compiled, libraries allocate: nothing of a graph
            work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool(), capture_error_mode="thread_local"):
            made = work()
        return graph, made
