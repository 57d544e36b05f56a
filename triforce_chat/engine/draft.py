"""Tokens on the device: the history that all levels share, and the drafts that one level hands to the next.

Every tensor has a batch dimension B in front. Which of its entries count is a number on the device, so that a round
can follow another one before the host knows how many tokens the first one committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

BACK = 64  # tokens in front of the end of a history that can be read relative to it


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens with the very distributions they were drawn from.

    ``count`` [B] says how many of the first tokens of each row are proposals where only the device knows; None: all n.
    ``parents`` [n] holds the index of each token's parent, -1 for the last committed token; None: a chain.
    """

    tokens: Tensor  # [B, n], int64
    probs: Tensor  # [B, n, V]
    count: Tensor | None = None
    parents: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens.shape[1]

    @staticmethod
    def empty(vocabulary: int, device: torch.device) -> Draft:
        """A draft of no tokens, for one sequence."""
        tokens = torch.empty(1, 0, dtype=torch.long, device=device)
        return Draft(tokens, torch.empty(1, 0, vocabulary, device=device))

    @staticmethod
    def one_hot(tokens: Tensor, vocabulary: int, dtype: torch.dtype = torch.float32) -> Draft:
        """Tokens [B, n] that were not drawn but are certain."""
        return Draft(tokens, one_hot(tokens, vocabulary, dtype))

    @property
    def counted(self) -> Tensor:
        """How many tokens of each row are proposals: [B]."""
        if self.count is not None:
            return self.count
        return torch.full((len(self.tokens),), len(self), device=self.tokens.device)


class TokenBuffer:
    """The token ids of B sequences, with room to grow in place.

    ids: [B, room]; length: [B], how many of a row's ids stand. Entries behind them are scratch space: drafts are
    written there until a verification commits some of them. ``known`` is the number of tokens that the host knows to
    stand in every row, and ``slack`` how many more there may be at most: 0 except between rounds that the host does not
    wait for.
    """

    def __init__(self, ids: Tensor, length: Tensor, known: int) -> None:
        self.ids, self.length, self.known, self.slack = ids, length, known, 0
        self._steps = torch.arange(-BACK, ids.shape[1], device=ids.device)

    @staticmethod
    def of(tokens: Sequence[int], room: int, device: torch.device) -> TokenBuffer:
        """One sequence that may grow by ``room`` tokens."""
        ids = torch.zeros(1, len(tokens) + room, dtype=torch.long)
        ids[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        length = torch.tensor([len(tokens)], device=device)
        return TokenBuffer(ids.to(device), length, len(tokens))

    def fork(self, slack: int = 0) -> TokenBuffer:
        """The same ids with a length of its own: for a level that drafts behind what is committed."""
        other = copy(self)
        other.slack = slack
        return other

    @property
    def tokens(self) -> Tensor:
        """The ids [m] of a single sequence that the host knows to stand."""
        return self.ids[0, : self.known]

    @property
    def room(self) -> int:
        """Tokens that a row has room for, committed ones included."""
        return self.ids.shape[1]

    @property
    def _place_known(self) -> bool:
        """Whether the host knows where the end is, which saves launches."""
        return not self.slack and len(self.ids) == 1

    def places(self, first: int, n: int) -> Tensor:
        """Indices [B, n] of n entries from ``first`` places behind the end on (negative: up to BACK in front of it)."""
        return self.length[:, None] + self.steps(first, n)

    def steps(self, first: int, n: int) -> Tensor:
        """The numbers [n] from ``first`` on, which are there already."""
        return self._steps[BACK + first :][:n]

    def read(self, first: int, n: int) -> Tensor:
        """The ids [B, n] from ``first`` places behind the end on."""
        if self._place_known:
            return self.ids[:, self.known + first :][:, :n]
        return self.ids.gather(1, self.places(first, n))

    def write(self, tokens: Tensor, first: int = 0) -> None:
        """Put ids [B, n] from ``first`` places behind the end on; they do not stand yet."""
        n = tokens.shape[1]
        if self._place_known:
            self.ids[:, self.known + first :][:, :n] = tokens
        else:
            self.ids.scatter_(1, self.places(first, n), tokens)

    def commit(self, tokens: Tensor, count: Tensor | int) -> None:
        """Append the first ``count`` [B] of tokens [B, n]."""
        self.write(tokens)
        self.length = self.length + count

    def settle(self, known: int) -> None:
        """The host knows that exactly ``known`` tokens stand in every row."""
        self.known = known
        self.length = torch.full_like(self.length, known)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification commits; its tensors may be overwritten by the next one.

    The first ``count`` of ``tokens`` are committed: the accepted drafted tokens, then one recovered or bonus token.
    """

    count: Tensor  # [B]
    tokens: Tensor  # [B, n+1]
    probs: Tensor  # [B, n+1, V], the verifying level's own distributions


def one_hot(index: Tensor, vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """All mass on one token: index [...] -> [..., V]."""
    zeros = torch.zeros(*index.shape, vocabulary, dtype=dtype, device=index.device)
    return zeros.scatter_(-1, index[..., None], 1)
