"""The full cache: every token of the history, post-RoPE, at its absolute position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from torch import Tensor

from triforce_chat.engine.cache.storage import Counted, KVBuffer, KVStorage, KVView, Shape, WriteSlot

QUERY_WINDOW = 64  # tokens whose queries are kept


class QueryRing:
    """The queries of the latest positions, which choose what a retrieval cache keeps."""

    def __init__(self, shape: Shape, size: int) -> None:
        self.size = size
        self.data = KVBuffer(shape, 0).keys.new_empty(shape.layers, shape.query_heads, size, shape.head_dim)
        self.positions = [-1] * size  # which position each slot holds

    def write(self, layer: int, position: int, q: Tensor) -> None:
        """q: [1, Hq, n, D], the queries of positions ``position`` .. ``position+n-1``."""
        n = min(q.shape[2], self.size)
        first = position + q.shape[2] - n
        fresh, start = q[0, :, q.shape[2] - n :], first % self.size
        fitting = min(n, self.size - start)  # slots before the ring's end
        self.data[layer, :, start : start + fitting] = fresh[:, :fitting]
        self.data[layer, :, : n - fitting] = fresh[:, fitting:]
        self.written(first, n)

    def written(self, position: int, n: int, lost: int = 0) -> None:
        """The n slots from that position on hold its queries, and ``lost`` slots behind them nobody's."""
        for at in range(position, position + n + lost):
            self.positions[at % self.size] = at if at < position + n else -1

    def forget(self) -> None:
        """The positions have other tokens now."""
        self.positions = [-1] * self.size

    def latest(self, layer: int | slice, length: int, most: int) -> Tensor:
        """Queries of up to ``most`` consecutive positions that end at ``length - 1``: [Hq, m, D], latest first.

        Of several layers [layers, Hq, m, D].
        """
        slots: list[int] = []
        for position in range(length - 1, max(length - 1 - most, -1), -1):
            slot = position % self.size
            if self.positions[slot] != position:
                break
            slots.append(slot)
        return self.data[layer][..., slots, :]


class CacheObserver(Protocol):
    """Whatever is made out of a full cache while a forward passes through it, layer by layer."""

    def on_layer(self, layer: int, k: Tensor, v: Tensor, view: KVView) -> None:
        """k, v [1, Hkv, n, D] were stored behind the first ``source.length`` tokens; ``view`` ends with them."""
        ...

    def on_graph_forward(self, buffer: KVBuffer, n: int) -> None:
        """Instead of that for every layer: n tokens were stored in ``buffer`` behind the first ``source.length``."""
        ...

    def on_forward(self) -> None:
        """The forward went through all layers, and ``source`` counts its tokens."""
        ...

    def truncate(self, length: int) -> None:
        """``source`` forgets everything behind its first ``length`` tokens."""
        ...


class FullCache(Counted):
    """Keys and values of all committed tokens; grows in place, is never copied."""

    def __init__(
        self,
        shape: Shape,
        capacity: int,
        query_window: int = QUERY_WINDOW,
        storage: Callable[[Shape, int], KVStorage] = KVBuffer,
    ) -> None:
        self.shape = shape
        self.storage = storage(shape, capacity)
        self.queries = QueryRing(shape, query_window)
        self.observers: WeakSet[CacheObserver] = WeakSet()  # a stack that is put aside takes its own away

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:
        self.queries.write(layer, self.length, q)
        view = self.storage.write(layer, self.length, k, v)
        for observer in self.observers:
            observer.on_layer(layer, k, v, view)
        return view

    def write_slot(self) -> WriteSlot | None:
        return (
            WriteSlot(self.storage, self.length, self.queries) if isinstance(self.storage, KVBuffer) else None
        )

    def wrote(self, n: int, size: int) -> None:
        assert isinstance(self.storage, KVBuffer)
        self.queries.written(self.length, n, size - n)
        for observer in self.observers:
            observer.on_graph_forward(self.storage, n)

    def advance(self, n: int) -> None:
        super().advance(n)
        for observer in self.observers:
            observer.on_forward()

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.storage.truncate(length)
        for observer in self.observers:
            observer.truncate(length)

    def restored(self, n: int) -> None:
        """The next n slots were filled without a forward, so there are no queries of theirs."""
        self.queries.forget()
        super().advance(n)
