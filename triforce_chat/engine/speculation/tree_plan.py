"""Plans the shape of the trees that a draft model drafts, by what was measured while decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triforce_chat.engine.cuda_graph import TREE_SIZES, Preparation
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.calibration import FORGET
from triforce_chat.engine.speculation.cost_model import Average
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.stack_specs import MAX_DEPTH, MAX_TREE
from triforce_chat.engine.speculation.tree_draft import grow
from triforce_chat.engine.speculation.tree_graph import TreeGraphs
from triforce_chat.engine.speculation.tree_shapes import (
    Rates,
    best_shape,
    expected_accepted,
    sequences,
    tables,
)
from triforce_chat.engine.tree import ROOT, Parents, children, levels

# How often a small draft's first, second, ... child is the one accepted: a starting point, which every verification
# updates.
PRIOR = (0.55, 0.12, 0.06, 0.03, 0.02, 0.015, 0.01, 0.008)
PRIOR_WEIGHT = 10.0  # tests that it counts for
FORGET_RANK = 0.995  # weight of the past at each test of a child
REFRESH = 32  # verifications after which a shape is planned anew, at the latest: planning takes a while
DIGITS = 3  # of a rate
CHANGE = 1.02  # another shape must promise this many times more tokens than the latest one


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """What trees a stack drafts; sizes in tokens."""

    kind: str  # "sequoia", "specinfer" or "auto"
    size: int | None = None  # of a tree; None: the usual one, or planned where the kind is "auto"
    depth: int | None = (
        None  # tokens on its longest path; None: planned, or the usual one where a seed forbids that
    )

    @property
    def most(self) -> int:
        """The largest tree."""
        return self.size or (LARGEST_PLANNED if self.kind == "auto" else USUAL_SIZE)


USUAL_SIZE, USUAL_DEPTH = 16, 6
LARGEST_PLANNED = 32


@dataclass(slots=True)
class RankAcceptance:
    """How often a token's first, second, ... child is accepted once its elder siblings were rejected."""

    tests: list[Average] = field(default_factory=list)

    def __post_init__(self) -> None:
        left = 1.0
        for rate in PRIOR:
            chance = rate / left
            self.tests.append(Average(FORGET_RANK, PRIOR_WEIGHT, PRIOR_WEIGHT * chance))
            left -= rate

    def learn(self, parents: Parents, path: Sequence[int]) -> None:
        """Learn from a verification that accepted ``path``; nodes beyond ``parents`` are not the draft's own."""
        following = children(parents)
        for node, accepted in zip((ROOT, *path), (*path, None), strict=True):
            for rank, child in enumerate(following.get(node, ())[: len(self.tests)]):
                self.tests[rank].add(float(child == accepted))
                if child == accepted:
                    break

    @property
    def rates(self) -> Rates:
        """The chance that the child of each rank is the accepted one."""
        found, left = [], 1.0
        for test in self.tests:
            found.append(round(left * test.mean, DIGITS))
            left *= 1 - test.mean
        return tuple(found)


class TreePlan:
    """The trees of one level. ``fixed``: nothing may depend on what was measured, so that a seed repeats."""

    def __init__(self, options: TreeOptions, drafter: DraftModel, fixed: bool = False) -> None:
        self.options, self.drafter, self.fixed = options, drafter, fixed
        self.independent = options.kind == "specinfer"
        self.graphs = TreeGraphs(drafter, self.independent)
        self.restart()

    def restart(self) -> None:
        """Forget everything that was learnt."""
        self.ranks = RankAcceptance()
        self.level = Average(FORGET)  # seconds of drafting one level
        self.verifications = 0
        self.rates = self.ranks.rates  # that shapes are planned by
        self.chosen = 1, 1  # the latest size and depth
        self.latest: Parents = ()  # the latest shape, of at most ``within`` tokens
        self.within, self.due = 0, 0  # planned anew after so many verifications

    def draft(self, seq: TokenBuffer, parents: Parents, sampler: Sampler) -> Draft:
        """A tree of that shape after ``seq``."""
        if self.drafter.device_side:
            return self.graphs.draft(seq, parents, sampler)
        return grow(self.drafter, seq, parents, sampler, self.independent)

    def shape(self, most: int, first: float, more: float) -> Parents:
        """The next tree, of at most ``most`` tokens.

        ``first`` and ``more``: seconds of a round without a draft, and of verifying each drafted token; 0 if unknown.
        """
        most = min(most, self.options.most, MAX_TREE)
        if self.options.kind == "specinfer":
            length = min(self.options.depth or USUAL_DEPTH, most)
            return sequences(most // length, length)
        if most != self.within or self.verifications >= self.due:
            self.within, self.due = most, self.verifications + min(REFRESH, self.verifications)
            self.rates = self.ranks.rates
            self.latest = self._planned(most, first, more)
        return self.latest

    def _planned(self, most: int, first: float, more: float) -> Parents:
        depth = min(self.options.depth or MAX_DEPTH, most)
        found = tables(self.rates, most, depth)
        if self.fixed or not first or not self.level.weight:
            size, depth = min(most, USUAL_SIZE) if self.planned else most, min(depth, USUAL_DEPTH)
        else:
            size, depth = self._fastest(found.accepted, first, more)
        shape = best_shape(self.rates, size, depth, found)
        # Where the latest one is as large and promises nearly as much, it stays: graphs fit its levels.
        alike = len(self.latest) == len(shape) and levels(self.latest) == levels(shape)
        nearly = CHANGE * self.expected(self.latest) >= self.expected(shape)
        return self.latest if alike and nearly else shape

    def expected(self, parents: Parents) -> float:
        """The tokens of a tree that are expected to pass."""
        return expected_accepted(parents, self.rates)

    def unprepared(self, length: int, parents: Parents, sampler: Sampler) -> list[Preparation]:
        """What is to be captured before a tree of that shape can be drafted after ``length`` tokens."""
        return self.graphs.unprepared(parents, sampler, sampler.penalized_tokens(length))

    @property
    def planned(self) -> bool:
        """Whether the size is chosen by times."""
        return self.options.kind == "auto" and self.options.size is None

    def _fastest(self, accepted: Any, first: float, more: float) -> tuple[int, int]:
        """Size and depth with the most expected tokens per second (Sequoia, section 3.3), or the latest if as good."""
        depth, size = accepted.shape[0] - 1, accepted.shape[1] - 1
        ns, ds = np.arange(1, size + 1)[None], np.arange(1, depth + 1)[:, None]
        rates = (1 + accepted[1:, 1:]) / (first + more * ns + self.level.mean * ds)
        rates[:, [n not in self._sizes(size) for n in ns[0]]] = 0
        if self.options.depth is not None:
            rates[:-1] = 0
        d, n = np.unravel_index(int(rates.argmax()), rates.shape)
        latest_size, latest_depth = self.chosen
        if latest_size <= size and latest_depth <= depth:
            rate = rates[latest_depth - 1, latest_size - 1]
            if CHANGE * rate >= rates[d, n]:
                return self.chosen
        self.chosen = int(n) + 1, int(d) + 1
        return self.chosen

    def _sizes(self, most: int) -> Sequence[int]:
        """The sizes to choose from: where forwards are captured, those that fill one."""
        if not self.planned:
            return (most,)
        if not self.drafter.device_side:
            return range(1, most + 1)
        return [rows - 1 for rows in TREE_SIZES if 1 < rows <= most + 1]

    def learn(self, parents: Parents, path: Sequence[int], seconds: float | None) -> None:
        """Learn from a verification that accepted ``path``, and from the ``seconds`` that the draft took, if known."""
        if self.fixed:
            return
        self.ranks.learn(parents, path)
        if seconds is not None:
            self.level.add(seconds / levels(parents))
        self.verifications += 1
