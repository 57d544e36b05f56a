"""Plays whole answers of a stack with two levels by chance, on a clock of its own and without any model.

Every stack decodes the same text: how easy each token is, and which matches lookup finds, belongs to the text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from support.chances import Nobody
from triforce_chat.engine.speculation.arm import LEVEL_HOPE, Arm, Drafter
from triforce_chat.engine.speculation.cost_model import (
    GPU_FURTHER_PRIOR,
    GPU_ROW_PRIOR,
    LEVEL_GUESS,
    ROW_PRIOR,
)
from triforce_chat.engine.speculation.lookup import ORDERS, PRIOR, NgramLookup
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.rounds_ahead import several
from triforce_chat.engine.speculation.speculative import remaining
from triforce_chat.engine.speculation.stacks import MOST_DRAFT_GAMMA, MOST_GAMMA

HISTORY = 100_000  # tokens
WARM_UP, ANSWER = 32, 256  # tokens
NOISE = 0.02  # share of a step's time
NEW_MATCH = (0.1, 0.25, 0.3, 0.2, 0.08, 0.04, 0.015, 0.005, 0.01)  # how often a new match is so long
STACKS = ("plain", "lookup", "naive", "triforce")


class Machine(NamedTuple):
    """What a model's steps take on a machine, in seconds."""

    step: float  # a verification of one row that is waited for
    row: float  # each further row
    gap: float  # between two rounds
    ahead: (
        float  # a token that is decoded while the host reads the one before it; 0: every round is waited for
    )
    middle: float  # a step of the middle level
    middle_row: float
    drafted: float  # a token of the draft model below the middle level
    drafted_above: float  # the same for the target
    launch: float = 0.0  # the device idles for so long before the middle level's proposal
    build: float = 0.0  # of the retrieval cache
    stride: int = 128  # tokens between builds
    jump: float = 0.0  # a verification of several rows beside its rows
    draft: float = 0.0  # a draft of the draft model beside its tokens
    missed: float = 0.0  # the same in addition, where it has to read what others have drafted


class Kind(NamedTuple):
    """How well a text can be foretold: chances that tokens are right, in its easy and its hard parts."""

    draft: tuple[float, float]  # of the first drafted token
    middle: tuple[float, float]
    easy: float = 0.5  # share of the easy parts
    run: float = 12.0  # tokens of an easy part, on average
    fade: float = 0.97  # chance of each further token of a draft, as a share of that of the one before it
    trust: float = 0.3  # matches come true as often as lookup's prior says, times this
    copied: float = 0.0  # share of what repeats something from before, in runs of 40 tokens


class Text:
    """What happens at each place of a text of that kind."""

    def __init__(self, kind: Kind, seed: int, tokens: int = 2 * (WARM_UP + ANSWER)) -> None:
        luck, self.kind = random.Random(seed), kind
        self.easy, self.matches = list[bool](), list[tuple[int, int]]()
        easy, length, right = luck.random() < kind.easy, 0, 0
        for _ in range(tokens):
            change = 1 / kind.run if easy else kind.easy / max(1e-9, 1 - kind.easy) / kind.run
            easy = easy if luck.random() >= change else not easy
            if right:
                length, right = min(length + 1, ORDERS), right - 1
            elif luck.random() < kind.copied / 40 / max(0.02, 1 - kind.copied):
                length, right = 3, 40
            else:
                length, right = luck.choices(range(len(NEW_MATCH)), NEW_MATCH)[0], 0
                while length and luck.random() < kind.trust * PRIOR[min(length + right, ORDERS)]:
                    right += 1
            self.easy.append(easy)
            self.matches.append((length, right))

    def draft(self, place: int, behind: int) -> float:
        """The chance of the draft model's token for a place, that many tokens into its draft."""
        copied = self.matches[place][1] > 3
        right = max(self.kind.draft[not self.easy[place]], 0.9 if copied else 0.0)
        return right * self.kind.fade**behind

    def middle(self, place: int) -> float:
        return self.kind.middle[not self.easy[place]]


@dataclass
class Hierarchy:
    """Answers of one stack, one after another; what its planners learn lasts."""

    machine: Machine
    name: str
    seed: int = 0
    clock: float = 0.0
    rounds: list[tuple[str, int, int]] = field(default_factory=list)  # (drafter, drafted, accepted)

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)
        self.restack()

    # Its planners

    def restack(self) -> None:
        """New planners, without anything learnt."""
        gpu = self.machine.ahead > 0
        self.gpu, row = gpu, GPU_ROW_PRIOR if gpu else ROW_PRIOR
        machine, plain = self.machine, self.machine.ahead or self.machine.step
        nobody = cast("Drafter", Nobody())
        self.level = Arm(
            nobody,
            forecast=lambda length: machine.middle / plain / self.middle.expected_gain(length),
            hope=LEVEL_HOPE,
            pace=lambda: self.middle.expected_pace,
            spent=lambda: self.middle.spent,
            guess=LEVEL_GUESS,
        )
        further = GPU_FURTHER_PRIOR if gpu else 1.0
        self.model = Arm(nobody, forecast=lambda _: machine.drafted_above / plain, further=further)
        below = Arm(nobody, forecast=lambda _: machine.drafted / machine.middle, further=further)
        if self.name == "auto":
            self.model.pair_with(below)
        self.middle = Planner([below], NgramLookup(), most=MOST_DRAFT_GAMMA, row=row)
        made: dict[str, tuple[list[Arm], NgramLookup | None, bool]] = {
            "auto": ([self.level, self.model], NgramLookup(), True),
            "triforce": ([self.level], None, False),
            "naive": ([self.model], None, False),
            "lookup": ([], NgramLookup(), True),
            "plain": ([], None, True),
        }
        arms, lookup, plainly = made[self.name]
        self.planner = Planner(arms, lookup, most=MOST_GAMMA, plain=plainly, row=row)
        self.planner.overlaps = gpu and plainly

    def reopen(self) -> None:
        """New planners that go on from what the last ones have learnt, as in a new process."""
        known = [(each.known_times, each.known_acceptance) for each in (self.planner, self.middle)]
        self.restack()
        for planner, (times, acceptance) in zip((self.planner, self.middle), known, strict=True):
            if times.known:
                planner.use_times(times)
            planner.use_acceptance(acceptance)

    # An answer

    def answer(self, text: Text, tokens: int, start: int = 0) -> float:
        """Seconds per token of an answer that is the text from ``start`` on."""
        began, self.text, self.at = self.clock, text, start
        self.cached, self.built = start, start - 2 * self.machine.stride
        end = start + tokens
        for planner in (self.planner, self.middle):
            planner.another_text()
        self.planner.times.in_a_row = 0
        self.planner.investment.begin(tokens)
        while self.at < end:
            self.planner.renew(end - self.at)
            match = self._matched(self.planner, self.at)
            plan = self.planner.choose(HISTORY + self.at, end - self.at - 1, match)
            self.at += (
                self._undrafted(match) if plan.plain and self.planner.overlaps else self._round(plan, match)
            )
        return (self.clock - began) / (self.at - start)

    def _matched(self, planner: Planner, place: int) -> int:
        return self.text.matches[place][0] if planner.lookup is not None else 0

    def _noisy(self, seconds: float) -> float:
        seconds *= 1 + NOISE * self.luck.uniform(-1, 1)
        self.clock += seconds
        return seconds

    def _undrafted(self, match: int) -> int:
        ahead = self.planner.times.in_a_row > 0
        machine = self.machine
        self.planner.learn_plain(self._noisy(machine.ahead if ahead else machine.step + machine.gap))
        self._learn_match(self.planner, self.at, match, 1)
        self.rounds.append(("plain", 0, 0))
        return 1

    def _round(self, plan: Plan, match: int) -> int:
        self.planner.times.add_gap(self._noisy(self.machine.gap))
        drafted, drafting, accepted, who = 0, 0.0, 0, "plain"
        if plan.arm is None and plan.n:
            drafted, accepted, who = plan.n, min(plan.n, self.text.matches[self.at][1]), "lookup"
        elif plan.arm is not None:
            if plan.trial:
                plan.arm.tried()
            if plan.n and plan.arm is self.level:
                drafted, drafting, accepted = self._proposed(plan.n)
                who = "level"
            elif plan.n:
                drafted, who = plan.n, "model"
                missed = self.machine.missed if self.cached < self.at else 0.0
                drafting = self._noisy(missed + self.machine.draft + self.machine.drafted_above * plan.n)
                accepted = self._drafted(self.at, plan.n)
        jump = self.machine.jump if drafted else 0.0
        verifying = self._noisy(self.machine.step + jump + self.machine.row * drafted)
        self.planner.learn(plan, match, drafted, accepted, drafting, verifying)
        self._learn_match(self.planner, self.at, match, accepted + 1)
        if who == "model":
            self.cached = self.at + accepted + 1
        self.rounds.append((who, drafted, accepted))
        return accepted + 1

    def _drafted(self, place: int, n: int) -> int:
        """How many of the draft model's tokens are right."""
        accepted = 0
        while accepted < n and self.luck.random() < self.text.draft(place + accepted, accepted):
            accepted += 1
        return accepted

    def _learn_match(self, planner: Planner, place: int, match: int, tested: int) -> None:
        if planner.lookup is not None and match:
            planner.lookup.learn(match, min(self.text.matches[place][1], tested), tested)

    # The middle level

    def _proposed(self, n: int) -> tuple[int, float, int]:
        """(drafted tokens, seconds, accepted ones) of the middle level's proposal."""
        began, machine = self.clock, self.machine
        self._noisy(machine.launch)
        if self.at - self.built >= machine.stride:
            self._noisy(machine.build)
            self.built = self.at
        made = min(*self._several(n)) if self.gpu else self._one_by_one(n)
        accepted = 0
        while accepted < made and self.luck.random() < self.text.middle(self.at + accepted):
            accepted += 1
        return made, self.clock - began, accepted

    def _several(self, n: int) -> tuple[int, int]:
        """(tokens made, most that remain) by rounds that do not wait for one another."""
        plan, place, lessons = several(self.middle, n, HISTORY + self.at), self.at, []
        for _ in range(plan.rounds):
            match = self._matched(self.middle, place)
            if match >= plan.threshold:
                accepted = min(plan.n, self.text.matches[place][1])
            else:
                accepted = self._drafted(place, plan.n)
            times = self._noisy(self.machine.drafted * plan.n), self._step(plan.n)
            lessons.append((match, accepted, *times, place))
            place += accepted + 1
        for match, accepted, drafting, verifying, where in lessons:
            self.middle.learn_unwaited(plan, match, accepted, drafting, verifying)
            self._learn_match(self.middle, where, match, accepted + 1)
        return place - self.at, remaining(plan, n)

    def _one_by_one(self, n: int) -> int:
        place = self.at
        while place - self.at < n:
            match = self._matched(self.middle, place)
            plan = self.middle.choose(HISTORY + place, MOST_DRAFT_GAMMA, match)
            drafting, accepted = 0.0, 0
            if plan.arm is not None:
                if plan.trial:
                    plan.arm.tried()
                drafting = self._noisy(self.machine.drafted * plan.n)
                accepted = self._drafted(place, plan.n)
            elif plan.n:
                accepted = min(plan.n, self.text.matches[place][1])
            self.middle.learn(plan, match, plan.n, accepted, drafting, self._step(plan.n))
            self._learn_match(self.middle, place, match, accepted + 1)
            place += accepted + 1
        return place - self.at

    def _step(self, drafted: int) -> float:
        return self._noisy(self.machine.middle + self.machine.middle_row * drafted)


def seconds_per_token(
    machine: Machine, name: str, kinds: Sequence[Kind], seed: int, warm_up: int = WARM_UP
) -> tuple[float, Hierarchy]:
    """Of an answer of the last kind, after answers of the others, each with a warm-up as a bench makes it."""
    stack = Hierarchy(machine, name, seed)
    for i, kind in enumerate(kinds):
        stack.reopen()
        text = Text(kind, 1000 * seed + i)
        if warm_up:
            stack.answer(text, warm_up)
        stack.rounds = []
        took = stack.answer(text, ANSWER, WARM_UP)
    return took, stack
