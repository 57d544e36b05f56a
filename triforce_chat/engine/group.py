"""How the ranks that share one model's weights stay in step and combine their partial results.

Every rank runs the same decoder on the same request with its share of the target's heads. Whatever depends on the
clock, on chance or on rounding is decided by rank 0 alone, so that no rank ever feeds other tokens than the others.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class GraphOwner(Protocol):
    """Holds CUDA graphs that contain collective operations."""

    def forget(self) -> None:
        """Release the graphs; they are captured again when needed."""
        ...


class RankGroup(Protocol):
    """Collective operations: every rank calls them in the same order, with values of the same shape."""

    @property
    def rank(self) -> int:
        """The index of this rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """Ranks that share the weights."""
        ...

    @property
    def sharing(self) -> int:
        """Ranks that allocate from the same memory as this one, itself included."""
        ...

    def broadcast_tokens(self, own: Tensor) -> Tensor:
        """Rank 0's token ids, in the shape of ``own``."""
        ...

    def broadcast_ints(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Rank 0's integers, as many as ``own`` has."""
        ...

    def broadcast(self, own: Tensor) -> Tensor:
        """Rank 0's integers on the device, in the shape of ``own``; the host does not wait."""
        ...

    def all_reduce_sum(self, own: Tensor) -> Tensor:
        """The sum of the ranks' tensors, written over ``own``; the same on all ranks bit by bit."""
        ...

    def all_reduce_min(self, own: int) -> int:
        """The smallest of the ranks' numbers."""
        ...

    def register_graphs(self, by: GraphOwner) -> None:
        """Note that graphs of ``by`` may contain ``all_reduce_sum``: they must be released before the group ends."""
        ...


class SingleRank:
    """The group of one process that has the whole model: every operation returns its argument."""

    rank = 0
    size = 1
    sharing = 1

    def broadcast_tokens(self, own: Tensor) -> Tensor:
        return own

    def broadcast_ints(self, own: tuple[int, ...]) -> tuple[int, ...]:
        return own

    def broadcast(self, own: Tensor) -> Tensor:
        return own

    def all_reduce_sum(self, own: Tensor) -> Tensor:
        return own

    def all_reduce_min(self, own: int) -> int:
        return own

    def register_graphs(self, by: GraphOwner) -> None:
        pass


SINGLE = SingleRank()
