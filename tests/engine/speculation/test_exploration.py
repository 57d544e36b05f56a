"""What is tried in an answer costs little beside what there is to win in it."""

from __future__ import annotations

import copy
import itertools
import random
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.chances import Answering, Chance, arms_of

from triforce_chat.engine.cuda_graph import Captures
from triforce_chat.engine.speculation.arm import LEVEL_HOPE, TRIALS, TRY_AGAIN
from triforce_chat.engine.speculation.cost_model import (
    COMPUTED_ROW_PRIOR,
    GPU_ROW_PRIOR,
    STREAMED_ROW_PRIOR,
    Average,
    StepTimes,
)
from triforce_chat.engine.speculation.exploration import TRY_AFTER, Exploration
from triforce_chat.engine.speculation.forecast import FROM_HOST, LAYER, StepCost
from triforce_chat.engine.speculation.investment import SURE, Investment
from triforce_chat.engine.speculation.lookup import LEARN, ORDERS, PRIOR, NgramLookup
from triforce_chat.engine.speculation.plan import ROWS, Plan, sizes
from triforce_chat.engine.speculation.planner import SELDOM, Planner
from triforce_chat.engine.speculation.round_times import WAIT_AGAIN
from triforce_chat.engine.speculation.stacks import STREAMED_GAMMA

TOKENS, SEEDS = 256, range(12)
MANY = range(60)  # for answers of few rounds, which chance governs
PLAIN = 0.003  # seconds per token of a fast GPU
MIDDLE, DRAFT = Chance(0.0015, 0.55, built=False), Chance(0.0012, 0.45)  # neither pays


def fresh(seed: int, *chances: Chance, trust: float = 0.0) -> Answering:
    """A fresh text on a fast GPU, decoded ahead of the host."""
    planner = Planner(arms_of(chances, PLAIN), NgramLookup(), most=16, row=GPU_ROW_PRIOR)
    return Answering(planner, chances, 0.0036, 0.00004, 0.0005, PLAIN, trust, seed)


@pytest.mark.parametrize("chances", [[MIDDLE], [DRAFT], [MIDDLE, DRAFT]])
@pytest.mark.parametrize(("tokens", "share"), [(TOKENS, 0.98), (140, 0.97)])
def test_on_fresh_text_trials_cost_two_per_cent(chances: list[Chance], tokens: int, share: float) -> None:
    assert mean(fresh(seed, *chances).run(tokens) for seed in SEEDS) < PLAIN / share


@pytest.mark.parametrize("trust", [0.8, 0.6, 0.3])
def test_matches_that_mislead_cost_little(trust: float) -> None:
    """Lookup promises more than it keeps; how much more is not known before."""
    assert mean(fresh(seed, MIDDLE, trust=trust).run(TOKENS) for seed in SEEDS) < PLAIN / 0.96


def test_matches_that_come_true_are_used_at_once() -> None:
    assert mean(fresh(seed, MIDDLE, trust=1.2).run(TOKENS) for seed in SEEDS) < PLAIN / 1.5


def test_a_token_that_waited_for_its_launch_is_no_measure_of_plain_decoding() -> None:
    planner = Planner([], NgramLookup(), most=16, row=GPU_ROW_PRIOR)
    assert planner.choose(9, 16, ORDERS).plain
    planner.learn_plain(0.1)
    assert planner.choose(9, 16, ORDERS).plain
    planner.learn_plain(0.003)
    assert planner.times.plain_seconds == pytest.approx(0.003, rel=0.01)
    assert planner.choose(9, 16, ORDERS).n > 0


def test_a_draft_costs_the_next_token_its_lead() -> None:
    """So a match has to promise more while tokens are decoded ahead of the host."""
    planner = Planner([], NgramLookup(), most=16, row=GPU_ROW_PRIOR)
    planner.learn(Plan(0), 0, 0, 0, 0.0, 0.0045)
    planner.learn(Plan(0), 0, 0, 0, 0.0, 0.0045)
    for _ in range(4):
        planner.learn_plain(0.003)
    assert planner.choose(9, 16, 3).n == 0
    planner.times.in_a_row = 0
    assert planner.choose(9, 16, 3).n > 0


@pytest.mark.parametrize("right", [0.7, 0.9, 0.97])
@pytest.mark.parametrize("prepared", [0.004, 0.02, 0.1])
def test_a_slow_first_round_does_not_end_all_drafting(prepared: float, right: float) -> None:
    """Something was prepared in it; while tokens are decoded ahead of the host, no other round says what one takes."""
    cheap = Chance(0.0004, right, built=False)
    took = []
    for seconds in (0.0, prepared):
        answers = [fresh(seed, cheap, trust=1.0) for seed in SEEDS]
        for answer in answers:
            answer.prepared = seconds
        took.append(mean(answer.run(TOKENS) for answer in answers) - seconds / TOKENS)
    assert took[1] < took[0] / 0.93


def computed(seed: int, plain: float, *chances: Chance, trust: float = 0.1) -> Answering:
    """A small model on a CPU, where every token is waited for and rows are dear."""
    planner = Planner(arms_of(chances, plain), NgramLookup(), most=16, row=COMPUTED_ROW_PRIOR)
    return Answering(planner, chances, plain, 0.003, 0.0002, trust=trust, seed=seed)


@pytest.mark.parametrize("rounds", [2, 4, 8, 16])
def test_a_disturbed_start_leaves_plain_decoding_what_it_is(rounds: int) -> None:
    """Neither drafter pays, but both were measured when plain decoding looked twice as slow as it is."""
    answers = [fresh(seed, MIDDLE, DRAFT) for seed in SEEDS]
    for answer in answers:
        answer.disturbed = rounds
    assert mean(answer.run(TOKENS) for answer in answers) < PLAIN / 0.97


@pytest.mark.parametrize("rounds", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("plain", "drafters"),
    [
        (0.0147, [Chance(0.004, 0.45)]),
        (0.0208, [Chance(0.014, 0.97, built=False, hope=LEVEL_HOPE), Chance(0.004, 0.52)]),
        (0.052, [Chance(0.016, 0.88, built=False, hope=LEVEL_HOPE), Chance(0.004, 0.55)]),
    ],
)
def test_a_disturbed_start_costs_little_where_every_token_is_waited_for(
    plain: float, drafters: list[Chance], rounds: int
) -> None:
    took = []
    for disturbed in (0, rounds):
        answers = [computed(seed, plain, *drafters) for seed in range(2 * len(SEEDS))]
        for answer in answers:
            answer.disturbed = disturbed
        took.append(mean(answer.run(TOKENS) for answer in answers))
    assert took[1] < took[0] / 0.97


def test_a_drafter_that_was_measured_slow_is_tried_again_if_there_is_much_to_win() -> None:
    planner = measured(plain=0.1)
    arm = planner.arms[0]
    for cost in (0.18, 0.18):
        arm.learn_cost(cost, 1, 1, 0)
    arm.trials, arm.measured_at = len(TRIALS), planner.rounds
    for _ in range(20):
        arm.curve.learn(1, 1)
    assert tried(planner, TRY_AGAIN // 4) == 0
    assert tried(planner, TRY_AGAIN) > 0
    arm.tried()
    assert tried(planner, TRY_AGAIN) == 0  # it is known by now
    arm.learn_cost(0.02, 1, 1, planner.rounds)
    assert arm.cost.mean == pytest.approx(0.02)


def test_rounds_that_were_slow_are_not_held_against_drafts_forever() -> None:
    planner = Planner([], NgramLookup(), most=16, row=GPU_ROW_PRIOR)
    for _ in range(3):
        planner.learn(Plan(0), 0, 0, 0, 0.0, 0.05)  # the machine was busy
    drafted = []
    for _ in range(WAIT_AGAIN + 4):
        drafted.append(planner.choose(9, 16, ORDERS).n)
        planner.learn_plain(PLAIN)
    assert not any(drafted[3:WAIT_AGAIN])  # before, plain decoding was not known
    assert drafted[-1] > 0


# Plain decoding, measured again


@pytest.mark.parametrize("cost", [0.9, 1.0, 1.2])
def test_what_is_no_better_than_plain_decoding_costs_little(cost: float) -> None:
    plain, took = 0.0566, []
    for seed in SEEDS:
        chances = [Chance(cost * plain, 1.0, built=False)]
        planner = Planner(arms_of(chances, 1.5 * plain), NgramLookup(), most=16, row=0.15)
        arm = planner.arms[0]
        arm.use_costs(Average(0.9, 4.0, 4 * chances[0].cost), Average(0.9), Average(0.9), 0)
        answer = Answering(planner, chances, plain, 0.1 * plain, trust=0.2, seed=seed)
        answer.run(40)
        answer.seconds, answer.made = 0.0, 0
        took.append(answer.run(TOKENS))
    assert mean(took) < plain / 0.97


def test_plain_decoding_is_measured_less_and_less_often() -> None:
    planner = measured(plain=0.1, forecast=0.3, rest=1000)
    arm = planner.arms[0]
    arm.use_costs(Average(0.9, 4.0, 0.04), Average(0.9), Average(0.9), planner.rounds)
    for _ in range(50):
        arm.curve.learn(8, 2)
    plain = []
    for _ in range(400):
        plan = planner.choose(100, 8, 0)
        accepted = min(2, plan.n)
        planner.learn(plan, 0, plan.n, accepted, 0.01 * plan.n, 0.1)
        planner.renew(max(1, planner.investment.rest - 1 - accepted))
        if plan.plain:
            plain.append(planner.rounds)
    gaps = [after - before for before, after in itertools.pairwise(plain)]
    assert 2 <= len(plain) <= 5
    assert gaps == sorted(gaps)


def test_a_step_of_one_row_is_known_by_such_steps() -> None:
    times = StepTimes()
    for _ in range(20):
        times.add(1, 0.1)
    for _ in range(20):
        times.add(2, 0.15)  # dearer than the line through a long step says
        times.add(16, 0.25)
    assert times.one_row == pytest.approx(0.1, rel=0.01)
    times.add(1, 0.2)
    assert 0.14 < times.one_row < 0.16
    assert StepTimes.of(times.plain()).one_row == pytest.approx(times.level.mean, rel=1e-3)


# Where keys and values come from host memory


def streamed(seed: int, fixed: bool, step: float, *chances: Chance) -> Answering:
    """``fixed``: the first arm always drafts; otherwise there are lookup and plain decoding as well."""
    lookup, arms = None if fixed else NgramLookup(), arms_of(chances, step)
    planner = Planner(arms, lookup, most=STREAMED_GAMMA, plain=not fixed, row=STREAMED_ROW_PRIOR)
    return Answering(planner, chances, step, trust=0.7, seed=seed)


@pytest.mark.parametrize("right", [0.97, 0.93, 0.9, 0.8, 0.6])
@pytest.mark.parametrize(("step", "cost"), [(0.067, 0.004), (1.25, 0.006)])
def test_where_verifications_are_dear_the_hierarchy_is_used_from_the_start(
    step: float, cost: float, right: float
) -> None:
    """Within 256 tokens, of which there are hardly more rounds than the fixed stack needs."""
    middle = Chance(cost, right, built=False)
    took = [mean(streamed(seed, fixed, step, middle).run(TOKENS) for seed in MANY) for fixed in (True, False)]
    assert took[1] < took[0] / 0.95
    chances = [right**i for i in range(1, 64)]
    best = min((step + cost * n) / (1 + sum(chances[:n])) for n in sizes(1, 63))
    assert took[0] < best / 0.78


@pytest.mark.parametrize(
    ("step", "dear", "cheap"), [(0.03, 0.0043, 0.001), (0.03, 0.006, 0.002), (0.02, 0.004, 0.001)]
)
def test_the_better_of_two_good_levels_is_found(step: float, dear: float, cheap: float) -> None:
    """The first one makes the other look worse than it is hoped to be."""
    levels = [Chance(cost, 0.98, built=False, hope=LEVEL_HOPE) for cost in (dear, cheap)]
    found, fixed = (
        mean(streamed(seed, alone, step, *chosen).run(TOKENS) for seed in MANY)
        for alone, chosen in ((False, levels), (True, levels[1:]))
    )
    assert found < fixed / 0.8


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("right", [0.99, 0.96])
def test_a_short_answer_takes_hardly_more_rounds_than_it_needs(right: float, fixed: bool) -> None:
    """96 tokens of which a verification takes as long as seven hundred drafted ones: the longest chains pay at once."""
    needed, luck = [], random.Random(1)
    for _ in range(400):
        made, rounds = 0, 0
        while made < 96:
            passed = itertools.takewhile(
                lambda _: luck.random() < right, range(min(STREAMED_GAMMA, 95 - made))
            )
            made, rounds = made + 1 + len([*passed]), rounds + 1
        needed.append(rounds)
    level = Chance(0.0017, right, hope=LEVEL_HOPE)
    took = mean(streamed(seed, fixed, 1.2, level).run(96) for seed in MANY) * 96 / 1.25
    assert took < 1.15 * mean(needed) + 0.5


def test_an_answer_may_end_with_the_draft_that_it_lacks() -> None:
    """Whatever sizes verifications have: another one would take a second."""
    here = streamed(0, True, 1.2, Chance(0.0017, 0.999, hope=LEVEL_HOPE))
    here.run(97)
    assert here.drafted[-1][1] == 97 - sum(1 + n for _, n in here.drafted[:-1]) - 1
    assert here.drafted[-1][1] + 1 not in ROWS


def test_what_long_drafts_fell_short_of_short_ones_need_not() -> None:
    (arm,) = arms_of([Chance(0.002, 0.98)])
    for _ in range(4):
        arm.learn_cost(0.1, 63, 40, 1)
    assert [arm.makes(n) for n in (5, 63)] == [5, 63]
    arm.excess.clear()
    arm.learn_cost(0.1, 20, 23, 1)
    assert arm.makes(5) == 8


def test_its_first_drafts_are_long() -> None:
    here = streamed(0, False, 1.25, Chance(0.006, 0.9, built=False))
    here.run(64)
    assert here.drafted[0][1] >= 11
    assert min(n for _, n in here.drafted[:4]) > max(TRIALS)


@pytest.mark.parametrize(("cost", "least", "most"), [(0.0014, 11, 19), (0.0027, 2, 2), (0.0058, 1, 2)])
def test_first_trials_are_long_where_a_step_could_confirm_many(cost: float, least: int, most: int) -> None:
    """A drafted token costs a twentieth, an eleventh or a fifth of a step."""
    here = streamed(0, False, 0.03, Chance(cost, 0.9, hope=LEVEL_HOPE))
    here.run(96)
    assert all(least <= n <= most for _, n in here.drafted[:2])


@pytest.mark.parametrize("ahead", [False, True])
def test_plain_decoding_ahead_of_the_host_is_measured_before_any_arm(ahead: bool) -> None:
    """A round that is waited for would make it look slower than it is; elsewhere a promising arm drafts at once."""
    planner, asked = Planner(arms_of([DRAFT], 1.0), most=8), list[int]()
    planner.overlaps = ahead
    for _ in range(TRY_AFTER + 1):
        asked.append(planner.choose(100, 8, 0).n)
        planner.learn_plain(PLAIN)
    assert any(asked[:TRY_AFTER]) != ahead
    assert (asked[TRY_AFTER if ahead else 0]) > 0


def test_drafters_are_seldom_considered_while_tokens_are_decoded_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Matches are at each of them, and drafters where one of them drafts or the host waits."""
    planner, asked = Planner(arms_of([DRAFT], 1.0), NgramLookup(), most=8, row=GPU_ROW_PRIOR), list[int]()
    planner.arms[0].learn_cost(0.1, 1, 1, 1)
    drafted = Planner._drafted

    def noting(self: Planner, *given: Any, **named: Any) -> Plan:
        asked.append(planner.rounds)
        return drafted(self, *given, **named)

    monkeypatch.setattr(Planner, "_drafted", noting)
    for _ in range(8 * SELDOM):
        planner.learn_plain(PLAIN)
        planner.arms[0].measured_at = planner.rounds  # no trial is due
        planner.choose(100, 8, 0)
    assert asked == [*range(SELDOM, 8 * SELDOM + 1, SELDOM)]
    for _ in range(SELDOM):
        assert planner.choose(100, 8, ORDERS).n > 1
    asked.clear()
    planner.habit = Plan(3, planner.arms[0], 1.0)
    planner.choose(100, 8, 0)
    planner.habit, planner.times.in_a_row = Plan(0), 0
    planner.choose(100, 8, 0)
    assert {*asked} == {planner.rounds - 1, planner.rounds}


def test_an_arm_that_cannot_beat_the_best_one_is_not_tried_there() -> None:
    """Each of its trials would take a whole verification for a few tokens."""
    here = streamed(0, False, 1.25, Chance(0.006, 0.97, built=False), Chance(0.2, 0.8))
    here.run(TOKENS)
    assert {place for place, _ in here.drafted[3:]} == {0}


# Trials


def tried(planner: Planner, rounds: int) -> int:
    """Trials in so many rounds, none of which is run."""
    return sum(planner.choose(100, 8, 0).trial for _ in range(rounds))


def measured(plain: float = 0.1, rest: int = 1000, forecast: float = 0.5) -> Planner:
    """A planner that knows its plain decoding, in an answer that may grow by ``rest`` tokens, with one untried arm."""
    planner = Planner(arms_of([Chance(forecast * plain, 0.5)], plain), most=8)
    for _ in range(4):
        planner.learn(Plan(0), 0, 0, 0, 0.0, plain)
    planner.rounds = TRY_AFTER
    planner.investment.begin(rest)
    planner.renew(rest)
    return planner


@pytest.mark.parametrize(("rest", "forecast", "trials"), [(1000, 0.3, 1), (2, 0.3, 0), (1000, 0.9, 0)])
def test_a_first_trial_must_be_worth_it(rest: int, forecast: float, trials: int) -> None:
    """It costs about half a step, and wins what its drafter saves in the rest of the answer if all goes well."""
    assert tried(measured(rest=rest, forecast=forecast), 1) == trials


@pytest.mark.parametrize(("rest", "trials"), [(SURE, 1), (SURE - 1, 0)])
def test_what_a_first_trial_shows_counts_for_later_answers(rest: int, trials: int) -> None:
    """Where another drafter pays, unless the answer is about to end: little is to be won in its next 32 tokens."""
    planner = Planner(arms_of([Chance(0.04, 0.5), Chance(0.03, 0.9)], 0.1), most=8)
    for _ in range(2):
        planner.times.steps.add(1, 0.1)
    other = planner.arms[1]
    for _ in range(9):
        other.learn_cost(0.03, 1, 1, 0)
        other.curve.learn(2, 1)
    other.trials = len(TRIALS)
    planner.rounds = TRY_AFTER
    planner.investment.begin(rest)
    planner.renew(rest)
    assert tried(planner, 1) == trials


def test_what_lookup_makes_is_nothing_that_a_trial_could_win() -> None:
    planner = measured(forecast=0.45)
    planner.lookup = NgramLookup()
    assert tried(copy.deepcopy(planner), 1) == 1
    for _ in range(60):
        planner.learn(Plan(15), ORDERS, 15, 15, 0.0, 0.1)
    planner.rounds = TRY_AFTER
    assert planner.left_to_arms < 0.3 * planner.expected_rest
    for _ in range(2):
        planner.learn(Plan(0), 0, 0, 0, 0.0, 0.1)
    assert tried(planner, 1) == 0


@pytest.mark.parametrize("copied", [False, True])
def test_nor_could_a_further_trial_win_it(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exploration, "affords", lambda *_: False)  # so it must promise to win what it loses
    planner = measured()
    planner.lookup, arm = NgramLookup(), planner.arms[0]
    for _ in TRIALS:
        arm.learn_cost(0.05, 1, 1, 0)
        arm.curve.learn(1, 0)
    arm.trials = len(TRIALS)
    drafted = 15 if copied else 0
    for _ in range(60):
        planner.learn(Plan(drafted), ORDERS, drafted, drafted, 0.0, 0.1)
    arm.measured_at = planner.rounds - 2 * TRY_AGAIN
    assert tried(planner, 1) == (not copied)


def test_a_long_first_trial_gives_way_to_a_short_one_for_which_nothing_is_to_be_captured() -> None:
    planner = measured(forecast=0.01)
    assert planner.choose(100, 8, 0).n > max(TRIALS)
    planner.lacking = lambda _, n: 1000 if n > 2 else 0
    planner.investment.begin(1000)
    planner.renew(1000)
    assert planner.choose(100, 8, 0).n == TRIALS[0]
    planner.lacking = lambda _, n: 1000 if n else 0
    planner.investment.begin(1000)
    planner.renew(1000)
    assert planner.choose(100, 8, 0).plain


def test_the_longer_an_answer_is_the_more_is_tried_again() -> None:
    trials = []
    for rounds in (50, 2000):
        planner = measured()
        arm = planner.arms[0]
        arm.learn_cost(0.05, 1, 1, 0)
        arm.learn_cost(0.05, 1, 1, 0)
        arm.trials = len(TRIALS)
        for _ in range(20):
            arm.curve.learn(1, 0)
        count = 0
        for _ in range(rounds):
            plan = planner.choose(100, 8, 0)
            if plan.trial:
                arm.tried()
                count += 1
            planner.learn(plan, 0, plan.n, 0, 0.05 * plan.n, 0.1)
        trials.append(count)
    assert trials[0] <= 1 < trials[1] <= 8


@pytest.mark.parametrize(("cost", "rounds"), [(0.0775, 5), (0.0801, 9), (0.0865, 17)])
def test_what_loses_next_to_nothing_is_tried_again_soon(cost: float, rounds: int) -> None:
    """A drafter that failed by bad luck in its first trials, and would be about as fast as plain decoding."""
    planner = measured(plain=0.1)
    arm = planner.arms[0]
    arm.learn_cost(cost, 1, 1, 0)
    arm.learn_cost(cost, 1, 1, 0)
    arm.trials, arm.measured_at = len(TRIALS), planner.rounds
    assert next(i for i in range(1, 50) if planner.choose(100, 8, 0).trial) == rounds


@pytest.mark.parametrize("lacks", [0, 5])
def test_captures_are_part_of_what_a_further_trial_loses(lacks: int) -> None:
    planner = measured(plain=0.1)
    arm = planner.arms[0]
    arm.learn_cost(0.0775, 1, 1, 0)
    arm.learn_cost(0.0775, 1, 1, 0)
    arm.trials, arm.measured_at = len(TRIALS), planner.rounds
    planner.lacking, planner.investment.earned = lambda _, n: lacks if n else 0, 1000.0
    assert (tried(planner, 4 * TRY_AGAIN) > 0) == (lacks == 0)


def test_a_trial_for_which_too_much_would_be_captured_does_not_stop_decoding_ahead() -> None:
    planner = Planner(arms_of([MIDDLE]), most=8, investment=Investment(Captures()))
    arm = planner.arms[0]
    for _ in range(2):
        arm.learn_cost(0.004, 1, 1, 0)
        planner.learn(Plan(0), 0, 0, 0, 0.0, 0.004)
    for _ in range(4):
        planner.learn_plain(PLAIN)
    arm.trials, planner.lacking = len(TRIALS), lambda _, n: int(n > 0)
    planner.investment.begin(1000)
    for made in range(300):
        planner.renew(1000 - made)
        assert planner.choose(100, 8, 0).plain
        planner.learn_plain(PLAIN)


def test_lookup_learns_quickly_at_first_and_slowly_from_what_it_knows() -> None:
    new, old = NgramLookup(), NgramLookup()
    old.go_on(PRIOR)
    for lookup in (new, old):
        lookup.learn(5, 0, 1)
    assert new.rates[5] == pytest.approx(0.8 * PRIOR[5])
    assert old.rates[5] == pytest.approx((1 - LEARN) * PRIOR[5])
    for _ in range(100):
        new.learn(5, 1, 1)
    assert 0.9 < new.rates[5] <= 1
    new.restart()
    new.learn(5, 0, 1)
    assert new.rates[5] == pytest.approx(0.8 * PRIOR[5])


# Forecasts


def runner(device: str, int8: int = 0, streamed: int = 0) -> Any:
    shape = SimpleNamespace(layers=3, bytes_per_token=100, dtype=torch.bfloat16)
    return SimpleNamespace(
        weight_bytes=5000,
        int8_numbers=int8,
        streamed=SimpleNamespace(nbytes=streamed) if streamed else None,
        shape=shape,
        device=torch.device(device),
    )


def test_a_step_costs_what_it_reads() -> None:
    assert StepCost.of(runner("cpu"))(10) == 5000 + 10 * 100
    assert StepCost.of(runner("cpu", int8=2000))(10) == 3000 + 10 * 100
    assert StepCost.of(runner("cuda"))(10) == 5000 + 3 * LAYER + 10 * 100
    assert StepCost.of(runner("cuda"), streamed=True)(10) == 5000 + 3 * LAYER + FROM_HOST * 10 * 100
    assert StepCost.of(runner("cuda", streamed=700))(10) == 5000 + FROM_HOST * 700 + 3 * LAYER + 10 * 100
