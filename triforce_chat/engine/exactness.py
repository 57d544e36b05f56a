"""Checks that decoded tokens are those of plain decoding: equal if greedy, equally distributed if sampled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Text
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.sampling.ops import warp_fully

ROUNDING_TOKENS = 128  # of prompt and answer, over which the target's rounding is measured
ROUNDING_SCORES = 8  # best scores of each of them
ROUNDING_WIDTHS = (1, 2, 6, 17)  # rows of a forward; one forward of all rows is compared with each


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a speculative answer compares with the plain one."""

    tokens: int
    identical: bool
    ties: int | None  # differences that are the target's own rounding; None: sampled, not greedy
    mismatches: int  # all other differences of a greedy answer


def judge(engine: EngineProtocol, request: Request, fast: Sequence[int], plain: Sequence[int]) -> Judgement:
    """Compare two answers; where greedy ones differ, check that each token of ``fast`` is an argmax or a tie.

    The target scores the fast answer itself, so tokens after a tie are judged like any other.
    """
    identical = list(fast) == list(plain)
    if not request.sampling.greedy:
        return Judgement(len(fast), identical, None, 0)
    if identical:
        return Judgement(len(fast), True, 0, 0)
    missing = len(plain) - len(fast) if list(fast) == list(plain[: len(fast)]) else 0
    found = differences(engine, request, fast)
    return Judgement(len(fast), False, found.ties, found.mismatches + missing)


class Differences(NamedTuple):
    """Greedy tokens that differ from the target's argmax given the same prefix."""

    ties: int  # scores that the target's own rounding could have made the best
    mismatches: int  # scores below that
    widest: float  # largest distance from the best score, in logits


def differences(engine: EngineProtocol, request: Request, made: Sequence[int]) -> Differences:
    """Score the answer ``made`` again, over the full cache alone."""
    differing = [gap for gap, chosen in gaps(engine, request, made) if not chosen]
    if not differing:
        return Differences(0, 0, 0.0)
    off = rounding(engine, request, made)
    ties = sum(gap <= 2 * off for gap in differing)  # both scores may be off by as much, one up and one down
    return Differences(ties, len(differing) - ties, max(differing))


def gaps(engine: EngineProtocol, request: Request, made: Sequence[int]) -> Iterator[tuple[float, bool]]:
    """For each generated token: (distance of its score from the best, whether it is the argmax)."""
    for scores, tokens in engine.rescore(request, made):
        best = scores.max(-1).values
        below = best - scores.gather(-1, tokens[:, None])[:, 0]
        yield from zip(below.tolist(), (scores.argmax(-1) == tokens).tolist(), strict=True)


def rounding(engine: EngineProtocol, request: Request, made: Sequence[int]) -> float:
    """How far the target's own scores vary, in logits, when it computes the same rows in forwards of other widths.

    Rounding depends on how many rows a product has. This is the largest difference over the best scores of the last
    tokens of prompt and answer; scores that are farther apart than twice that were not swapped by rounding.
    """
    history = [*request.prompt, *made]
    start = max(1, len(history) - ROUNDING_TOKENS)
    last = replace(request, prompt=history[:start], spans=())
    usual = _rescored(engine, last, history[start:], ROUNDING_TOKENS)
    best = usual.topk(min(ROUNDING_SCORES, usual.shape[-1])).indices
    others = (_rescored(engine, last, history[start:], width) for width in ROUNDING_WIDTHS)
    widest = max(float((other - usual).gather(-1, best).abs().max()) for other in others)
    # Orders of summation that happen to agree prove nothing about others.
    return max(widest, float(usual.abs().max()) * torch.finfo(torch.float32).eps)


def _rescored(engine: EngineProtocol, request: Request, made: Sequence[int], width: int) -> Tensor:
    return torch.cat([scores.clone() for scores, _ in engine.rescore(request, made, width)])


class SamplingTest:
    """Tests whether sampled tokens follow the target's distribution, given its conditionals at every position.

    It combines two statistics over all tokens: the randomized probability integral transform, which is uniform if the
    distribution is right, and the surprisal -log p minus its expectation, which detects over-confident copying.

    At the border of what top-k, top-p and min-p keep, the target's own rounding decides whether a token can be drawn at
    all. One that rounding alone leaves out of the conditionals is counted in ``ties`` and is not tested: without it,
    tokens follow just these conditionals. Any other impossible token is proof of a wrong distribution. So a
    filter that is off by no more than rounding is not found.
    """

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.transformed: list[float] = []
        self.surprise = self.variance = 0.0
        self.ties = 0

    def add(self, engine: EngineProtocol, request: Request, made: Sequence[int]) -> None:
        """Add the tokens of one sampled answer."""
        impossible: list[tuple[Tensor, int]] = []  # scores [V] and a token that filters leave out by them
        for scores, tokens in engine.rescore(request, made):
            rows = warp_fully(scores, request.sampling).double().cpu()
            for own, row, token in zip(scores, rows, tokens.tolist(), strict=True):
                if row[token] > 0:
                    self._add(row, token)
                else:
                    impossible.append((own.clone(), token))
        off = rounding(engine, request, made) if impossible else 0.0
        for own, token in impossible:
            if warp_fully(favouring(token, own, off), request.sampling)[token] > 0:
                self.ties += 1
            else:
                self._add(warp_fully(own, request.sampling).double().cpu(), token)

    def _add(self, p: Tensor, token: int) -> None:
        share = float(torch.rand((), generator=self.generator, dtype=torch.float64))
        self.transformed.append(float(p[:token].sum()) + share * float(p[token]))
        information = -p.clamp_min(1e-300).log()
        entropy = float((p * information).sum())
        self.surprise += float(information[token]) - entropy
        self.variance += float((p * (information - entropy) ** 2).sum())

    @property
    def p_value(self) -> float:
        """The probability of statistics at least this extreme if the distribution is right (Bonferroni over both)."""
        return min(1.0, 2 * min(kolmogorov_p(self.transformed), self._surprise_p()))

    def _surprise_p(self) -> float:
        if self.variance == 0:
            return 1.0 if self.surprise == 0 else 0.0
        return math.erfc(abs(self.surprise) / math.sqrt(2 * self.variance))


def favouring(token: int, scores: Tensor, off: float) -> Tensor:
    """Of all scores within ``off`` of these [V], those by which filters are the likeliest to keep a token.

    As few tokens as possible are above it, with as small a share of the probability as possible.
    """
    most = scores[token] + off
    return torch.where(scores - off > most, scores - off, (scores + off).clamp_max(most))


def kolmogorov_p(values: Sequence[float]) -> float:
    """P-value of the hypothesis that ``values`` are uniform on [0, 1] (Kolmogorov-Smirnov in Stephens' form)."""
    ordered, n = sorted(values), len(values)
    if n == 0:
        return 1.0
    distance = max(max((i + 1) / n - u, u - i / n) for i, u in enumerate(ordered))
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if x < 0.3:  # the series converges slowly here, where the result is 1
        return 1.0
    tail = sum((-1.0) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * tail))


def tokens_of(engine: EngineProtocol, request: Request, plain: bool = False) -> list[int]:
    """The token ids of an answer."""
    events = engine.answer(request, plain)
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]
