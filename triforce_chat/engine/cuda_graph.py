"""Work on tensors that stay where they are: recorded as a CUDA graph once, and replayed with one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")

# Rows of captured work: others are filled up with rows that nobody sees, which costs next to nothing while
# reading the bytes of the rest takes the time.
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)
# Rows of the largest that is captured ahead of its first use: what planners ask for, and some beyond.
USUAL = 24


def fitting(rows: int) -> int | None:
    """Rows of the captured work that takes so many; None where there is no such thing."""
    return next((size for size in SIZES if size >= rows), None)


class Fed(NamedTuple):
    """Tokens of a forward, and where the first of them goes."""

    ids: Tensor  # [n]
    slot: Tensor  # [1]
    position: Tensor  # [1], for RoPE
    steps: Tensor  # [n], 0, 1, ...


class Graph(Generic[Made]):
    """One piece of work. On a device without graphs it is done anew at every call.

    ``pool`` is asked, just before the capture, where the graph shall take its memory from. ``again``: a capture that
    runs out of memory may be repeated, which ranks that talk to each other in it must not do by themselves.
    """

    def __init__(self, device: torch.device, pool: Callable[[], Any], again: bool = True) -> None:
        self.device, self.pool, self.again = device, pool, again
        self.captured: tuple[torch.cuda.CUDAGraph, Made] | None = None

    def __call__(self, work: Callable[[], Made]) -> Made:
        """What ``work`` returns, which is the same at every call; the next one out of its pool overwrites it."""
        if self.device.type != "cuda":
            return work()
        self.prepare(work)
        assert self.captured
        graph, made = self.captured
        graph.replay()
        return made

    def prepare(self, work: Callable[[], Made]) -> None:
        """Capture ``work``, if that is still to be done."""
        if self.device.type == "cuda" and self.captured is None:
            with torch.cuda.device(self.device):  # other threads have another one
                self.captured = self._at_last(work)

    def _at_last(self, work: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        try:
            return self._capture(work)
        except torch.OutOfMemoryError:  # unused memory is not given back during a capture
            if not self.again:
                raise
            torch.cuda.empty_cache()
            return self._capture(work)

    def _capture(self, work: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        graph, aside = torch.cuda.CUDAGraph(), stream_of(self.device)
        aside.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(aside):
                # Kernels are compiled, libraries allocate, ranks connect for sums of this size: nothing of a graph.
                work()
                with no_collection():
                    try:
                        # Not by torch.cuda.graph, which gives unused memory back first: a while in midst of an answer.
                        graph.capture_begin(self.pool(), capture_error_mode="thread_local")
                        made = work()
                    finally:
                        graph.capture_end()
        finally:  # an interrupt may have come: what runs there still must not meet what comes next here
            torch.cuda.current_stream().wait_stream(aside)
        return graph, made


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile: a graph that is destroyed during a capture breaks it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def pool_of(graphs: Iterable[Graph[Any]]) -> Any:
    """The memory that these share, for the next of them; torch gives it up with the last one, and then it is None."""
    captured = (each.captured for each in graphs)
    return next((graph.pool() for graph, _ in filter(None, captured)), None)


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """Where graphs are captured: one for all, as memory that a stream has used is kept for that stream."""
    return torch.cuda.Stream(device)
