"""Keys and values in host memory that are streamed to the device layer by layer, ahead of their use.

TriForce, section 5.3. Two buffers on the device hold one layer each: while one layer is computed, the next layer's
tokens are copied into the other buffer, and after the last layer those of the first one, for the next forward. Copies
and arithmetic wait for each other by events; the host waits for neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from weakref import finalize

import torch
from torch import Tensor

from triforce_chat.engine.cache.allocation import HUGE_PAGES, PAGE, advise
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, SlotStorage
from triforce_chat.engine.cache.view import KVView

Event = torch.cuda.Event | None  # None on a device without a queue, where every copy is complete at once
BUFFERS = 2


class CopyStream:
    """A queue of copies that runs beside the device's arithmetic."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.last: Event = None  # completed with the copies queued so far

    def run(self, copies: Iterable[tuple[Tensor, Tensor]], *after: Event) -> None:
        """Queue copies, each (source, target), to start when the events ``after`` have completed."""
        if self.stream is None:
            for source, target in copies:
                target.copy_(source)
            return
        with torch.cuda.stream(self.stream):
            for event in after:
                if event is not None:
                    self.stream.wait_event(event)
            for source, target in copies:
                target.copy_(source, non_blocking=True)
            self.last = self.stream.record_event()


def computed(device: torch.device) -> Event:
    """An event that completes with the arithmetic queued so far."""
    if device.type != "cuda":
        return None
    event: Event = torch.cuda.current_stream(device).record_event()
    return event


@dataclass(slots=True)
class LayerBuffer:
    """Room for one layer, in host memory or on the device, that holds the layer's first ``tokens`` tokens."""

    layer: int
    storage: KVBuffer
    tokens: int = 0
    ready: Event = None  # completed when they are there

    def copies(self, to: LayerBuffer, start: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens ``start`` .. ``end-1``, head by head: only contiguous pieces are copied without a detour."""
        for mine, theirs in zip(self.storage.layer(0), to.storage.layer(0), strict=True):
            yield from zip(mine[:, start:end], theirs[:, start:end], strict=True)


class OffloadedKV(SlotStorage):
    """A ``KVStorage`` with its first ``resident`` layers on the device and the others in host memory.

    ``pageable`` counts the layers that the system refused to pin: they cross the bus more slowly.
    """

    streams = True

    def __init__(self, shape: Shape, capacity: int, resident: int = 0) -> None:
        self.shape, self.capacity, self.resident = shape, capacity, resident
        self.near = KVBuffer(replace(shape, layers=resident), capacity)
        room = partial(KVBuffer, capacity=capacity)
        one, there = replace(shape, layers=1), replace(shape, layers=1, device=torch.device("cpu"))
        self.far = [LayerBuffer(layer, room(there)) for layer in range(resident, shape.layers)]
        self.pageable = self._pin()
        self.buffers = [LayerBuffer(-1, room(one)) for _ in self.far[:BUFFERS]]  # the latest used comes last
        self.inward, self.outward = CopyStream(shape.device), CopyStream(shape.device)

    @property
    def on_device(self) -> KVBuffer:
        return self.buffers[0].storage if self.buffers else self.near

    def slot(self, at: int) -> None:
        """None: some layers are not on the device."""

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        if layer < self.resident:
            return self.near.write(layer, at, k, v)
        buffer = self._arrived(layer, at)
        view = buffer.storage.write(0, at, k, v)
        buffer.tokens = view.length
        self._fetch_next(layer)
        home = self.far[layer - self.resident]
        self.outward.run(buffer.copies(home, at, view.length), computed(self.shape.device))
        home.tokens = view.length
        return view

    def view(self, layer: int, end: int) -> KVView:
        if layer < self.resident:
            return self.near.view(layer, end)
        buffer = self._arrived(layer, end)
        self._fetch_next(layer)
        return buffer.storage.view(0, end)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        if layer < self.resident:
            return self.near.layer(layer)
        if self.outward.last is not None:
            self.outward.last.synchronize()
        home = self.far[layer - self.resident]
        return home.storage.layer(0)

    def truncate(self, length: int) -> None:
        for held in (*self.far, *self.buffers):
            held.tokens = min(held.tokens, length)

    def _arrived(self, layer: int, n: int) -> LayerBuffer:
        """A device buffer with a layer's first n tokens; arithmetic queued from now on may use it."""
        buffer = next((each for each in self.buffers if each.layer == layer), self.buffers[0])
        # In one statement: an interrupt may come at any line, and must not lose a buffer.
        self.buffers = [*(each for each in self.buffers if each is not buffer), buffer]
        self._fetch(buffer, layer, n)
        if buffer.ready is not None:
            torch.cuda.current_stream(self.shape.device).wait_event(buffer.ready)
        return buffer

    def _fetch_next(self, layer: int) -> None:
        """Start to copy the layer after this one into the buffer that is not in use."""
        following = self.far[(layer + 1 - self.resident) % len(self.far)]
        self._fetch(self.buffers[0], following.layer, following.tokens)

    def _fetch(self, buffer: LayerBuffer, layer: int, n: int) -> None:
        """Start to copy what ``buffer`` lacks of a layer's first n tokens."""
        if buffer.layer != layer:
            buffer.layer, buffer.tokens = layer, 0
        if buffer.tokens < n:
            copies = self.far[layer - self.resident].copies(buffer, buffer.tokens, n)
            # Queued arithmetic may still read the buffer, and its newest tokens may still be on their way home.
            self.inward.run(copies, computed(self.shape.device), self.outward.last)
            buffer.tokens, buffer.ready = n, self.inward.last

    def _pin(self) -> int:
        """Pin the layers in host memory until this object is collected; returns how many could not be."""
        if self.shape.device.type != "cuda":
            return 0
        with torch.cuda.device(self.shape.device):
            pinned = [part for held in self.far for part in held.storage.layer(0) if pin(part)]
        finalize(self, unpin, pinned)
        return len(self.far) - len(pinned) // 2


def pin(part: Tensor) -> bool:
    """Page-lock memory that is already allocated, for direct access by the device; False if the system refuses.

    torch's own pinned memory is allocated in powers of two, which could double the cache.
    """
    occupy(part)
    error = torch.cuda.cudart().cudaHostRegister(part.data_ptr(), part.nbytes, 0)
    if int(error):
        with suppress(RuntimeError):  # clears the error, which the next kernel would report as its own
            torch.zeros(1, device="cuda")
        return False
    return True


def occupy(part: Tensor) -> None:
    """Have the system allocate all pages of a contiguous tensor; what it contains stays.

    Several threads do that here, where one would while memory is pinned that was never written: 9 s for 64 GB.
    """
    advise(part, HUGE_PAGES)
    part.view(-1).view(torch.uint8)[::PAGE].bitwise_or_(0)


def unpin(parts: Iterable[Tensor]) -> None:
    """Undo ``pin``."""
    for part in parts:
        torch.cuda.cudart().cudaHostUnregister(part.data_ptr())
