"""Prompt lookup decoding: draft without a model, by continuing the latest place where the present words occurred.

The proposals are deterministic, hence one-hot distributions, hence exact like any other draft. How far to trust a
match is learnt from how well earlier ones predicted the text.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.kernels_available import kernels_run

ORDERS = 8  # longest match that is told apart
LEARN = 0.05
# How often a match predicts the next token, by its length: as measured on summaries and answers of a small chat
# model over novels and reports. A start only; every prediction that comes true or not teaches.
PRIOR = (0.0, 0.18, 0.2, 0.32, 0.5, 0.65, 0.75, 0.75, 0.8)


class Match(NamedTuple):
    """The continuation of an earlier occurrence of the last tokens."""

    tokens: Tensor  # [B, n]
    length: Tensor  # [B], how many of the last tokens are the same; 0: they did not occur


class NgramLookup:
    """Looks the last tokens up in the whole history, the document included."""

    def __init__(self) -> None:
        self.rates = list(PRIOR)

    def find(self, seq: TokenBuffer, n: int) -> Match:
        """What followed the latest of the longest matches.

        A match less than n tokens back is continued as it must go on if it repeats itself.
        """
        found = [latest_match(ids, end) for ids, end in zip(seq.ids, seq.length, strict=True)]
        place, length = (stacked([pair[i] for pair in found]) for i in range(2))
        period = (seq.length - place).clamp_min(1)
        steps = seq.steps(0, n) % period[:, None]
        return Match(seq.ids.gather(1, place[:, None] + steps), length)

    def survival(self, length: int, n: int) -> list[float]:
        """The chance that the first 1 .. n tokens behind a match of that length all come: [n], decreasing."""
        return list(accumulate((self.rates[min(length + i, ORDERS)] for i in range(n)), mul))

    def learn(self, length: int, right: int, tested: int) -> None:
        """The first ``right`` of ``tested`` tokens behind a match came; each right one makes the match longer."""
        for i in range(min(right + 1, tested)):
            order = min(length + i, ORDERS)
            self.rates[order] += LEARN * ((i < right) - self.rates[order])


def stacked(numbers: list[Tensor]) -> Tensor:
    """Numbers [] as one tensor [B]; a single one is not copied."""
    return numbers[0][None] if len(numbers) == 1 else torch.stack(numbers)


def latest_match(ids: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Where the last of the first ``end`` [] of ids [m] occurred before: (index behind the match, its length), [] each.

    The longest match up to ORDERS tokens wins, of equals the latest; (0, 0) without any. Does not wait for a GPU
    that runs Triton's kernels.
    """
    if kernels_run(ids.device):
        from triforce_chat.engine.kernels import search

        with torch.cuda.device(ids.device):  # Triton launches on the current GPU
            return search(ids, end, ORDERS)
    place, length = longest_match(ids[: int(end)])
    return end.new_tensor(place), end.new_tensor(length)


def longest_match(history: Tensor) -> tuple[int, int]:
    """``latest_match`` of a whole history [m], narrowed down token by token; waits for the device."""
    ends = torch.nonzero(history[:-1] == history[-1])[:, 0] if len(history) else history
    length, best = 0, ends
    while len(ends) and length < ORDERS:
        best, length = ends, length + 1
        ends = ends[ends >= length]
        ends = ends[history[ends - length] == history[-1 - length]] if length < len(history) else ends[:0]
    return (int(best[-1]) + 1, length) if length else (0, 0)
