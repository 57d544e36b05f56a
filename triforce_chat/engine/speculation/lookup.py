"""Drafting without a model: continue the latest place where the present words stood before.

Prompt lookup decoding. The proposals are deterministic, hence one-hot distributions, hence exact like any other
draft. How far to trust a place is learnt from how well earlier ones foretold what then came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import eq, mul
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.kernels_available import kernels_run
from triforce_chat.engine.sampling.sampler import Sampler, one_hot

ORDERS = 8  # longest match that is told apart
LEARN = 0.05
# How often a place foretells the next token, by the length of its match: as measured on summaries and answers
# of a small chat model over novels and reports. A start only; every forecast that comes true or not teaches.
TRUST = (0.0, 0.18, 0.2, 0.32, 0.5, 0.65, 0.75, 0.75, 0.8)


class Forecast(NamedTuple):
    """A continuation and how likely each of its tokens is to be reached and right."""

    tokens: Tensor  # [n]
    survival: list[float]  # [n], decreasing


Ids = NDArray[np.int32]


class Foretold(Draft):
    """Tokens [n] that each have all mass. It is laid out when somebody asks, a verifying forward being on its way."""

    __slots__ = ("vocabulary",)
    vocabulary: int

    def __init__(self, tokens: Tensor, vocabulary: int) -> None:
        for name, value in (("tokens", tokens), ("vocabulary", vocabulary), ("count", None)):
            object.__setattr__(self, name, value)

    @property
    def probs(self) -> Tensor:
        return one_hot(self.tokens, self.vocabulary)


class Heard:
    """The history in main memory, where it is searched; only what is new comes over from the device."""

    def __init__(self) -> None:
        self.room: Ids = np.empty(0, np.int32)
        self.length = 0

    def listen(self, tokens: Tensor) -> Ids:
        """The history ``tokens`` [m], of which what was heard, and not forgotten since, is the beginning."""
        known = min(self.length, len(tokens))
        if known < len(tokens):
            self._write(known, tokens[known:].cpu().numpy())
        self.length = len(tokens)
        return self.room[: self.length]

    def hear(self, length: int, ids: Sequence[int]) -> None:
        """``ids`` follow the first ``length`` tokens: of use where all in front of them was heard."""
        known = self.length - length
        if 0 <= known < len(ids):
            self._write(self.length, ids[known:])
            self.length = length + len(ids)

    def _write(self, at: int, ids: ArrayLike) -> None:
        end = at + np.size(ids)
        if end > len(self.room):
            self.room = np.concatenate([self.room[:at], np.empty(2 * end - at, np.int32)])
        self.room[at:end] = ids

    def forget(self, length: int) -> None:
        """What stands behind the first ``length`` tokens."""
        self.length = min(self.length, length)


class Trust:
    """How likely what stood behind a place comes again, by the length of the match there."""

    def __init__(self) -> None:
        self.rates = list(TRUST)

    def survival(self, match: int, n: int) -> list[float]:
        """Of the first 1 .. n tokens: [n], decreasing."""
        return list(accumulate((self.rates[min(match + i, ORDERS)] for i in range(n)), mul))

    def learn(self, match: int, came: Iterable[bool]) -> None:
        """Whether each token behind a place with that match came; each right one makes the match longer."""
        for i, right in enumerate(came):
            order = min(match + i, ORDERS)
            self.rates[order] += LEARN * (right - self.rates[order])
            if not right:
                break


class NgramLookup:
    """Looks the last tokens up in the whole history, the document included."""

    def __init__(self, vocabulary: int, cutoff: float = 0.25) -> None:
        self.cutoff = cutoff  # a token that is less likely than this to be reached is not proposed
        self.trust = Trust()
        self.vocabulary = vocabulary
        self.heard = Heard()
        self.told: tuple[int, int, list[int]] | None = None  # history length, match, tokens foretold

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        told = self.forecast(tokens, n)
        keep = sum(chance >= self.cutoff for chance in told.survival)
        return self.draft(told.tokens[:keep])

    def draft(self, tokens: Tensor) -> Draft:
        """Foretold tokens [n] as a proposal."""
        return Foretold(tokens, self.vocabulary)

    def forecast(self, tokens: Tensor, n: int) -> Forecast:
        """What stood behind the latest longest match, at most n tokens."""
        history = self.heard.listen(tokens)
        self._learn(history)
        end, match = longest_match(history, ORDERS)
        found = slice(end, min(end + n, len(history)) if match else end)
        self.told = (len(history), match, history[found].tolist())
        return Forecast(tokens[found], self.trust.survival(match, found.stop - found.start))

    def _learn(self, history: Ids) -> None:
        """Compare the last forecast with what has come since."""
        if self.told is not None:
            length, match, found = self.told
            self.trust.learn(match, map(eq, history[length:].tolist(), found))

    def rollback(self, length: int) -> None:
        self.heard.forget(length)

    def hear(self, length: int, ids: Sequence[int]) -> None:
        self.heard.hear(length, ids)

    def judged(self, proposed: int, accepted: int) -> None:
        pass


class NoLookup(NgramLookup):
    """Knows nothing."""

    def forecast(self, tokens: Tensor, n: int) -> Forecast:  # noqa: ARG002
        return Forecast(tokens[:0], [])


def longest_match(history: NDArray[Any], orders: int) -> tuple[int, int]:
    """Where the last tokens stood before: (index behind the match, its length up to ``orders``), or (0, 0).

    The longest match wins, of equals the latest. history: [m].
    """
    ends = np.flatnonzero(history[:-1] == history[-1]) if len(history) else history
    match, best = 0, ends
    while len(ends) and match < orders:
        best, match = ends, match + 1
        ends = ends[ends >= match]
        ends = ends[history[ends - match] == history[-1 - match]] if match < len(history) else ends[:0]
    return (int(best[-1]) + 1, match) if match else (0, 0)


class Found(NamedTuple):
    """What stood where the last words stood before."""

    tokens: Tensor  # [n]
    match: Tensor  # [], how many of the words are the same; 0: there is no such place


def found(history: Tensor, end: Tensor, n: int) -> Found:
    """What ``longest_match`` finds for the first ``end`` [] tokens of ``history`` [m], without waiting for the device.

    A place less than n tokens back goes on as it has to if it comes again and again.
    """
    if kernels_run(history.device):
        from triforce_chat.engine.kernels import search

        with torch.cuda.device(history.device):  # Triton launches on the current GPU
            place, match = search(history, end, ORDERS)
    else:
        place, match = searched(history, end)
    period = (end - place).clamp_min(1)
    return Found(history[place + torch.arange(n, device=history.device) % period], match)


def searched(history: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The index behind the longest match, of equals the latest, and its length; [] each."""
    at = torch.arange(len(history), device=history.device)
    same, match = at < end, torch.zeros_like(at)
    for back in range(1, ORDERS + 1):
        last = history[(end - back).clamp_min(0)]
        same = same & (at >= back) & (history.roll(back) == last)
        match += same
    best = (match * len(history) + at * (match > 0)).argmax()
    return best, match[best]
