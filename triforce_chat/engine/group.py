"""How the processes that share one model's weights stay in step, and put together what each computed.

Each of them runs the same decoder on the same request and holds some of the target's heads. What the clock,
chance or rounding has a say in is decided by rank 0 alone, so that no rank ever feeds other tokens than it does.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Recorder(Protocol):
    """Has CUDA graphs in which ranks talk to each other."""

    def forget(self) -> None:
        """Give them up."""
        ...


class RankGroup(Protocol):
    """Every rank calls these in the same order, with values of the same shape."""

    @property
    def rank(self) -> int:
        """This one."""
        ...

    @property
    def size(self) -> int:
        """Ranks that share the weights."""
        ...

    @property
    def sharing(self) -> int:
        """Ranks that take their memory from where this one takes it."""
        ...

    def broadcast_tokens(self, own: Tensor) -> Tensor:
        """Rank 0's token ids [n]."""
        ...

    def broadcast_ints(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Rank 0's numbers, as many as everybody's."""
        ...

    def broadcast(self, own: Tensor) -> Tensor:
        """Rank 0's word on a draft, on the device: whole numbers [.], as many as everybody's."""
        ...

    def all_reduce_sum(self, own: Tensor) -> Tensor:
        """What the ranks' tensors add up to, in place of ``own``; bit by bit the same on all ranks."""
        ...

    def all_reduce_min(self, own: int) -> int:
        """The smallest of the ranks' numbers."""
        ...

    def register_graphs(self, by: Recorder) -> None:
        """Its graphs may hold calls of ``all_reduce_sum``; they are given up before the ranks part."""
        ...


class SingleRank:
    """One process with the whole model: nobody to agree with."""

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

    def register_graphs(self, by: Recorder) -> None:
        pass


SINGLE = SingleRank()
