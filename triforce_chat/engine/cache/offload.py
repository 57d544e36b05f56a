"""Keys and values in host memory, which stream through the device layer by layer, ahead of their use.

TriForce, section 5.3. Two buffers on the device hold one layer each: while one layer is computed, the next one's
tokens are copied into the other buffer, and behind the last layer the first one's for the next forward. Copies
and arithmetic wait for each other by events; the host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from weakref import finalize

import torch
from torch import Tensor

from triforce_chat.engine.cache.storage import KVBuffer, KVView, Shape

Event = torch.cuda.Event | None  # None on a device without queues: there everything is over at once
BUFFERS = 2


class CopyStream:
    """Copies in a queue of their own, beside the device's arithmetic."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.last: Event = None  # when all that was queued so far is over

    def run(self, copies: Iterable[tuple[Tensor, Tensor]], *after: Event) -> None:
        """Queue copies, each (from, to), which begin when ``after`` is over."""
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


@dataclass(slots=True)
class LayerBuffer:
    """Room for one layer, in host memory or on the device, with its first ``tokens`` tokens."""

    layer: int
    storage: KVBuffer
    tokens: int = 0
    ready: Event = None  # when they are there

    def copies(self, to: LayerBuffer, start: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Of these tokens, head by head: only such a piece is contiguous, and nothing else is copied directly."""
        for mine, theirs in zip(self.storage.layer(0), to.storage.layer(0), strict=True):
            yield from zip(mine[:, start:end], theirs[:, start:end], strict=True)


class OffloadedKV:
    """A ``KVStorage`` that keeps its first ``resident`` layers on the device and the others in host memory.

    ``pageable`` counts layers for which the system gave no pinned memory: they cross the bus more slowly.
    """

    def __init__(self, shape: Shape, capacity: int, resident: int = 0) -> None:
        self.shape, self.capacity, self.resident = shape, capacity, resident
        self.near = KVBuffer(replace(shape, layers=resident), capacity)
        room = partial(KVBuffer, capacity=capacity)
        one, there = replace(shape, layers=1), replace(shape, layers=1, device=torch.device("cpu"))
        self.far = [LayerBuffer(layer, room(there)) for layer in range(resident, shape.layers)]
        self.pageable = self._pin()
        self.buffers = [
            LayerBuffer(-1, room(one)) for _ in self.far[:BUFFERS]
        ]  # the latest in use comes last
        self.inward, self.outward = CopyStream(shape.device), CopyStream(shape.device)

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        if layer < self.resident:
            return self.near.write(layer, at, k, v)
        buffer = self._arrived(layer, at)
        view = buffer.storage.write(0, at, k, v)
        buffer.tokens = view.length
        self._fetch_next(layer)
        home = self.far[layer - self.resident]
        self.outward.run(buffer.copies(home, at, view.length), self._computed())
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
        """The buffer with a layer's first n tokens, from when on the device's arithmetic may use it."""
        buffer = next((each for each in self.buffers if each.layer == layer), self.buffers[0])
        # At once: an interrupt may come at any line, and must not leave a buffer out.
        self.buffers = [*(each for each in self.buffers if each is not buffer), buffer]
        self._fetch(buffer, layer, n)
        if buffer.ready is not None:
            torch.cuda.current_stream(self.shape.device).wait_event(buffer.ready)
        return buffer

    def _fetch_next(self, layer: int) -> None:
        """Begin to copy the layer that comes after this one into the buffer that is not in use."""
        following = self.far[(layer + 1 - self.resident) % len(self.far)]
        self._fetch(self.buffers[0], following.layer, following.tokens)

    def _fetch(self, buffer: LayerBuffer, layer: int, n: int) -> None:
        if buffer.layer != layer:
            buffer.layer, buffer.tokens = layer, 0
        if buffer.tokens < n:
            copies = self.far[layer - self.resident].copies(buffer, buffer.tokens, n)
            # What is computed may still read the buffer, and what was computed be on its way to its home.
            self.inward.run(copies, self._computed(), self.outward.last)
            buffer.tokens, buffer.ready = n, self.inward.last

    def _computed(self) -> Event:
        """When the arithmetic that was queued so far is over."""
        if self.shape.device.type != "cuda":
            return None
        event: Event = torch.cuda.current_stream(self.shape.device).record_event()
        return event

    def _pin(self) -> int:
        if self.shape.device.type != "cuda":
            return 0
        with torch.cuda.device(self.shape.device):
            pinned = [part for held in self.far for part in held.storage.layer(0) if pin(part)]
        finalize(self, unpin, pinned)
        return len(self.far) - len(pinned) // 2


def pin(part: Tensor) -> bool:
    """Have the device reach memory directly that is there already; False where the system declines.

    torch's own pinned memory comes in powers of two, which could double the cache.
    """
    error = torch.cuda.cudart().cudaHostRegister(part.data_ptr(), part.nbytes, 0)
    if int(error):
        with suppress(RuntimeError):  # the error waits for the next kernel, whosever that is
            torch.zeros(1, device="cuda")
        return False
    return True


def unpin(parts: Iterable[Tensor]) -> None:
    for part in parts:
        torch.cuda.cudart().cudaHostUnregister(part.data_ptr())
