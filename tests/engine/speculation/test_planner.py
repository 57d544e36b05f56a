"""The planner in worlds with a clock of their own, where the best plan can be computed."""

from __future__ import annotations

import itertools
import math
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clocked import CPU, WARM, Costly, FakeClock, clocked
from support.toys import ToyCache, Uncaptured
from torch import Tensor

from triforce_chat.engine.cuda_graph import USUAL_CAPTURE, Captures
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.events import Verified
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import HOPE, TRIALS, Arm, Drafter
from triforce_chat.engine.speculation.calibration import LevelTimes
from triforce_chat.engine.speculation.cost_model import (
    COMPUTED_ROW_PRIOR,
    GUESS,
    ROW_PRIOR,
    AcceptanceCurve,
    Average,
    StepTimes,
)
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.exploration import CHANCE, TRY_AFTER
from triforce_chat.engine.speculation.investment import SURE, Investment
from triforce_chat.engine.speculation.lookup import ORDERS, Match, NgramLookup, Tokens
from triforce_chat.engine.speculation.plan import Expected, Plan, Proposals, sizes
from triforce_chat.engine.speculation.planner import GAIN, HABIT, Planner
from triforce_chat.engine.speculation.rounds_ahead import RoundsRequest, agreed, rounds_together, several
from triforce_chat.engine.speculation.speculative import Speculative


class Tiring(Uncaptured):
    """A drafter whose tokens are right less often the further it runs ahead."""

    device_side = False

    def __init__(self, model: Costly, rights: Sequence[float]) -> None:
        self.model, self.rights = model, rights

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        self.model.clock.seconds += n * self.model.one
        rights = torch.tensor([self.rights[min(i, len(self.rights) - 1)] for i in range(n)])
        chosen = torch.tensor([int(self.model.luck.random() > right) for right in rights.tolist()])
        return Draft(chosen.long()[None], torch.stack([rights, 1 - rights], -1).view(1, n, 2))

    def rollback(self, length: int) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


@dataclass
class World:
    """A target with a planner below it, and the time between two rounds."""

    target: Costly
    arms: Sequence[Drafter]
    gap: float = 0.0
    least: int = 0
    gamma: int = 16
    made: list[tuple[Drafter | None, int, int]] = field(default_factory=list)  # (arm, asked, kept) of rounds

    def __post_init__(self) -> None:
        self.clock = self.target.clock
        self.planner = Planner([Arm(arm) for arm in self.arms], most=self.gamma, plain=self.least == 0)
        self.planner.most = self.gamma  # lookup may be added
        self.top = clocked("target", self.target, self.planner)
        self.seq = TokenBuffer.of([1], 6000, CPU)
        self.sampler = Sampler(WARM)

    def run(self, tokens: int) -> float:
        """Seconds per token."""
        began, before = self.clock.seconds, self.seq.known
        while self.seq.known < before + tokens:
            left = before + tokens - self.seq.known
            made, outcome = self.top.step(self.seq, self.sampler, left - 1)
            arm = made.plan.arm
            self.made.append((arm.drafter if arm else None, made.plan.n, len(outcome.ids)))
            self.clock.seconds += self.gap
        self.top.rollback(self.seq.known - 1)
        return (self.clock.seconds - began) / tokens

    @property
    def plain(self) -> float:
        return self.target.seconds(1) + self.gap

    def best(self, cost: float, chances: Sequence[float]) -> float:
        """Seconds per token of the best number of tokens to draft, or of none."""
        return min(self.of([n], cost, chances) for n in sizes(self.least, self.gamma))

    def of(self, asked: Sequence[int], cost: float, chances: Sequence[float]) -> float:
        """Seconds per token that rounds of so many tokens are worth: luck is none of the planner's."""
        seconds = sum(n * cost + self.target.seconds(n + 1) + self.gap for n in asked)
        passing: list[float] = [0.0, *itertools.accumulate(itertools.accumulate(chances, operator.mul))]
        return seconds / sum(1 + passing[n] for n in asked)

    def worth(self, tokens: int, cost: float, chances: Sequence[float]) -> float:
        """The same of what the planner asks for in so many more tokens."""
        first = len(self.made)
        self.run(tokens)
        return self.of([n for _, n, _ in self.made[first:]], cost, chances)


def drafter(model: Costly) -> DraftModel:
    return DraftModel(model, ToyCache())  # type: ignore[arg-type]


def world(right: float, cost: float, row: float = 0.04, gap: float = 0.002, **options: Any) -> World:
    """A target of 0.1 s a step, over a draft that costs and knows so much."""
    clock = FakeClock()
    target = Costly(clock, 0.1, 0.1 * row, noise=0.05)
    draft = drafter(Costly(clock, cost, right=right))
    return World(target, [draft], gap, **options)


RATES = [0.0, 0.3, 0.6, 0.8, 0.9, 0.97]
COSTS = [0.001, 0.01, 0.03, 0.09]


@pytest.mark.parametrize("row", [0.0, 0.04, 0.3])
@pytest.mark.parametrize("cost", COSTS)
def test_it_finds_the_best_number_of_tokens(cost: float, row: float) -> None:
    """Within five per cent on average; a habit alone may stand five per cent below the best."""
    shares = []
    for right in RATES:
        here, chances = world(right, cost, row), [right] * 16
        here.run(150)
        shares.append(here.best(cost, chances) / here.worth(400, cost, chances))
    assert min(shares) > 0.92
    assert sum(shares) / len(shares) > 0.95


@pytest.mark.parametrize("row", [0.04, 0.3])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("right", RATES)
def test_short_answers_are_hardly_slower_than_plain_ones(right: float, cost: float, row: float) -> None:
    """With all trials in them."""
    here = world(right, cost, row)
    assert here.run(256) < here.plain / 0.97


@pytest.mark.parametrize("right", [0.3, 0.9])
@pytest.mark.parametrize(("cost", "row", "gap"), [(0.001, 0.3, 0.0), (0.01, 0.04, 0.03), (0.03, 0.04, 0.0)])
def test_what_is_expected_is_what_comes(right: float, cost: float, row: float, gap: float) -> None:
    took = expected = 0.0
    for seed in range(4):
        here = world(right, cost, row, gap)
        here.sampler = Sampler(Sampling(temperature=1.0, seed=seed))
        took += 1000 * here.run(256)
        expected += here.planner.expected.since(Expected(0.0, 0.0)) or 0.0
    assert expected == pytest.approx(took, rel=0.1)


def test_two_hopeless_arms_cost_little() -> None:
    clock = FakeClock()
    arms = [drafter(Costly(clock, 0.09, right=0.1)) for _ in range(2)]
    here = World(Costly(clock, 0.1, 0.02), arms)
    assert here.run(256) < here.plain / 0.95
    assert here.run(256) < here.plain / 0.99  # they are left alone


def test_it_adapts_when_acceptance_changes() -> None:
    here = world(0.9, 0.005)
    draft = here.arms[0].model  # type: ignore[attr-defined]
    for right, tokens in ((0.9, 300), (0.2, 150), (0.9, 400)):
        draft.right = right
        here.run(tokens)
        chances = [right] * 16
        assert here.worth(300, 0.005, chances) < here.best(0.005, chances) / 0.95


def test_acceptance_that_falls_along_a_draft() -> None:
    clock = FakeClock()
    rights = [0.95, 0.9, 0.8, 0.5, 0.2, 0.1]
    target = Costly(clock, 0.1, 0.004)
    here = World(target, [Tiring(Costly(clock, 0.004), rights)], 0.002)
    here.run(200)
    chances = [*rights, *[0.1] * 10]
    assert here.worth(400, 0.004, chances) < here.best(0.004, chances) / 0.95


def test_what_lies_between_two_rounds_is_a_cost_of_each() -> None:
    """The longer it takes, the more a token saved is worth."""
    asked = []
    for gap in (0.0, 0.2):
        here = world(0.85, 0.03, gap=gap)
        here.run(500)
        assert here.planner.times.gap.mean == pytest.approx(gap)
        asked.append(max(n for _, n, _ in here.made[-40:]))
    assert asked[1] > asked[0]


def test_a_pause_between_two_answers_teaches_nothing() -> None:
    here = world(0.8, 0.01)
    here.run(100)
    gap = here.planner.times.gap.mean
    here.clock.seconds += 3600
    here.run(1)
    assert here.planner.times.gap.mean == gap


def test_a_fixed_drafter_always_drafts() -> None:
    here = world(0.1, 0.09, least=1)
    here.run(60)
    assert all(n >= 1 for _, n, _ in here.made[:-1])
    good = world(0.9, 0.005, least=1)
    good.run(100)
    assert good.worth(300, 0.005, [0.9] * 16) < good.best(0.005, [0.9] * 16) / 0.95


def hierarchy(clock: FakeClock, middle: float, draft: float | None, gamma: int = 16) -> World:
    """A target of 0.1 s over a middle of 0.02 s, right so often, over a draft of 1 ms for the middle."""
    arms = [Arm(drafter(Costly(clock, 0.001, right=draft)))] if draft else []
    small = Costly(clock, 0.02, 0.0004, right=middle)
    level = clocked("retrieval", small, Planner(arms, most=8))
    return World(Costly(clock, 0.1, 0.002), [level], 0.001, gamma=gamma)


def test_a_hierarchy_plans_at_both_levels() -> None:
    """As fast as the best pair of fixed numbers."""
    best = min(fixed(n, below) for n, below in ((4, 2), (8, 2), (8, 3), (10, 2), (13, 3)))
    here = hierarchy(FakeClock(), 0.95, 0.5)
    here.run(300)
    assert here.run(1500) < best / 0.9


def fixed(n: int, below: int) -> float:
    clock = FakeClock()
    middle = Costly(clock, 0.02, 0.0004, right=0.95)
    small = drafter(Costly(clock, 0.001, right=0.5))
    level = clocked("retrieval", middle, Planner([Arm(small)], gamma=below, plain=False))
    here = World(Costly(clock, 0.1, 0.002), [], 0.001)
    here.top = clocked("target", here.target, Planner([Arm(level)], gamma=n, plain=False))
    return here.run(1500)


def test_a_middle_without_a_draft_tries_nothing() -> None:
    here = hierarchy(FakeClock(), 0.95, None)
    middle = here.arms[0]
    assert isinstance(middle, Speculative)
    here.run(200)
    assert middle.planner.choose(100, 8, 0).n == 0
    assert here.run(200) < 0.7 * here.plain


class Right(Match):
    """Goes on with the right token, wherever it was found."""

    __slots__ = ()

    def continued(self, ids: Tensor, n: int) -> Tensor:
        return ids.new_zeros(1, n)


class Foretelling(NgramLookup):
    """Foretells the right tokens and claims that each is right so often."""

    claim = 0.9

    def match(self, known: Tokens) -> Match:
        return Right(len(known), 0, 1)

    def survival(self, length: int, n: int) -> list[float]:  # noqa: ARG002
        return [self.claim**i for i in range(1, n + 1)]


def test_lookup_wins_where_it_foretells() -> None:
    """The draft model is as good and costs more."""
    here = world(0.95, 0.02)
    here.planner.lookup = Foretelling()
    here.run(200)
    assert sum(arm is None and n > 3 for arm, n, _ in here.made[-15:]) > 10


def test_lookup_is_not_believed_for_long() -> None:
    """Its record counts: forecasts that never come true lose against plain decoding."""
    here = World(Costly(FakeClock(), 0.1, 0.01, right=0.0), [])
    here.planner.lookup = Foretelling()
    took = here.run(200)
    assert took < here.plain / 0.9
    assert [n for _, n, _ in here.made[-20:]].count(0) > 15


def test_sizes_of_verifications_are_few() -> None:
    assert sizes(1, 16) == [1, 2, 3, 4, 5, 7, 9, 11, 15]
    assert sizes(0, 3) == [0, 1, 2, 3]
    assert sizes(1, 32)[-1] == 31
    here = world(0.9, 0.002)
    here.run(600)
    *rounds, _ = here.made  # the last one may draft all that the answer lacks
    assert {n for _, n, _ in rounds} <= set(sizes(0, 16))


# Its parts


def test_acceptance_by_position() -> None:
    curve = AcceptanceCurve()
    assert curve.chances(3) == pytest.approx([0.8, 0.64, 0.512])
    luck = random.Random(0)
    rights = [0.9, 0.7, 0.2]
    for _ in range(400):
        accepted = next((i for i, right in enumerate(rights) if luck.random() > right), 3)
        curve.learn(3, accepted)
    assert curve.chances(3) == pytest.approx([0.9, 0.63, 0.126], abs=0.12)
    assert curve.chances(0) == []


def test_what_was_not_tested_teaches_nothing() -> None:
    curve = AcceptanceCurve()
    curve.learn(4, 0)
    assert len(curve.positions) == 1
    curve.learn(0, 0)
    curve.learn(2, 2)
    assert [position.weight for position in curve.positions] == pytest.approx([1.975, 1])


class Counting(Uncaptured):
    """A drafter that only counts."""

    device_side = False

    def __init__(self) -> None:
        self.cuts: list[int] = []
        self.verdicts: list[tuple[int, int]] = []

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        return Draft(torch.zeros(1, n, dtype=torch.long), torch.ones(1, n, 1))

    def rollback(self, length: int) -> None:
        self.cuts.append(length)

    def judged(self, proposed: int, accepted: int) -> None:
        self.verdicts.append((proposed, accepted))


def steady(one: float = 0.1, row: float = 0.001) -> StepTimes:
    times = StepTimes()
    for i in range(300):
        times.add(1 + i % 9, one + row * (1 + i % 9))
    return times


def known(seconds: float, acceptance: float) -> Arm:
    """An arm of which everything is known."""
    arm = Arm(Counting(), trials=9, measured_at=1)
    arm.cost.add(seconds)
    arm.curve.overall = Average(1.0, 1e9, 1e9 * acceptance)
    return arm


class Claims(NgramLookup):
    """Claims that its tokens come with such chances."""

    def __init__(self, *chances: float) -> None:
        super().__init__()
        self.chances = chances

    def survival(self, length: int, n: int) -> list[float]:  # noqa: ARG002
        return [*self.chances, *[0.0] * n][:n]


def planner_of(*arms: Arm, times: StepTimes | None = None) -> Planner:
    planner = Planner(arms, NgramLookup(), most=8)
    planner.times.steps = times or steady()
    planner.rounds = 2
    return planner


def choose(planner: Planner, length: int, n: int, *chances: float) -> Plan:
    """What is chosen where lookup claims these chances."""
    planner.lookup = Claims(*chances)
    return planner._choose(length, n, int(bool(chances)))


def round_of(planner: Planner, drafted: int | None = None, accepted: int = 0, length: int = 9) -> Plan:
    """One waited round of at most eight tokens, as a level runs it: the plan, and its lesson."""
    plan = planner.choose(length, 8, 0)
    if plan.arm and plan.trial:
        plan.arm.tried()
    made = plan.n if drafted is None else drafted
    planner.learn(plan, 0, made, accepted, 0.0, planner.times.steps(1 + made) or 0.1)
    return plan


@settings(max_examples=80, deadline=None)
@given(st.floats(0.001, 1), st.floats(0, 0.1), st.integers(1, 8))
def test_hopeless_drafts_are_never_chosen(one: float, row: float, n: int) -> None:
    planner = planner_of(known(0.0, 0.0), times=steady(one, row))
    assert choose(planner, 100, n, *[0.0] * n).n == 0
    assert choose(planner, 100, n).n == 0


def test_the_best_modelled_rate_wins() -> None:
    slow, fast = known(0.05, 0.8), known(0.001, 0.8)
    planner = planner_of(slow, fast)
    chosen = choose(planner, 100, 8, 0.1)
    times = planner.times.steps
    rates = {
        (arm.cost.mean, n): sum(0.8**i for i in range(n + 1)) / (n * arm.cost.mean + times(1 + n))
        for arm in (slow, fast)
        for n in sizes(1, 8)
    }
    assert chosen.arm is fast
    assert chosen.rate == pytest.approx(max(rates.values()), rel=1e-6)
    assert rates[fast.cost.mean, chosen.n] == max(rates.values())
    sure = choose(planner, 100, 8, *[0.999**i for i in range(1, 9)])
    assert (sure.arm, sure.n) == (None, 7)


def test_the_last_choice_stands_until_another_is_clearly_better() -> None:
    one, other = known(0.010, 0.8), known(0.010, 0.8)
    planner = planner_of(one, other)
    assert choose(planner, 100, 8).arm is one
    one.cost.add(0.0105, 99)
    assert choose(planner, 100, 8).arm is one
    one.cost.add(0.02, 9999)
    assert choose(planner, 100, 8).arm is other


def test_a_gain_too_small_is_no_gain() -> None:
    planner = planner_of()
    plain = planner.times.steps(2) / planner.times.steps(
        1
    )  # survival at which one token just pays for its row
    for extra, n in ((0.5 * (GAIN - 1), 0), (2 * (GAIN - 1), 1)):
        assert choose(planner, 100, 4, plain * (1 + extra) - 1).n == n


def test_arms_get_their_first_trials_and_are_cut_back_together() -> None:
    low, high = Counting(), Counting()
    planner = planner_of(Arm(low), Arm(high, worth_above=1000))
    planner.rounds = 0
    drafted = [round_of(planner).n for _ in range(TRY_AFTER + 2)]
    assert drafted == [0] * TRY_AFTER + list(TRIALS)
    assert low.verdicts == [(n, 0) for n in TRIALS]
    assert high.verdicts == []
    level = clocked("x", Costly(FakeClock(), 0.1), planner)
    level.rollback(5)
    assert low.cuts == high.cuts == [5]


def test_an_arm_that_has_to_be_built_first_loses_no_trial() -> None:
    arm = Arm(Counting())
    planner = planner_of(arm)
    planner.rounds = TRY_AFTER
    asked = [round_of(planner, drafted=0).n, *(round_of(planner).n for _ in TRIALS)]
    assert asked == [TRIALS[0], *TRIALS]
    round_of(planner, drafted=0)  # not again
    assert arm.trials == len(TRIALS)


def test_an_arm_whose_trials_brought_nothing_gets_others() -> None:
    arm = Arm(Counting())
    planner = planner_of(arm)
    planner.rounds = TRY_AFTER
    asked = [round_of(planner, drafted=0).n for _ in range(200)]
    # The first is forgiven, two are used up, and then it is asked after 16, 32, 64 ... rounds.
    assert sum(n > 0 for n in asked) > 1 + len(TRIALS)
    while not arm.measured:
        round_of(planner)
    assert planner.rounds < 1000


def test_the_planner_waits_for_its_first_measurement() -> None:
    planner = planner_of(times=StepTimes())
    assert choose(planner, 100, 8, 0.9, 0.9).n == 0


def test_trials_in_vain_become_rare() -> None:
    """An arm that loses, if not by far, is tried again after 16, 32, 64 ... rounds; a plan alone is no trial."""
    arm = known(0.09, 0.8)
    planner, tried = planner_of(arm, times=steady(0.1, 0.01)), []
    for now in range(2, 300):
        planner.rounds = now - 2
        planner.choose(100, 7, 0)  # nobody runs it
        planner.rounds = now - 2
        plan = planner.choose(100, 8, 0)
        if plan.arm is arm:
            arm.tried()
            tried.append(planner.rounds)
            arm.measured_at = planner.rounds
    assert [b - a for a, b in itertools.pairwise([1, *tried])] == [17, 33, 65, 129]


def test_preparations_in_its_trials_are_forgiven() -> None:
    """Sizes that are captured at their first use make a good arm look hopeless; it gets another chance."""
    here = world(0.9, 0.005)
    draft = here.arms[0].model  # type: ignore[attr-defined]
    draft.one = 5.0
    while here.planner.arms[0].trials < len(TRIALS):
        here.run(2)
    draft.one = 0.005
    here.run(150)
    assert here.worth(200, 0.005, [0.9] * 16) < here.best(0.005, [0.9] * 16) / 0.9


def test_an_arm_learns_what_a_token_costs_and_how_many_come() -> None:
    arm = Arm(Counting())
    arm.learn_cost(9.0, 4, 4, now=3)  # it had to prepare itself
    arm.learn_cost(1.0, 4, 6, now=5)
    assert arm.cost.mean == pytest.approx(1 / 6)
    assert (arm.measured_at, arm.makes(4)) == (5, 5)
    arm.learn_cost(600.0, 4, 6, now=6)  # interrupted: counts as three times the usual
    assert arm.cost.mean == pytest.approx((0.9 / 6 + 3 / 6) / 1.9)


def test_the_expectation_of_a_round() -> None:
    planner = planner_of(known(0.002, 0.5), times=steady(0.020, 0.0))
    plan = choose(planner, 100, 1)
    before = planner.expected
    assert before.since(before) is None
    for accepted in (0, 1):  # whatever comes of it
        planner._expect(plan, 0, 1, accepted, 9.0, 9.0)
        assert planner.expected.since(before) == pytest.approx(22 / 1.5, rel=0.02)
        before = planner.expected


def test_a_fixed_gamma_is_no_choice() -> None:
    arm = Arm(Counting())
    planner = Planner([arm], gamma=3, plain=False)
    assert [planner.choose(9, most, 0).n for most in (8, 3, 2, 0)] == [3, 3, 2, 0]
    assert not planner.decides
    assert not Planner().decides
    assert Planner().choose(9, 0, 0).plain
    # Where drafts are captured, the last ones are as long as all others.
    assert [planner.choose(9, 8, 0, needed).n for needed in (8, 2, 1, 0)] == [3, 3, 3, 0]


def test_rounds_and_their_drafts_follow_the_acceptance() -> None:
    """Of rounds that nobody waits for."""
    plans = []
    for accepted in (3, 0):
        planner = Planner([Arm(Counting())], NgramLookup(), most=7)
        for _ in range(40):
            planner.learn_unwaited(Plan(3, planner.arms[0]), 0, accepted, 0.0006, 0.003)
        plans.append(several(planner, 12, 100))
    assert plans[0].n > plans[1].n == 1
    assert plans[0].rounds < plans[1].rounds
    assert all(plan.rounds * (plan.n + 1) >= 12 for plan in plans)


def test_long_proposals_have_more_room_and_a_round_to_spare() -> None:
    """Where the verification that lacks a token takes as long as hundreds of rounds."""
    made = {}
    for proposals in (Proposals(), Proposals(most=128, spare=1)):
        planner = Planner([Arm(Counting())], most=8)
        planner.proposals = proposals
        for turn in range(80):
            planner.learn_unwaited(Plan(3, planner.arms[0]), 0, turn % 4, 0.0006, 0.003)
        made[proposals.most] = [several(planner, n, 1000) for n in (6, 63)]
    assert made[64][1].rounds == 64 // (made[64][1].n + 1) <= 16
    assert made[128][1].rounds >= 63 / 2.6
    assert made[128][0].rounds == made[64][0].rounds + 1


def test_an_unwaited_round_teaches_who_drafted() -> None:
    planner = Planner([Arm(Counting())], NgramLookup(), most=4)
    plan, arm = Plan(4, planner.arms[0], threshold=3), planner.arms[0]
    planner.learn_unwaited(plan, 2, 2, 0.2, 0.8)
    assert planner.times.steps(5) == pytest.approx(0.8)
    assert arm.cost.mean == pytest.approx(0.05)
    planner.learn_unwaited(plan, 3, 4, 8.0, 1.0)
    assert arm.cost.mean == pytest.approx(0.15, rel=1e-3)  # something was prepared
    assert planner.blend.chances(4)[3] > arm.curve.chances(4)[3]  # that was lookup


@pytest.mark.parametrize(("right", "length"), [(0.99, 9), (0.5, 4), (0.0, 1)])
def test_lookup_replaces_the_draft_from_the_match_that_pays(right: float, length: int) -> None:
    planner = planner_of(known(0.001, right))
    planner.lookup = lookup = NgramLookup()
    threshold = planner.threshold(3)
    kept = sum(planner.arms[0].curve.chances(3))
    assert all(sum(lookup.survival(each, 3)) <= kept for each in range(1, threshold))
    assert threshold == 9 or sum(lookup.survival(threshold, 3)) > kept
    assert (threshold <= length) or right > 0.9


def invested(lacks: int, plain: bool = True) -> tuple[Planner, Captures]:
    """A planner that knows what plain decoding costs, 0.1 s, and has one arm that was never tried."""
    captures = Captures()
    planner = Planner([Arm(Counting())], most=8, plain=plain, investment=Investment(captures))
    planner.times.steps, planner.rounds = steady(), 10
    planner.lacking = lambda arm, n: lacks if arm and n else 0
    return planner, captures


def plan_of(planner: Planner, rest: int, made: int = 0) -> Plan:
    """The next plan of an answer of ``made`` tokens that may grow by ``rest``."""
    planner.investment.begin(made + rest)
    planner.renew(rest)
    return planner.choose(100, 8, 0)


@pytest.mark.parametrize(("rest", "expected"), [(20, 20), (400, SURE)])
def test_a_trial_waits_for_an_answer_that_pays_for_its_captures(rest: int, expected: int) -> None:
    """They are part of what it may lose: a quarter of what its drafter would win in the rest of the answer."""
    most = sum(plan_of(invested(lacks)[0], rest).trial for lacks in range(1, 60))
    planner = invested(0)[0]
    hoped = max(
        planner.rates(planner.arms[0], 8, (0.0, 0.0), AcceptanceCurve(GUESS._replace(rate=HOPE))).values()
    )
    won = expected * (steady()(1) - 1 / hoped)
    assert CHANCE * won - 2 * steady()(1) < most * USUAL_CAPTURE < CHANCE * won
    assert plan_of(invested(most)[0], rest).trial
    assert plan_of(invested(most + 1)[0], rest).plain
    assert plan_of(invested(0)[0], 4).plain  # too little is left to win back what it may lose


@pytest.mark.parametrize("length", [ORDERS - 1, ORDERS])
def test_lookup_gets_captures_where_the_answer_quotes_long_passages(length: int) -> None:
    """Of shorter matches most fail."""
    planner = Planner([], NgramLookup(), most=8, investment=Investment(Captures()))
    planner.times.steps, planner.lacking = steady(), lambda arm, n: 10 if n else 0  # noqa: ARG005
    planner.investment.begin(1000)
    planner.investment.earned, drafted = 100.0, []
    for rest in range(1000, 990, -1):
        planner.renew(rest)
        drafted.append(planner.choose(100, 8, length).n > 0)
    needed = math.ceil(10 * USUAL_CAPTURE / steady().one_row)
    assert drafted == [length == ORDERS and tokens >= needed for tokens in range(1, 11)]


def test_where_a_draft_must_be_made_nothing_keeps_it_from_its_captures() -> None:
    assert plan_of(invested(10_000, plain=False)[0], 4).trial


def test_a_size_that_is_not_captured_gives_way_to_one_that_is() -> None:
    for plain in (True, False):
        planner, _ = invested(0, plain)
        planner.arms = [known(0.0001, 0.95)]
        free = plan_of(planner, 10)
        planner.lacking = lambda arm, n: 0 if n in (0, 2) else 100  # noqa: ARG005
        assert (free.n, plan_of(planner, 10).n) == (7, 2)
        assert plan_of(planner, 10_000).n == 2  # it may end soon
        assert plan_of(planner, 10_000, made=1000).n == free.n
        planner.lacking = lambda arm, n: 100 if n else 0  # noqa: ARG005
        assert plan_of(planner, 10).n == (0 if plain else free.n)


@pytest.mark.parametrize("plain", [True, False])
def test_a_draft_longer_than_the_rest_of_an_answer_gives_way_to_no_capture(plain: bool) -> None:
    planner, _ = invested(0, plain)
    planner.arms = [known(0.0001, 0.95)]
    planner.investment.begin(6)
    planner.renew(6)
    assert planner.choose(100, 8, 0, 5).n == 5  # what is left over costs a little
    planner.lacking = lambda arm, n: 0 if n in (0, 7) else 100  # noqa: ARG005
    planner.investment.begin(6)
    assert planner.choose(100, 8, 0, 5).n == 7
    assert planner.choose(100, 8, 0, 0).n == 0


def test_only_the_tokens_that_an_answer_lacks_are_worth_something() -> None:
    planner, _ = invested(0)
    arm = known(0.0001, 0.95)
    all_, some = (planner.rates(arm, 7, arm.line, arm.curve, needed=needed) for needed in (8, 3))
    assert all(some[n] == all_[n] for n in (1, 2, 3))
    assert some[3] > some[4] > some[7]
    assert all_[3] < all_[4] < all_[7]


@pytest.mark.parametrize("rest", [40, 100, 400])
def test_captures_must_save_more_time_than_they_take(rest: int) -> None:
    planner, _ = invested(0)
    planner.arms = [known(0.0001, 0.95)]
    free = plan_of(planner, rest)
    planner.lacking = lambda arm, n: 0 if n in (0, 2) else 10_000  # noqa: ARG005
    ready = plan_of(planner, rest)
    assert (free.n, ready.n) == (7, 2)
    saved = 1 / (ready.rate * HABIT) - 1 / free.rate
    worth = int(min(rest, SURE) * saved / USUAL_CAPTURE)
    planner.investment.earned = 100.0
    for lacks, n in ((worth, free.n), (worth + 1, ready.n)):
        planner.lacking = lambda arm, n, lacks=lacks: 0 if n in (0, 2) else lacks  # type: ignore[misc]  # noqa: ARG005
        planner.habit = ready
        assert plan_of(planner, rest).n == n


def test_captures_get_a_share_of_the_time_at_the_present_pace() -> None:
    planner, _ = invested(0)
    plan_of(planner, 100)
    assert planner.investment.rest_seconds == pytest.approx(SURE * steady().one_row)
    planner.habit = Plan(4, planner.arms[0], rate=50.0)
    plan_of(planner, 100)
    assert planner.investment.rest_seconds == pytest.approx(SURE / 50)


def test_several_rounds_take_a_captured_size_if_the_answer_cannot_pay() -> None:
    planner, _ = invested(0)
    planner.arms = [known(0.0001, 0.95)]
    free = several(planner, 8, 100).n
    planner.lacking = lambda arm, n: 0 if n == 2 else 3  # noqa: ARG005
    planner.investment.begin(100)
    assert (free, several(planner, 8, 100).n) == (7, 2)
    plan_of(planner, 1000, made=100)
    assert several(planner, 8, 100).n == free


def test_captures_are_paid_for_by_all_answers_so_far() -> None:
    captures = Captures()
    here = Investment(captures)

    def allowed(rest: int) -> int:
        here.renew(rest, 0.1)
        return next(n for n in range(10_000) if not here.allows(n, math.inf)) - 1

    here.begin(80)
    assert allowed(80) == 40  # a quarter of the 3.2 s that 32 tokens take
    for _ in range(30):
        captures.add(USUAL_CAPTURE)
    assert allowed(80) == 10
    assert allowed(40) == pytest.approx(70, abs=1)  # 40 tokens were decoded, and as many are expected
    assert allowed(1) == 5  # no more than the rest of the answer lasts
    for _ in range(30):
        captures.add(USUAL_CAPTURE)  # during the next prefill, where it costs nothing
    here.begin(80)
    assert allowed(80) == pytest.approx(40 + 69, abs=1)  # what was earned is left for later answers
    captures.add(60.0)  # a kernel was compiled
    assert captures.mean < 0.03


def test_a_round_with_a_capture_teaches_no_times() -> None:
    planner, _ = invested(0)
    arm, before = planner.arms[0], planner.times.steps(1)
    for timed in (False, True):
        plan = plan_of(planner, 100)
        assert plan.trial
        arm.tried()
        planner.learn(plan, 0, 1, 1, 5.0, 5.0, timed)
        assert arm.measured == timed
        assert arm.trials == int(timed)
        assert (planner.times.steps(1) == before) != timed
    planner.learn_unwaited(Plan(2, arm), 0, 2, 9.0, 9.0, False)
    assert arm.cost.mean == 5.0
    assert arm.curve.positions[1].weight > 0  # what it accepted counts


@pytest.mark.parametrize(("length", "n"), [(1, 0), (2, 1), (8, 5)])
def test_before_anything_is_measured_few_tokens_are_looked_up_where_rows_are_dear(
    length: int, n: int
) -> None:
    dear, cheap = (Planner([], NgramLookup(), most=16, row=row) for row in (COMPUTED_ROW_PRIOR, ROW_PRIOR))
    for planner in (dear, cheap):
        planner.times.steps.add(1, 0.03)
    assert dear.choose(100, 16, length).n <= n < cheap.choose(100, 16, length).n


def test_a_text_without_repetitions_costs_little_more_than_plain_decoding() -> None:
    """Where every match misleads and a row costs what it does on a CPU: 64 tokens, from nothing known."""
    planner, seconds = Planner([], NgramLookup(), most=16, row=COMPUTED_ROW_PRIOR), 0.0
    assert planner.lookup
    for made in range(64):
        match = made * made % 5  # 0, 1 or 4 tokens
        plan = planner.choose(100, 16, match)
        spent = 1 + COMPUTED_ROW_PRIOR * plan.n
        planner.learn(plan, match, plan.n, 0, 0.0, spent)
        planner.lookup.learn(match, 0, plan.n)
        seconds += spent
    assert seconds < 1.05 * 64


def met(accepted: int, steps: float = 1.0) -> Planner:
    """A middle level whose drafts of four have so many right tokens, and whose steps take so many seconds."""
    planner = Planner([Arm(Tiring(Costly(FakeClock(), 0.01), [1.0]))], most=8)
    for _ in range(200):
        planner.learn_unwaited(Plan(4, planner.arms[0]), 0, accepted, 0.04, steps)
    return planner


def test_sequences_make_as_many_rounds_as_each_other_by_what_they_make_on_average() -> None:
    good, bad = met(4), met(0)
    alone = [several(each, 8, 100) for each in (good, bad)]
    assert alone[0].rounds < alone[1].rounds
    made = rounds_together([RoundsRequest(each, 8, 100) for each in (good, bad, bad)])
    assert len(set(made)) == 1
    drafted, rounds = made[0]
    assert alone[0].rounds < rounds < alone[1].rounds
    assert agreed(good, drafted, rounds).arm is good.arms[0]
    assert agreed(bad, drafted, rounds).arm is bad.arms[0]
    assert rounds_together([RoundsRequest(good, 8, 100)]) == [(alone[0].n, alone[0].rounds)]
    short, _ = rounds_together([RoundsRequest(good, 8, 100), RoundsRequest(good, 8, 3)])[0]
    assert short <= 2  # the draft model has no more tokens to begin from there


def test_who_has_measured_nothing_yet_does_not_decide_for_the_others() -> None:
    known = met(2)
    drafted, _ = rounds_together([RoundsRequest(known, 8, 100)])[0]
    newcomer = Planner([Arm(known.arms[0].drafter)], most=8)
    newcomer.blend = known.blend
    assert not newcomer.times.steps.known
    assert rounds_together([RoundsRequest(known, 8, 100), RoundsRequest(newcomer, 8, 100)])[0][0] == drafted


def test_with_fixed_lengths_or_a_seed_nothing_depends_on_other_sequences() -> None:
    assert met(2).plans_together
    assert not Planner(gamma=4, most=8).plans_together
    assert not Planner(most=8, investment=Investment(Captures(), unlimited=True)).plans_together


# What plain decoding takes today


def stored(seconds: float, undrafted: float, *, fixed: bool) -> Planner:
    """A planner that begins with steps of so many seconds, and tokens decoded ahead of the host."""
    planner = Planner([Arm(Counting())], most=8)
    times = LevelTimes(steady(seconds, 0.0), Average(0.9), Average(0.9, 4.0, 4 * undrafted), (Average(0.9),))
    planner.use_times(times.fixed() if fixed else times.copy())
    return planner


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("now", [0.05, 0.2])
def test_a_token_without_a_draft_says_what_plain_decoding_takes(fixed: bool, ahead: bool, now: float) -> None:
    """Whatever was stored, and also where plans go by that alone."""
    planner = stored(0.1, 0.1, fixed=fixed)
    for _ in range(3):
        if ahead:
            planner.learn_plain(now)
        else:
            planner.learn(Plan(0), 0, 0, 0, 0.0, now)
        assert planner.current_plain.seconds(planner.times) == pytest.approx(now)
    assert planner.current_plain.measured
    if fixed:
        assert planner.times.plain_seconds == pytest.approx(0.1)
    planner.use_times(stored(0.3, 0.3, fixed=fixed).known_times)  # after another context
    assert planner.current_plain.seconds(planner.times) == pytest.approx(0.3)


@pytest.mark.parametrize("fixed", [False, True])
def test_while_drafting_stored_times_are_scaled_as_verifications_are(fixed: bool) -> None:
    """They were of a process that shared its cores."""
    planner = stored(0.1, 0.08, fixed=fixed)
    for now in (0.05, 0.2):
        for _ in range(30):
            planner.learn(Plan(4, planner.arms[0]), 0, 4, 2, 0.01, now)
        assert planner.current_plain.seconds(planner.times) == pytest.approx(0.8 * now, rel=0.1)
        assert not planner.current_plain.measured
    planner.learn(Plan(0), 0, 0, 0, 0.0, 0.2)
    for _ in range(30):
        planner.learn(Plan(4, planner.arms[0]), 0, 4, 2, 0.01, 0.1)
    assert planner.current_plain.seconds(planner.times) == pytest.approx(0.1, rel=0.1)


def test_rounds_report_what_plain_decoding_takes_today() -> None:
    here, events = World(Costly(FakeClock(), 0.1), []), list[Verified]()
    here.planner.use_times(stored(0.2, 0.2, fixed=True).known_times.fixed())
    here.top.emit = events.append  # type: ignore[assignment]
    here.run(20)
    assert [event.plain_ms for event in events] == pytest.approx([100.0] * len(events))
    assert all(event.plain_measured for event in events)
