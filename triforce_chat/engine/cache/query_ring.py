"""The queries of the latest tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from triforce_chat.engine.cache.shape import Shape


class QueryRing:
    """The queries of the latest positions, which select what a retrieval cache keeps.

    Position p is kept in slot p % size of ``data`` [layers, Hq, size, D].
    """

    def __init__(self, shape: Shape, size: int) -> None:
        self.size = size
        dimensions = (shape.layers, shape.query_heads, size, shape.head_dim)
        self.data = torch.empty(dimensions, dtype=shape.dtype, device=shape.device)
        self.positions = [-1] * size  # the position that each slot holds; -1: none

    def write(self, layer: int | slice, position: int, q: Tensor) -> None:
        """Store queries q [..., Hq, n, D] of positions ``position`` .. ``position+n-1``, of one layer or several."""
        given = q.shape[-2]
        n = min(given, self.size)
        first = position + given - n
        fresh, start = q[..., given - n :, :], first % self.size
        fitting = min(n, self.size - start)  # slots before the ring wraps around
        kept = self.data[layer]
        kept[..., start : start + fitting, :] = fresh[..., :fitting, :]
        kept[..., : n - fitting, :] = fresh[..., fitting:, :]
        self.mark_written(first, n)

    def mark_written(self, position: int, n: int, lost: int = 0) -> None:
        """The slots of n positions from ``position`` on were filled, and the ``lost`` after them overwritten."""
        for at in range(position, position + n + lost):
            self.positions[at % self.size] = at if at < position + n else -1

    def keep(self, start: int, path: Sequence[int]) -> None:
        """The queries of ``start + path[i]`` belong to position ``start + i``, as far as they are there."""
        there = [self.positions[(start + at) % self.size] == start + at for at in path]
        from_, to = ([(start + at) % self.size for at in each] for each in (path, range(len(path))))
        self.data[:, :, to] = self.data[:, :, from_]
        for slot, position, known in zip(to, range(start, start + len(path)), there, strict=True):
            self.positions[slot] = position if known else -1

    def forget(self) -> None:
        """Let ``latest`` find no queries: other tokens are at these positions now."""
        self.positions = [-1] * self.size

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Have the same queries after the block as before it."""
        data, positions = self.data.clone(), self.positions.copy()
        try:
            yield
        finally:
            # Graphs read this very tensor.
            self.data.copy_(data)
            self.positions = positions

    def since(self, layer: int, position: int, n: int) -> Tensor:
        """Queries [Hq, n, D] of n positions from ``position`` on, all of which were written; forgotten ones, too."""
        kept, start = self.data[layer], position % self.size
        fitting = min(n, self.size - start)  # slots before the ring wraps around
        return torch.cat([kept[:, start : start + fitting], kept[:, : n - fitting]], 1)

    def latest(self, layer: int | slice, length: int, most: int) -> Tensor:
        """Queries of up to ``most`` consecutive positions that end at ``length - 1``, the latest first.

        Returns [Hq, m, D], or [layers, Hq, m, D] for a slice of layers.
        """
        slots: list[int] = []
        for position in range(length - 1, max(length - 1 - most, -1), -1):
            slot = position % self.size
            if self.positions[slot] != position:
                break
            slots.append(slot)
        if slots and slots[0] - slots[-1] == len(slots) - 1:
            # The ring does not wrap between them: so a GPU waits for no list.
            return self.data[layer][..., slots[-1] : slots[0] + 1, :].flip(-2)
        return self.data[layer][..., slots, :]
