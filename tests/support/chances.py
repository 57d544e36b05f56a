"""Plays the rounds that a planner asks for by chance, on a clock of its own and without any model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from triforce_chat.engine.speculation.arm import HOPE, LEVEL_HOPE, Arm
from triforce_chat.engine.speculation.cost_model import GUESS, LEVEL_GUESS
from triforce_chat.engine.speculation.lookup import ORDERS, PRIOR
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner

LENGTHS = (
    0.1,
    0.25,
    0.3,
    0.2,
    0.08,
    0.04,
    0.015,
    0.005,
    0.01,
)  # how often a match is so long, in a fresh text
HISTORY = 100_000  # tokens
NOISE = 0.02  # share of a step's time
DISTURBANCE = 2.0


class Chance(NamedTuple):
    """A drafter: what a token costs, and how often it is right.

    One that is not ``built`` drafts nothing when it is asked for the first time. ``hope``: see ``Arm``.
    """

    cost: float  # seconds
    right: float
    built: bool = True
    hope: float = HOPE


class Nobody:
    """A drafter that is never asked for anything: its drafts are made up."""

    def judged(self, proposed: int, accepted: int) -> None:
        """It learns nothing."""


@dataclass
class Answering:
    """An answer whose rounds take ``step`` seconds, and ``row`` for each drafted token, with ``gap`` between two.

    ``ahead``: seconds of a token that is decoded while the host reads the one before it; 0 where every round is waited
    for. ``trust``: matches of lookup come true as often as its prior says, times this. ``prepared``: seconds that the
    first round which is waited for takes longer. ``disturbed``: so many rounds, the first ones, are measured
    ``DISTURBANCE`` times as slow as they are.
    """

    planner: Planner
    chances: Sequence[Chance]
    step: float
    row: float = 0.0
    gap: float = 0.0
    ahead: float = 0.0
    trust: float = 1.0
    seed: int = 0
    prepared: float = 0.0
    disturbed: int = 0
    seconds: float = 0.0
    made: int = 0
    drafted: list[tuple[int, int]] = field(
        default_factory=list
    )  # (place of the arm, tokens asked for) in drafts

    def run(self, tokens: int) -> float:
        """Seconds per token."""
        self.luck, self.unbuilt = random.Random(self.seed), [not chance.built for chance in self.chances]
        self.planner.overlaps = self.ahead > 0
        self.planner.investment.begin(tokens)
        self.match, self.right = self._found()
        while self.made < tokens:
            self.planner.renew(tokens - self.made)
            plan = self.planner.choose(HISTORY + self.made, tokens - self.made - 1, self.match)
            self.made += self._undrafted() if plan.plain and self.ahead else self._drafted(plan)
            self.match, self.right = self._found()
        return self.seconds / self.made

    def _found(self) -> tuple[int, int]:
        """The length of the next match, and how many of its tokens come true."""
        if self.planner.lookup is None or not self.trust:
            return 0, 0
        length = self.luck.choices(range(len(LENGTHS)), LENGTHS)[0]
        right = 0
        while length and right < 40 and self.luck.random() < self.trust * PRIOR[min(length + right, ORDERS)]:
            right += 1
        return length, right

    def _undrafted(self) -> int:
        seconds = self.ahead if self.planner.times.in_a_row else self.step + self.gap
        self.planner.learn_plain(seconds * self._slowness())
        self.seconds += seconds
        self._learn_match(1)
        return 1

    def _drafted(self, plan: Plan) -> int:
        self.planner.times.add_gap(self.gap)
        n, drafting, accepted = self._draft(plan)
        verifying = (self.step + self.row * n) * (1 + NOISE * self.luck.uniform(-1, 1))
        verifying += self.prepared
        self.prepared = 0.0
        slowness = self._slowness()
        self.planner.learn(plan, self.match, n, accepted, drafting * slowness, verifying * slowness)
        self.seconds += drafting + verifying + self.gap
        self._learn_match(accepted + 1)
        return accepted + 1

    def _slowness(self) -> float:
        """How many times as slow as it is a round is measured."""
        self.disturbed -= 1
        return DISTURBANCE if self.disturbed >= 0 else 1.0

    def _draft(self, plan: Plan) -> tuple[int, float, int]:
        """(tokens, seconds, accepted ones)."""
        if plan.arm is None:
            return plan.n, 0.0, min(plan.n, self.right)
        if plan.trial:
            plan.arm.tried()
        place, accepted = self.planner.arms.index(plan.arm), 0
        if plan.n:
            self.drafted.append((place, plan.n))
        if self.unbuilt[place]:
            self.unbuilt[place] = False
            return 0, 0.0, 0
        while accepted < plan.n and self.luck.random() < self.chances[place].right:
            accepted += 1
        return plan.n, plan.n * self.chances[place].cost, accepted

    def _learn_match(self, tested: int) -> None:
        if self.planner.lookup is not None and self.match:
            self.planner.lookup.learn(self.match, min(self.right, tested), tested)


def arms_of(chances: Sequence[Chance], plain: float = 0.0) -> list[Arm]:
    """Their arms; with the time of a token of plain decoding the costs are forecast."""
    shares = [chance.cost / plain if plain else 0.0 for chance in chances]
    guesses = [LEVEL_GUESS if chance.hope == LEVEL_HOPE else GUESS for chance in chances]
    return [
        Arm(Nobody(), forecast=lambda _, share=share: share, hope=chance.hope, guess=guess)  # type: ignore[arg-type,misc]
        for chance, share, guess in zip(chances, shares, guesses, strict=True)
    ]
