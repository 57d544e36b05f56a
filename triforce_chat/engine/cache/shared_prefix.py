"""Keys and values of several sequences whose first tokens are the same, and lie in the cache of another one."""

from __future__ import annotations

from torch import Tensor

from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.quantization import narrowed
from triforce_chat.engine.cache.storage import KVBuffer, KVPool, KVStorage, SlotStorage, WriteSlot
from triforce_chat.engine.cache.view import KVView, SharedView


class SharedPrefix:
    """The first ``shared`` tokens of ``source``, and the tokens after them of each sequence in ``pool``.

    The source must hold those tokens for as long as this exists; nothing is ever written to it.
    """

    def __init__(self, source: KVStorage, shared: int, pool: KVPool) -> None:
        self.source, self.shared, self.pool = source, shared, pool

    def view(self, layer: int, place: int, length: int) -> KVView:
        """The prefix and ``length`` more tokens of one sequence."""
        prefix = self.source.view(layer, self.shared)
        shared = SharedView(prefix, self.pool.keys[layer], self.pool.values[layer], place)
        width, one = rounded_up(length), slice(place, place + 1)
        return KVView(shared.keys[one, :, :width], shared.values[one, :, :width], length, shared)


class SharedPrefixStorage(SlotStorage):
    """A ``KVStorage`` of one of the sequences."""

    streams = False

    def __init__(self, sequences: SharedPrefix, place: int) -> None:
        self.sequences, self.place = sequences, place
        pool = sequences.pool
        self.own = KVBuffer(pool.shape, pool.capacity, pool, place)
        self.capacity = sequences.shared + pool.capacity

    def slot(self, at: int) -> WriteSlot | None:
        shared = self.sequences.shared
        source = self.sequences.source.slot(0)
        return source and WriteSlot(self.own, at - shared, prefix=source.storage, shared=shared)

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        """See ``KVStorage``. Raises ValueError where the capacity does not suffice, or for a place in the prefix."""
        own, end = at - self.sequences.shared, at + k.shape[2]
        if own < 0 or end > self.capacity:
            raise ValueError(
                f"slots {at} to {end}: a sequence has {self.sequences.shared} to {self.capacity} of its own"
            )
        view = self.view(layer, end)
        view.keys[:, :, own : view.length] = narrowed(k, view.keys.dtype)
        view.values[:, :, own : view.length] = narrowed(v, view.values.dtype)
        return view

    def view(self, layer: int, end: int) -> KVView:
        if end <= self.sequences.shared:
            return self.sequences.source.view(layer, end)
        return self.sequences.view(layer, self.place, end - self.sequences.shared)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """A copy of both parts, to read: [Hkv, capacity, D] each."""
        keys, values = self.view(layer, self.capacity).whole
        return keys[0], values[0]
