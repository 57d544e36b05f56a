"""CUDA graphs: work that is captured once and replayed with one launch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")
LogitsAndStates = tuple[Tensor, Tensor]  # [n, V]; the last hidden states that they were computed from, [n, C]
Preparation = Callable[[], object]  # captures one graph, unless that was done or there is no room for it now

# Row counts that are captured. Other counts are padded to the next one, which costs next to nothing, as reading
# the weights takes the time.
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)
# The same where a draft model is fed what was committed, in pieces of up to USUAL tokens. Any number may come, so all
# of these are captured before it drafts; its steps are captured by themselves.
FEEDING = (4, 8, 16, 24)
# Of a tree's rows: that of its root, and of up to 512 nodes. They are few, as each needs kernels of its own, too, and
# trees are planned to fill one.
TREE_SIZES = (2, 4, 8, 16, 24, 32, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 513)
TREE_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of a level that is drafted: its tokens with children
TREE_DEPTHS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)  # of planned trees: each is a captured draft
USUAL = FEEDING[-1]  # most tokens that are fed to a cache at once where a graph is to take them
USUAL_CAPTURE = 0.02  # seconds, until captures were measured
LONGEST_CAPTURE = 0.1  # seconds that one counts for at most in the average: the first ones compile kernels
FORGET_CAPTURE = 0.9  # weight of the past in the average
MARGIN = (
    8  # slots after its last token that a padded forward may overwrite: the largest step between two sizes
)


def fitting(rows: int, sizes: Sequence[int] = SIZES) -> int | None:
    """The smallest captured row count that holds ``rows``; None if there is none."""
    return next((size for size in sizes if size >= rows), None)


class ForwardInputs(NamedTuple):
    """The tokens of a forward and where the first of them goes, as tensors that a CUDA graph reads."""

    ids: Tensor  # [n]
    slot: Tensor  # [1]
    position: Tensor  # [1], for RoPE
    steps: Tensor  # [n], 0, 1, ...
    added: Tensor | None = None  # [n, C], to the tokens' embeddings
    read: Tensor | None = None  # [1], listed slots, or quantized tokens, that are read before the first token
    counted: Tensor | None = None  # [1], of the first tokens: those whose attention is weighed
    # Where they are nodes of a tree: what each of them sees, as bits [n, words] of the slots from ``origin`` [1] on.
    masks: Tensor | None = None
    origin: Tensor | None = None


class Captures:
    """How many graphs were captured on a device, and what a capture takes there."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = USUAL_CAPTURE  # seconds of a recent capture

    def add(self, seconds: float) -> None:
        self.count += 1
        self.mean += (1 - FORGET_CAPTURE) * (min(seconds, LONGEST_CAPTURE) - self.mean)


@cache
def captures_on(device: torch.device) -> Captures:  # noqa: ARG001
    """All captures of this process on a device, by which a timed step is checked for captures."""
    return Captures()


class Graph(Generic[Made]):
    """A function that is captured at its first call and replayed from then on; without CUDA every call runs it.

    ``pool`` is called just before the capture and names the memory pool to use. ``retry``: repeat a capture that runs
    out of memory once, with unused memory given back; a rank whose capture communicates must not repeat it alone.
    """

    def __init__(self, device: torch.device, pool: Callable[[], Any], retry: bool = True) -> None:
        self.device, self.pool, self.retry = device, pool, retry
        self.captured: tuple[torch.cuda.CUDAGraph, Made] | None = None

    def __call__(self, work: Callable[[], Made]) -> Made:
        """The result of ``work``, the same tensors at every call; any graph of the same pool overwrites them."""
        if self.device.type != "cuda":
            return work()
        self.prepare(work)
        assert self.captured
        graph, made = self.captured
        graph.replay()
        return made

    def prepare(self, work: Callable[[], Made]) -> None:
        """Capture ``work`` unless that was done."""
        if self.device.type == "cuda" and self.captured is None:
            started = time.perf_counter()
            with torch.cuda.device(self.device):  # every thread has its own current device
                self.captured = self._capture_with_retry(work)
            captures_on(self.device).add(time.perf_counter() - started)

    def _capture_with_retry(self, work: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        try:
            return self._capture(work)
        except torch.OutOfMemoryError:  # unused memory is not given back during a capture
            if not self.retry:
                raise
            torch.cuda.empty_cache()
            return self._capture(work)

    def _capture(self, work: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        graph, aside = torch.cuda.CUDAGraph(), stream_of(self.device)
        aside.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(aside):
                # Compiles kernels, lets libraries allocate, connects ranks: none of it may happen in a capture.
                work()
                with no_collection():
                    try:
                        # Not torch.cuda.graph, which first gives unused memory back: that takes a while.
                        graph.capture_begin(self.pool(), capture_error_mode="thread_local")
                        made = work()
                    finally:
                        graph.capture_end()
        finally:  # also after an interrupt: work still running there must not overlap with what follows here
            torch.cuda.current_stream().wait_stream(aside)
        return graph, made


def fill(static: Tensor, given: Tensor) -> None:
    """Copy the host's numbers to an input of a graph, without waiting for the device."""
    static.copy_(given.pin_memory() if static.is_cuda else given, non_blocking=True)


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause garbage collection: a graph that is destroyed during a capture breaks the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def pool_of(graphs: Iterable[Graph[Any]]) -> Any:
    """The memory pool that these graphs share; None before the first and after the last of them."""
    captured = (each.captured for each in graphs)
    return next((graph.pool() for graph, _ in filter(None, captured)), None)


def rehearses(device: torch.device) -> bool:
    """Whether work runs only because a capture needs that before it: its results are not read."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return False
    return bool(torch.cuda.current_stream(device) == stream_of(device))


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all graphs are captured: memory that a stream has used stays reserved for that stream."""
    return torch.cuda.Stream(device)
