"""Drafting without a model: continue the latest place where the present words stood before.

Prompt lookup decoding. The proposals are deterministic, hence one-hot distributions, hence exact like any other
draft. How far to trust a place is learnt from how well earlier ones foretold what then came.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling import Sampler, one_hot

ORDERS = 8  # longest match that is told apart
LEARN = 0.05
# How often a place foretells the next token, by the length of its match: as measured on summaries and answers
# of a small chat model over novels and reports. A start only; every forecast that comes true or not teaches.
TRUST = (0.0, 0.18, 0.2, 0.32, 0.5, 0.65, 0.75, 0.75, 0.8)


class Forecast(NamedTuple):
    """A continuation and how likely each of its tokens is to be reached and right."""

    tokens: Tensor  # [n]
    survival: list[float]  # [n], decreasing


class NgramLookup:
    """Looks the last tokens up in the whole history, the document included."""

    def __init__(self, vocabulary: int, cutoff: float = 0.25) -> None:
        self.cutoff = cutoff  # a token that is less likely than this to be reached is not proposed
        self.trust = list(TRUST)
        self.vocabulary = vocabulary
        self.told: tuple[int, int, Tensor] | None = None  # history length, match, tokens foretold

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        told = self.forecast(tokens, n)
        keep = sum(chance >= self.cutoff for chance in told.survival)
        return self.draft(told.tokens[:keep])

    def draft(self, tokens: Tensor) -> Draft:
        """Foretold tokens [n] as a proposal."""
        return Draft(tokens, one_hot(tokens, self.vocabulary))

    def forecast(self, tokens: Tensor, n: int) -> Forecast:
        """What stood behind the latest longest match, at most n tokens."""
        self._learn(tokens)
        end, match = longest_match(tokens, ORDERS)
        found = tokens[end : end + n] if match else tokens[:0]
        self.told = (len(tokens), match, found)
        survival, chance = [], 1.0
        for i in range(len(found)):
            chance *= self.trust[min(match + i, ORDERS)]
            survival.append(chance)
        return Forecast(found, survival)

    def _learn(self, tokens: Tensor) -> None:
        """Compare the last forecast with what has come since; a token of length-m match teaches trust[m]."""
        if self.told is None:
            return
        length, match, found = self.told
        came = tokens[length : length + len(found)]
        for i, hit in enumerate((came == found[: len(came)]).tolist()):
            order = min(match + i, ORDERS)
            self.trust[order] += LEARN * (hit - self.trust[order])
            if not hit:
                break

    def rollback(self, length: int) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


def longest_match(tokens: Tensor, orders: int) -> tuple[int, int]:
    """Where the last tokens stood before: (index behind the match, its length up to ``orders``), or (0, 0).

    The longest match wins, of equals the latest. tokens: [m].
    """
    ends = (tokens[:-1] == tokens[-1]).nonzero()[:, 0] if len(tokens) else tokens
    match = 0
    while len(ends) and match < orders:
        best, match = ends, match + 1
        ends = ends[(ends >= match) & (match < len(tokens))]
        ends = ends[tokens[ends - match] == tokens[-1 - match]] if match < len(tokens) else ends[:0]
    return (int(best[-1]) + 1, match) if match else (0, 0)
