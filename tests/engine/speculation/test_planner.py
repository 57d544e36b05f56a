"""The planner in worlds with a clock of their own, where the best plan can be computed."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toys import ToyCache
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.sampler import Sampler, Sampling
from triforce_chat.engine.speculation.acceptance import Survival
from triforce_chat.engine.speculation.level import Autoregressive, Level, Speculative
from triforce_chat.engine.speculation.lookup import Forecast, NgramLookup, NoLookup
from triforce_chat.engine.speculation.planner import (
    GAIN,
    TRIALS,
    TRY_AFTER,
    Arm,
    Choice,
    Expected,
    Planner,
    sizes,
)
from triforce_chat.engine.speculation.step_times import Average, HostClock, StepTimes

CPU = torch.device("cpu")
WARM = Sampling(temperature=1.0, seed=0)


class FakeClock(HostClock):
    """Stands still but for what is done."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


@dataclass
class Costly:
    """A model over two tokens that is right (token 0) with a certain chance, and takes its time."""

    clock: FakeClock
    one: float  # seconds of a step of one row
    row: float = 0.0  # of every further row
    right: float = 1.0
    noise: float = 0.0
    vocabulary: int = 2
    device: torch.device = CPU
    luck: random.Random = field(default_factory=lambda: random.Random(0))

    def seconds(self, rows: int) -> float:
        return self.one + self.row * (rows - 1)

    def __call__(self, ids: Tensor, cache: ToyCache, rows: int) -> Tensor:
        cache.fed = [0] * len(ids)
        cache.advance(len(ids))
        self.clock.seconds += self.seconds(rows) * (1 + self.noise * self.luck.uniform(-1, 1))
        return torch.tensor([self.right, 1 - self.right]).log().expand(rows, -1)


class Tiring:
    """A drafter whose tokens are right less often the further it runs ahead."""

    def __init__(self, model: Costly, rights: Sequence[float]) -> None:
        self.model, self.rights = model, rights

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        self.model.clock.seconds += n * self.model.one
        rights = torch.tensor([self.rights[min(i, len(self.rights) - 1)] for i in range(n)])
        chosen = torch.tensor([int(self.model.luck.random() > right) for right in rights.tolist()])
        return Draft(chosen.long(), torch.stack([rights, 1 - rights], -1).view(n, 2))

    def rollback(self, length: int) -> None:
        pass

    def hear(self, length: int, ids: Sequence[int]) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


@dataclass
class World:
    """A target with a planner below it, and what is between two rounds."""

    target: Costly
    arms: Sequence[Level]
    gap: float = 0.0
    least: int = 0
    gamma: int = 16
    made: list[tuple[Level | None, int, int]] = field(default_factory=list)  # (arm, proposed, kept) of rounds

    def __post_init__(self) -> None:
        self.clock = self.target.clock
        self.planner = Planner(
            StepTimes(), NoLookup(2), [Arm(arm) for arm in self.arms], clock=self.clock, least=self.least
        )
        self.top = Speculative("target", self.target, ToyCache(), self.planner, self.gamma, lambda _: None)
        self.tokens = torch.tensor([1])
        self.sampler = Sampler(WARM)

    def run(self, tokens: int) -> float:
        """Seconds per token."""
        began, before = self.clock.seconds, len(self.tokens)
        while len(self.tokens) < before + tokens:
            left = before + tokens - len(self.tokens)
            kept = self.top.step(self.tokens, self.sampler, left - 1).tokens
            self.tokens = torch.cat([self.tokens, kept])
            arm = self.planner.choice.arm
            self.made.append((arm and arm.level, self.planner.choice.n, len(kept)))
            self.clock.seconds += self.gap
        self.top.rollback(len(self.tokens) - 1)
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
        passing = [0.0, *itertools.accumulate(itertools.accumulate(chances, operator.mul))]
        return seconds / sum(1 + passing[n] for n in asked)

    def worth(self, tokens: int, cost: float, chances: Sequence[float]) -> float:
        """The same of what the planner asks for in so many more tokens."""
        first = len(self.made)
        self.run(tokens)
        return self.of([n for _, n, _ in self.made[first:]], cost, chances)


def world(right: float, cost: float, row: float = 0.04, gap: float = 0.002, **options: Any) -> World:
    """A target of 0.1 s a step, over a draft that costs and knows so much."""
    clock = FakeClock()
    target = Costly(clock, 0.1, 0.1 * row, noise=0.05)
    draft = Autoregressive(Costly(clock, cost, right=right), ToyCache())
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
    arms = [Autoregressive(Costly(clock, 0.09, right=0.1), ToyCache()) for _ in range(2)]
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
        assert here.planner.gap.mean == pytest.approx(gap)
        asked.append(max(n for _, n, _ in here.made[-40:]))
    assert asked[1] > asked[0]


def test_a_pause_between_two_answers_teaches_nothing() -> None:
    here = world(0.8, 0.01)
    here.run(100)
    gap = here.planner.gap.mean
    here.clock.seconds += 3600
    here.run(1)
    assert here.planner.gap.mean == gap


def test_a_fixed_drafter_always_drafts() -> None:
    here = world(0.1, 0.09, least=1)
    here.run(60)
    assert all(n >= 1 for _, n, _ in here.made[:-1])
    good = world(0.9, 0.005, least=1)
    good.run(100)
    assert good.worth(300, 0.005, [0.9] * 16) < good.best(0.005, [0.9] * 16) / 0.95


def hierarchy(clock: FakeClock, middle: float, draft: float | None, gamma: int = 16) -> World:
    """A target of 0.1 s over a middle of 0.02 s, right so often, over a draft of 1 ms for the middle."""
    arms = [Arm(Autoregressive(Costly(clock, 0.001, right=draft), ToyCache()))] if draft else []
    small = Costly(clock, 0.02, 0.0004, right=middle)
    planner = Planner(StepTimes(), NoLookup(2), arms, clock=clock)
    level = Speculative("retrieval", small, ToyCache(), planner, 8, lambda _: None)
    return World(Costly(clock, 0.1, 0.002), [level], 0.001, gamma=gamma)


def test_a_hierarchy_plans_at_both_levels() -> None:
    """As fast as the best pair of fixed numbers."""
    best = min(fixed(n, below) for n, below in ((4, 2), (8, 2), (8, 3), (10, 2), (13, 3)))
    here = hierarchy(FakeClock(), 0.95, 0.5)
    here.run(300)
    assert here.run(1500) < best / 0.9


def fixed(n: int, below: int) -> float:
    clock = FakeClock()
    drafter = Autoregressive(Costly(clock, 0.001, right=0.5), ToyCache())
    middle = Costly(clock, 0.02, 0.0004, right=0.95)
    level = Speculative("retrieval", middle, ToyCache(), drafter, below, lambda _: None)
    here = World(Costly(clock, 0.1, 0.002), [], 0.001)
    here.top = Speculative("target", here.target, ToyCache(), level, n, lambda _: None)
    return here.run(1500)


def test_a_middle_without_a_draft_tries_nothing() -> None:
    here = hierarchy(FakeClock(), 0.95, None)
    middle = here.arms[0]
    assert isinstance(middle, Speculative)
    here.run(200)
    assert isinstance(middle.drafter, Planner)
    assert middle.drafter.choice.n == 0
    assert here.run(200) < 0.7 * here.plain


class Foretelling(NgramLookup):
    """Foretells the right tokens and says that each is right so often."""

    claim = 0.9

    def forecast(self, tokens: Tensor, n: int) -> Forecast:
        return Forecast(tokens.new_zeros(n), [self.claim**i for i in range(1, n + 1)])


def test_lookup_wins_where_it_foretells() -> None:
    """The draft model is as good and costs more."""
    here = world(0.95, 0.02)
    here.planner.lookup = Foretelling(2)
    here.run(200)
    assert sum(arm is None and n > 3 for arm, n, _ in here.made[-15:]) > 10


def test_lookup_is_not_believed_for_long() -> None:
    """Its record counts: forecasts that never come true lose against plain decoding."""
    here = World(Costly(FakeClock(), 0.1, 0.01, right=0.0), [])
    here.planner.lookup = Foretelling(2)
    took = here.run(200)
    assert took < here.plain / 0.9
    assert [n for _, n, _ in here.made[-20:]].count(0) > 15


def test_sizes_of_verifications_are_few() -> None:
    assert sizes(1, 16) == [1, 2, 3, 4, 5, 7, 9, 11, 15]
    assert sizes(0, 3) == [0, 1, 2, 3]
    assert sizes(1, 32)[-1] == 31
    here = world(0.9, 0.002)
    here.run(600)
    assert {n for _, n, _ in here.made} <= set(sizes(0, 16))


# Its parts


def test_survival_by_position() -> None:
    survival = Survival()
    assert survival.chances(3) == pytest.approx([0.8, 0.64, 0.512])
    luck = random.Random(0)
    rights = [0.9, 0.7, 0.2]
    for _ in range(400):
        accepted = next((i for i, right in enumerate(rights) if luck.random() > right), 3)
        survival.learn(3, accepted)
    assert survival.chances(3) == pytest.approx([0.9, 0.63, 0.126], abs=0.12)
    assert survival.chances(0) == []


def test_what_was_not_tested_teaches_nothing() -> None:
    survival = Survival()
    survival.learn(4, 0)
    assert len(survival.places) == 1
    survival.learn(0, 0)
    survival.learn(2, 2)
    assert [place.weight for place in survival.places] == pytest.approx([1.975, 1])


class Counting:
    """A drafter that only counts."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.cuts: list[int] = []
        self.heard: list[tuple[int, ...]] = []
        self.verdicts: list[tuple[int, int]] = []

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        self.asked.append(n)
        return Draft(torch.zeros(n, dtype=torch.long), torch.ones(n, 1))

    def rollback(self, length: int) -> None:
        self.cuts.append(length)

    def hear(self, length: int, ids: Sequence[int]) -> None:
        self.heard.append((length, *ids))

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
    arm.survival.overall = Average(1.0, 1e9, 1e9 * acceptance)
    return arm


def planner_of(*arms: Arm, times: StepTimes | None = None) -> Planner:
    planner = Planner(times or steady(), NgramLookup(10), arms)
    planner.rounds = 2
    return planner


def told(*survival: float) -> Forecast:
    return Forecast(torch.zeros(len(survival), dtype=torch.long), list(survival))


@settings(max_examples=80, deadline=None)
@given(st.floats(0.001, 1), st.floats(0, 0.1), st.integers(1, 12))
def test_hopeless_drafts_are_never_chosen(one: float, row: float, n: int) -> None:
    planner = planner_of(known(0.0, 0.0), times=steady(one, row))
    assert planner._choose(told(*[0.0] * n), 100, n).n == 0
    assert planner._choose(told(), 100, n).n == 0


def test_the_best_modelled_rate_wins() -> None:
    slow, fast = known(0.05, 0.8), known(0.001, 0.8)
    planner = planner_of(slow, fast)
    chosen = planner._choose(told(0.1), 100, 8)
    times = planner.times
    rates = {
        (arm.cost.mean, n): sum(0.8**i for i in range(n + 1)) / (n * arm.cost.mean + times(1 + n))
        for arm in (slow, fast)
        for n in sizes(1, 8)
    }
    assert chosen.arm is fast
    assert chosen.rate == pytest.approx(max(rates.values()), rel=1e-6)
    assert rates[fast.cost.mean, chosen.n] == max(rates.values())
    sure = planner._choose(told(*[0.999**i for i in range(1, 9)]), 100, 8)
    assert (sure.arm, sure.n) == (None, 7)


def test_the_last_choice_stands_until_another_is_clearly_better() -> None:
    one, other = known(0.010, 0.8), known(0.010, 0.8)
    planner = planner_of(one, other)
    assert planner._choose(told(), 100, 8).arm is one
    one.cost.add(0.0105, 99)
    assert planner._choose(told(), 100, 8).arm is one
    one.cost.add(0.02, 9999)
    assert planner._choose(told(), 100, 8).arm is other


def test_a_gain_too_small_is_no_gain() -> None:
    planner = planner_of()
    plain = planner.times(2) / planner.times(1)  # survival at which one token just pays for its row
    for extra, n in ((0.5 * (GAIN - 1), 0), (2 * (GAIN - 1), 1)):
        assert planner._choose(told(plain * (1 + extra) - 1), 100, 4).n == n


def test_arms_get_their_first_trials_and_are_cut_back_together() -> None:
    low, high = Counting(), Counting()
    planner = planner_of(Arm(low), Arm(high, worth_above=1000))
    planner.rounds = 0
    tokens, sampler = torch.arange(9), Sampler(Sampling())
    drafted = []
    for _ in range(TRY_AFTER + 2):
        drafted.append(len(planner.propose(tokens, 8, sampler)))
        planner.judged(drafted[-1], 0)
    planner.hear(9, [4, 2])
    assert low.heard == high.heard == [(9, 4, 2)]
    assert drafted == [0] * TRY_AFTER + list(TRIALS)
    assert (low.asked, high.asked) == (list(TRIALS), [])
    assert low.verdicts == [(n, 0) for n in TRIALS]
    planner.rollback(5)
    assert low.cuts == high.cuts == [5]


def test_an_arm_that_has_to_be_built_first_loses_no_trial() -> None:
    arm = Arm(Counting())
    planner = planner_of(arm)
    planner.rounds = TRY_AFTER
    tokens, sampler = torch.arange(9), Sampler(Sampling())
    planner.propose(tokens, 8, sampler)
    planner.judged(0, 0)
    for n in TRIALS:
        assert len(planner.propose(tokens, 8, sampler)) == n
        planner.judged(n, 0)
    assert arm.level.asked == [TRIALS[0], *TRIALS]  # type: ignore[attr-defined]
    planner.propose(tokens, 8, sampler)
    planner.judged(0, 0)  # not again
    assert arm.trials == len(TRIALS)


def test_an_arm_whose_trials_brought_nothing_gets_others() -> None:
    arm = Arm(Counting())
    planner = planner_of(arm)
    planner.rounds = TRY_AFTER
    tokens, sampler = torch.arange(9), Sampler(Sampling())
    for _ in range(200):
        planner.propose(tokens, 8, sampler)
        planner.judged(0, 0)
    # The first is forgiven, two are used up, and then it is asked after 16, 32, 64 ... rounds.
    assert len(arm.level.asked) > 1 + len(TRIALS)  # type: ignore[attr-defined]
    while not arm.measured:
        planner.judged(len(planner.propose(tokens, 8, sampler)), 0)
    assert planner.rounds < 1000


def test_the_planner_waits_for_its_first_measurement() -> None:
    planner = planner_of(times=StepTimes())
    assert planner._choose(told(0.9, 0.9), 100, 8).n == 0


def test_trials_in_vain_become_rare() -> None:
    """An arm that loses, if not by far, is tried again after 16, 32, 64 ... rounds; no plan alone is a trial."""
    arm = known(0.09, 0.8)
    planner, tried = planner_of(arm, times=steady(0.1, 0.01)), []
    tokens, sampler = torch.arange(100), Sampler(WARM)
    for now in range(2, 300):
        planner.rounds = now - 2
        planner.plan(tokens, 7)
        planner.propose(tokens, 8, sampler)
        if planner.choice.arm is arm:
            tried.append(planner.rounds)
            arm.measured_at = planner.rounds
    assert [b - a for a, b in itertools.pairwise([1, *tried])] == [17, 33, 65, 129]


def test_a_plan_is_for_the_tokens_that_it_was_made_for() -> None:
    planner, sampler = planner_of(), Sampler(WARM)
    planner._choose = lambda told, _, n: Choice(1.0, min(n, len(told.survival)))  # type: ignore[method-assign]
    assert planner.plan(torch.tensor([1, 2, 3, 1, 2]), 2).n == 2
    assert planner.plan(torch.tensor([1, 2, 3, 1, 2]), 1).n == 1
    planner.rollback(3)
    draft = planner.propose(torch.tensor([1, 2, 3, 4, 3]), 1, sampler)
    assert draft.tokens.tolist() == [4]


def test_what_was_prepared_in_its_trials_is_forgiven() -> None:
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


def test_what_is_expected_of_a_round() -> None:
    planner = planner_of(known(0.002, 0.5), times=steady(0.020, 0.0))
    planner.choice = planner._choose(told(), 100, 1)
    before = planner.expected
    assert before.since(before) is None
    for accepted in (0, 1):  # whatever comes of it
        planner._expect(1, accepted, 9.0, 9.0)
        assert planner.expected.since(before) == pytest.approx(22 / 1.5, rel=0.02)
        before = planner.expected
