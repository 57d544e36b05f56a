"""Prompt lookup decoding: draft without a model, by continuing an earlier occurrence of the last tokens.

The drafts are deterministic, so their distributions are one-hot and verification stays exact. How reliable a match is
depends on its length and is learnt while decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.kernels_available import kernels_run

ORDERS = 8  # tokens; longer matches count as this long
LEARN = 0.05  # weight of each new test of a match, once there were many
CUTOFF = 0.25  # without planning, lookup proposes tokens that are at least this likely to be accepted
PRIOR_TESTS = 4  # that the starting point counts for
# How often a match predicts the next token, by its length: measured on summaries and answers of a small chat model
# about novels and reports. A starting point, which every test updates.
PRIOR = (0.0, 0.18, 0.2, 0.32, 0.5, 0.65, 0.75, 0.75, 0.8)


Tokens = np.ndarray[Any, np.dtype[np.int64]]


class Match(NamedTuple):
    """An earlier occurrence of the last tokens of a history that the host knows."""

    end: int  # number of tokens of the history
    place: int  # index of the token after the earlier occurrence
    length: int  # of the match in tokens; 0: none

    def continued(self, ids: Tensor, n: int) -> Tensor:
        """The n tokens [1, n] that followed it in ids [1, m], on their device; periodic if it is fewer tokens back."""
        passage = ids[:, self.place : self.end][:, :n]
        return passage.repeat(1, -(-n // passage.shape[1]))[:, :n]

    def right(self, known: Tokens, n: int) -> int:
        """How many of the n tokens after the history, which are known by now, are what followed it before."""
        return next((i for i in range(n) if known[self.place + i] != known[self.end + i]), n)


class LookedUp(NamedTuple):
    """The continuation of an earlier occurrence of the last tokens, on the device."""

    tokens: Tensor  # [B, n]
    length: Tensor | None = None  # [B], of the match in tokens, 0: none; None if the host has planned by it


class NgramLookup:
    """Finds the last tokens in the whole history, the document included.

    Histories that the host knows are searched by the host, which does so while the device computes the next token.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was learnt about matches."""
        self.rates = list(PRIOR)
        self.tests = [0] * len(PRIOR)

    def go_on(self, rates: Sequence[float]) -> None:
        """Go on from what was learnt before by many tests."""
        self.rates = list(rates)
        self.tests = [round(1 / LEARN)] * len(self.rates)

    def match(self, known: Tokens) -> Match:
        """The longest match of the last of these tokens, the latest of equals."""
        return Match(len(known), *longest_match(known))

    def find(self, seq: TokenBuffer, n: int) -> LookedUp:
        """The n tokens that followed the longest match in a history that perhaps only the device knows.

        A match fewer than n tokens back is continued periodically.
        """
        found = [latest_match(ids, end, n) for ids, end in zip(seq.ids, seq.length, strict=True)]
        return LookedUp(*(stacked([pair[i] for pair in found]) for i in range(2)))

    def fade(self) -> None:
        """Let all tests so far, which were of other texts, count for as many as the starting point does."""
        self.tests = [min(tests, PRIOR_TESTS) for tests in self.tests]

    def survival(self, length: int, n: int) -> list[float]:
        """Chances that the first 1 .. n tokens after a match of that length are all right: [n], decreasing."""
        rates = self.rates[min(length, ORDERS) :][:n]
        return list(accumulate(rates + (n - len(rates)) * self.rates[-1:], mul))

    def learn(self, length: int, right: int, tested: int) -> None:
        """Learn that the first ``right`` of ``tested`` tokens after a match were right; each one extends the match."""
        for i in range(min(right + 1, tested)):
            order = min(length + i, ORDERS)
            self.tests[order] += 1
            weight = max(LEARN, 1 / (PRIOR_TESTS + self.tests[order]))
            self.rates[order] += weight * ((i < right) - self.rates[order])


def stacked(rows: list[Tensor]) -> Tensor:
    """B tensors as one tensor [B, ...]; a single one is not copied."""
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


def latest_match(ids: Tensor, end: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Find an earlier occurrence of the tokens before ``end`` [] in ids [m].

    Returns (the n tokens after the match [n], length of the match []); without a match its length is 0. The longest
    match of up to ORDERS tokens wins, the latest of equals. With Triton's kernels this does not synchronize with the
    GPU.
    """
    if kernels_run(ids.device):
        from triforce_chat.engine.kernels import search

        with torch.cuda.device(ids.device):  # Triton launches on the current GPU
            return search(ids, end, ORDERS, n)
    place, length = longest_match(ids[: int(end)].cpu().numpy())
    steps = torch.arange(n, device=ids.device) % max(1, int(end) - place)
    return ids[place + steps], end.new_tensor(length)


def longest_match(history: Tokens) -> tuple[int, int]:
    """(index after the match, its length) at the end of a history [m], (0, 0) if there is none."""
    ends = (history[:-1] == history[-1]).nonzero()[0] if len(history) else history
    length, best = 0, ends
    while len(ends) and length < ORDERS:
        best, length = ends, length + 1
        ends = ends[ends >= length]
        ends = ends[history[ends - length] == history[-1 - length]] if length < len(history) else ends[:0]
    return (int(best[-1]) + 1, length) if length else (0, 0)
