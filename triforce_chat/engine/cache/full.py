"""The full cache: every token of the history, after RoPE, at its absolute position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.chunk_mass import ChunkMass, FadingMass
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.quantized import storage_for
from triforce_chat.engine.cache.query_ring import QueryRing
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVStorage, WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import Preparation

QUERY_WINDOW = 64  # tokens whose queries are kept


class CacheObserver(Protocol):
    """Something derived from a full cache, kept up to date while forwards pass through that cache.

    A forward calls either ``on_layer`` for each layer in order or ``on_graph_forward`` once, then ``on_forward``.
    """

    @property
    def fading(self) -> FadingMass | None:
        """Where captured forwards add what they pay to each chunk, if that is wanted."""
        ...

    def on_layer(self, layer: int, k: Tensor, v: Tensor, view: KVView) -> ChunkMass | None:
        """k, v [1, Hkv, n, D] were appended to one layer of the source; ``view`` ends with them.

        Returns where their attention adds what it pays to each chunk, if that is wanted.
        """
        ...

    def on_graph_forward(self, slot: WriteSlot, n: int) -> None:
        """A forward that writes by itself appended n tokens to all layers of the source, from ``slot`` on."""
        ...

    def on_forward(self) -> None:
        """The forward is complete, and the source counts its tokens."""
        ...

    def truncate(self, length: int) -> None:
        """The source drops everything after its first ``length`` tokens."""
        ...

    def completes_prompt(self) -> None:
        """The next forward completes a prompt: an answer follows."""
        ...

    def preparations(self) -> list[Preparation]:
        """What is worth doing before the first answer."""
        ...


class FullCache(KVCache):
    """Keys and values of all committed tokens; grows in place and is never copied."""

    verifies = True
    evicts = False
    weighs = False  # what it evicts is chosen by attention

    def __init__(
        self,
        shape: Shape,
        capacity: int,
        query_window: int = QUERY_WINDOW,
        storage: Callable[[Shape, int], KVStorage] = storage_for,
    ) -> None:
        self.shape, self.capacity, self._make = shape, capacity, storage
        self._storage: KVStorage | None = storage(shape, capacity)
        self.queries = QueryRing(shape, query_window)
        self.observers: WeakSet[CacheObserver] = WeakSet()  # those of a replaced stack vanish with it
        self.fading: FadingMass | None = None  # the latest that was asked for
        self.count: Tensor | None = None  # [1], tokens of the next forward that are no padding; None: all

    @property
    def storage(self) -> KVStorage:
        """Where keys and values are; allocated again, empty, if it was released."""
        if self._storage is None:
            self._storage = self._make(self.shape, self.capacity)
        return self._storage

    def release(self) -> None:
        """Forget all tokens, and give back their memory until it is needed again."""
        self.truncate(0)
        self._storage = None
        self.fading = None  # graphs that add to it read the old memory

    @property
    def held(self) -> int:
        """Slots in use; the latest tokens of the history are in the last of them."""
        return self.length - self.forgotten

    def completes_prompt(self) -> None:
        for observer in self.observers:
            observer.completes_prompt()

    def preparations(self) -> list[Preparation]:
        return [prepare for observer in self.observers for prepare in observer.preparations()]

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:
        self.queries.write(layer, self.position, q[0])
        view = self.storage.write(layer, self.held, k, v)
        wanted = [observer.on_layer(layer, k, v, view) for observer in self.observers]
        masses = tuple(mass for mass in wanted if mass)
        return view._replace(masses=masses) if masses else view

    def write_slot(self) -> WriteSlot | None:
        slot = self.storage.write_slot(self.held)
        if slot is None or (slot.storage.pool is not None and not self.observers):
            return slot  # a copy without a reader
        return slot._replace(queries=self.queries, mass=self._mass, counted=self.count)

    def weighed_by(self, chunk: int, half_life: float) -> FadingMass:
        """Where captured forwards add what they pay to chunks; the same object as before for the same arguments.

        So a stack goes on with the graphs of the one that it replaces.
        """
        kept = self.fading
        if kept is None or (kept.chunk, kept.half_life) != (chunk, half_life):
            kept = self.fading = fading_mass(self.shape, self.storage.capacity, chunk, half_life)
        return kept

    @property
    def _mass(self) -> FadingMass | None:
        return next((observer.fading for observer in self.observers if observer.fading), None)

    def drafted(self, certain: int, count: Tensor) -> None:
        self.count = certain + count if self._mass else None

    def overwrote(self, size: int) -> None:
        self.queries.mark_written(self.position, 0, size)
        self.storage.wrote(self.held, size)

    def wrote(self, n: int, size: int) -> None:
        slot = self.write_slot()
        assert slot
        self.queries.mark_written(self.position, n, size - n)
        self.storage.wrote(self.held, size)
        for observer in self.observers:
            observer.on_graph_forward(slot, n)

    def advance(self, n: int) -> None:
        super().advance(n)
        self.count = None
        for observer in self.observers:
            observer.on_forward()

    def rewound(self, length: int) -> int:
        """How many tokens stay if it is truncated to ``length``: fewer where these end in a quantized group."""
        return self.storage.rewound(length)

    def truncate(self, length: int) -> None:
        length = self.rewound(length)
        super().truncate(length)
        self.count = None
        self.storage.truncate(length - self.forgotten)
        for observer in self.observers:
            observer.truncate(length)

    @torch.inference_mode()
    def copy(self, other: FullCache, start: int, end: int) -> None:
        """Append tokens ``start`` .. ``end-1`` of another cache of the same model, both of which have slots."""
        mine, theirs = self.storage.slot(start), other.storage.slot(start)
        assert mine
        assert theirs
        to, from_ = (slice(slot.start, slot.start + end - start) for slot in (mine, theirs))
        mine.storage.keys[:, :, to] = theirs.storage.keys[:, :, from_]
        mine.storage.values[:, :, to] = theirs.storage.values[:, :, from_]
        self.restored(end - start)

    def restored(self, n: int) -> None:
        """Count n tokens whose slots were filled without a forward, so that their queries are unknown."""
        self.queries.forget()
        super().advance(n)


def fading_mass(shape: Shape, capacity: int, chunk: int, half_life: float) -> FadingMass:
    """Nothing paid yet to the chunks of so many slots; each layer's part is aligned for vector loads."""
    chunks = rounded_up(-(-capacity // chunk))
    total = torch.zeros(shape.layers, shape.kv_heads, chunks, device=shape.device)
    return FadingMass(total, chunk, half_life)
