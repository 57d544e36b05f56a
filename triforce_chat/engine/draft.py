"""Tokens on the device: the history that all levels share, and the drafts that one level hands to the next.

Every tensor has a leading batch dimension B. How many of its entries are valid is a number on the device, so that a
round can be launched before the host knows how many tokens the previous one committed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from triforce_chat.engine.tree import Family, Parents, families

MOST_LEVELS = 3  # that verify, of a stack
FREE = -1  # in place of a forced token: whatever is drawn
BACK = 64  # tokens before the end of a history that can be read by their distance from it


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens and the distributions that they were drawn from.

    ``count`` [B] is the number of valid tokens at the start of each row, on the device; None means all n. ``parents``
    [n] holds the index of each token's parent in a tree of one sequence, -1 for the last committed token; None means a
    chain. A token of a tree may depend on its earlier siblings; its distribution is then the one given those,
    unless all are ``independent``. ``forest`` holds the parents in each of several sequences' trees, and ``shape`` is
    the same on the device, where a CUDA graph reads it.
    """

    tokens: Tensor  # [B, n], int64
    probs: Tensor  # [B, n, V]
    count: Tensor | None = None
    parents: Parents | None = None
    forest: tuple[Parents, ...] = ()
    shape: Family | None = None
    independent: bool = False

    def __len__(self) -> int:
        return self.tokens.shape[1]

    @staticmethod
    def empty(vocabulary: int, device: torch.device) -> Draft:
        """A draft of no tokens, for one sequence."""
        tokens = torch.empty(1, 0, dtype=torch.long, device=device)
        return Draft(tokens, torch.empty(1, 0, vocabulary, device=device))

    @staticmethod
    def one_hot(tokens: Tensor, vocabulary: int, dtype: torch.dtype = torch.float32) -> Draft:
        """A draft of given tokens [B, n], each with probability 1: not drawn, but looked up."""
        return Draft(tokens, one_hot(tokens, vocabulary, dtype))

    def first(self, n: int) -> Draft:
        """At most the first n tokens of a chain."""
        if len(self) <= n:
            return self
        count = None if self.count is None else self.count.clamp_max(n)
        return Draft(self.tokens[:, :n], self.probs[:, :n], count)

    @property
    def branching(self) -> bool:
        """Whether it consists of trees."""
        return bool(self.trees) or self.shape is not None

    @property
    def trees(self) -> tuple[Parents, ...]:
        """The parents in each row's tree, as far as the host knows them; empty for chains."""
        return self.forest if self.parents is None else (self.parents,)

    @property
    def family(self) -> Family | None:
        """The shapes of trees on the device; None for chains."""
        if self.shape is not None or not self.trees:
            return self.shape
        return Family(*(each.to(self.tokens.device) for each in families(self.trees, len(self))))

    @property
    def counted(self) -> Tensor:
        """Number of valid tokens in each row: [B]."""
        if self.count is not None:
            return self.count
        return torch.full((len(self.tokens),), len(self), device=self.tokens.device)


class TokenBuffer:
    """The token ids of B sequences, with room to grow in place.

    ids: [B, room]; length: [B], the committed ids of each row. Entries after them are scratch space, where drafts are
    written until a verification commits some of them. ``known`` is the number of tokens that the host knows to be
    committed in every row, and ``slack`` the largest number of further ones: 0 except between rounds that the host does
    not wait for. ``forced`` [B, room] holds the token that a benchmark wants at each place, FREE where any will do; it
    is None outside of benchmarks, as is ``luck`` [levels, room], the random numbers by which each level tests what was
    drafted for a place, the top level's first. ``host`` [room] are the ids of the first sequence in the host's memory,
    as far as it knows them; on a CPU they are ``ids`` themselves.
    """

    def __init__(self, ids: Tensor, length: Tensor, known: int, host: Tensor | None = None) -> None:
        self.ids, self.length, self.known, self.slack = ids, length, known, 0
        self.host = (ids if host is None else host)[0].cpu().numpy()
        self.forced: Tensor | None = None
        self.luck: Tensor | None = None
        self._steps = torch.arange(-BACK, ids.shape[1], device=ids.device)

    @staticmethod
    def of(
        tokens: Sequence[int],
        room: int,
        device: torch.device,
        forced: Sequence[int] = (),
        luck: int | None = None,
    ) -> TokenBuffer:
        """One sequence that may grow by ``room`` tokens, the first of which are forced to be ``forced``.

        ``luck`` seeds the random numbers of that name; None: there are none.
        """
        ids = torch.zeros(1, len(tokens) + room, dtype=torch.long)
        if tokens:
            # By way of an array, which takes a fifth of the time that torch takes for a list.
            ids[0, : len(tokens)] = torch.frombuffer(array("q", tokens), dtype=torch.long)
        length = torch.tensor([len(tokens)], device=device)
        made = TokenBuffer(ids.to(device), length, len(tokens), ids)
        if forced:
            following = torch.tensor(forced[:room], dtype=torch.long)
            ids = torch.full_like(ids, FREE)
            ids[0, len(tokens) :][: len(following)] = following
            made.forced = ids.to(device)
        if forced and luck is not None:
            drawn = torch.rand(MOST_LEVELS, room, generator=torch.Generator().manual_seed(luck))
            made.luck = torch.cat([drawn.new_zeros(MOST_LEVELS, len(tokens)), drawn], 1).to(device)
        return made

    def fork(self, slack: int = 0) -> TokenBuffer:
        """A buffer that shares the ids but has its own length: for a level that drafts after the committed tokens."""
        other = copy(self)
        other.slack = slack
        if self.luck is not None and len(self.luck) > 1:
            other.luck = self.luck[1:]
        return other

    @property
    def tokens(self) -> Tensor:
        """The ids [m] of a single sequence that the host knows to be committed."""
        return self.ids[0, : self.known]

    @property
    def _place_known(self) -> bool:
        """Whether the host knows the end of the sequence: slicing there takes fewer launches than indexing."""
        return not self.slack and len(self.ids) == 1

    def places(self, first: int, n: int) -> Tensor:
        """Indices [B, n] of n entries, the first ``first`` places after the end (negative: up to BACK before it)."""
        return self.length[:, None] + self.steps(first, n)

    def steps(self, first: int, n: int) -> Tensor:
        """The numbers first, first + 1, ... [n], a view of a stored tensor."""
        return self._steps[BACK + first :][:n]

    def read(self, first: int, n: int) -> Tensor:
        """The ids [B, n] from ``first`` places after the end on."""
        return self._read(self.ids, first, n)

    def read_forced(self, n: int) -> Tensor | None:
        """The forced tokens [B, n] of the n places after the end; None if all are free."""
        return None if self.forced is None else self._read(self.forced, 0, n)

    def read_luck(self, n: int) -> Tensor | None:
        """The random numbers [1, n] of the n places after the end of a single sequence; None if there are none."""
        return None if self.luck is None else self._read(self.luck[:1], 0, n)

    def _read(self, row: Tensor, first: int, n: int) -> Tensor:
        if self._place_known:
            return row[:, self.known + first :][:, :n]
        return row.gather(1, self.places(first, n))

    def write(self, tokens: Tensor, first: int = 0) -> None:
        """Write ids [B, n] from ``first`` places after the end on, without committing them."""
        n = tokens.shape[1]
        if self._place_known:
            self.ids[:, self.known + first :][:, :n] = tokens
        else:
            self.ids.scatter_(1, self.places(first, n), tokens)

    def commit(self, tokens: Tensor, count: Tensor | int) -> None:
        """Append the first ``count`` [B] of tokens [B, n]."""
        self.write(tokens)
        self.length = self.length + count

    def reveal(self, start: int, ids: Sequence[int]) -> None:
        """The host has read which ids are committed from index ``start`` on."""
        self.host[start : start + len(ids)] = ids

    def settle(self, known: int) -> None:
        """Set the length of every row to ``known``, which the host knows."""
        self.known = known
        self.length = torch.full_like(self.length, known)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification; the next one may overwrite its tensors.

    The first ``count`` of ``tokens`` are committed: the accepted drafted tokens, then one recovered or bonus token.
    """

    count: Tensor  # [B]
    tokens: Tensor  # [B, n+1]
    probs: Tensor  # [B, n+1, V], the distributions of the verifying level


def one_hot(index: Tensor, vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Distributions with all mass on one token: index [...] -> [..., V]."""
    zeros = torch.zeros(*index.shape, vocabulary, dtype=dtype, device=index.device)
    return zeros.scatter_(-1, index[..., None], 1)
