"""Keys and values of several sequences whose first tokens are the same, and lie in the cache of another one."""

from __future__ import annotations

from torch import Tensor

from triforce_chat.engine.cache.storage import (
    KVBuffer,
    KVStorage,
    KVView,
    Shape,
    SharedView,
    rounded_up,
    zeros,
)


class SharedPrefix:
    """The first ``shared`` tokens of ``source``, and room for ``capacity`` tokens after them in each of ``sequences``.

    The source must hold those tokens for as long as this exists; nothing is ever written to it.
    """

    def __init__(self, source: KVStorage, shared: int, shape: Shape, sequences: int, capacity: int) -> None:
        self.source, self.shared, self.shape, self.capacity = source, shared, shape, capacity
        size = (shape.layers, sequences, shape.kv_heads, rounded_up(capacity), shape.head_dim)
        self.keys, self.values = zeros(size, shape), zeros(size, shape)

    def view(self, layer: int, place: int, length: int) -> KVView:
        """The prefix and ``length`` more tokens of one sequence."""
        shared = SharedView(self.source.view(layer, self.shared), self.keys[layer], self.values[layer], place)
        width, one = rounded_up(length), slice(place, place + 1)
        return KVView(shared.keys[one, :, :width], shared.values[one, :, :width], length, shared)


class SharedPrefixStorage:
    """A ``KVStorage`` of one of the sequences."""

    streams = False

    def __init__(self, sequences: SharedPrefix, place: int) -> None:
        self.sequences, self.place = sequences, place
        self.capacity = sequences.shared + sequences.capacity

    @property
    def buffer(self) -> KVBuffer | None:
        return None

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        """See ``KVStorage``. Raises ValueError where the capacity does not suffice, or for a place in the prefix."""
        own, end = at - self.sequences.shared, at + k.shape[2]
        if own < 0 or end > self.capacity:
            raise ValueError(
                f"slots {at} to {end}: a sequence has {self.sequences.shared} to {self.capacity} of its own"
            )
        view = self.view(layer, end)
        view.keys[:, :, own : view.length] = k
        view.values[:, :, own : view.length] = v
        return view

    def view(self, layer: int, end: int) -> KVView:
        if end <= self.sequences.shared:
            return self.sequences.source.view(layer, end)
        return self.sequences.view(layer, self.place, end - self.sequences.shared)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """A copy of both parts, to read: [Hkv, capacity, D] each."""
        keys, values = self.view(layer, self.capacity).whole
        return keys[0], values[0]

    def truncate(self, length: int) -> None:
        pass
