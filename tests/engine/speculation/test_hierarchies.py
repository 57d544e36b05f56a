"""The stack that chooses among all drafters is as good as the best fixed one, in whole answers with two levels."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from statistics import mean
from typing import Any, cast

import pytest
from support.chances import Nobody
from support.hierarchy import STACKS, WARM_UP, Hierarchy, Kind, Machine, Text, seconds_per_token

from triforce_chat.engine.speculation.arm import Arm, Drafter
from triforce_chat.engine.speculation.calibration import LevelTimes
from triforce_chat.engine.speculation.cost_model import (
    GPU_FURTHER_PRIOR,
    LEVEL_GUESS,
    AcceptanceCurve,
    Average,
    Guess,
    StepTimes,
)
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner

SEEDS = range(48)  # the means of 24 still differ by 1.5 % between two samples


def machine(*milliseconds: float) -> Machine:
    """Of all that takes time; the rest is as usual."""
    seconds: dict[str, Any] = dict(zip(Machine._fields, (each / 1000 for each in milliseconds), strict=False))
    return Machine(**seconds)


# An H200 at 124,928 tokens: Llama-3.1-8B's shape, Llama-2-7B's, the same with a repetition penalty, the small model.
H200_8B = machine(8.75, 0.04, 0.35, 8.55, 2.5, 0.04, 0.13, 0.15, 2.0, 2.5)
H200_7B = machine(19.6, 0.05, 0.4, 19.25, 2.9, 0.05, 0.13, 0.15, 2.0, 9.3)
PENALTY = H200_7B._replace(drafted=0.0003, drafted_above=0.00035)
H200_SMALL = machine(2.15, 0.02, 0.3, 1.93, 1.15, 0.02, 0.13, 0.15, 1.0, 0.7)
# The same 7B's shape at 8,192 tokens, and the small model, with the small draft's own kernels.
H200_7B_8K = machine(5.75, 0.03, 0.3, 5.6, 2.9, 0.04, 0.05, 0.06, 1.0, 0.6)
H200_SMALL_DRAFT = H200_SMALL._replace(drafted=0.00005, drafted_above=0.000055)
# Two cores and the small model, at 4,096, 8,192 and 32,768 tokens.
CORES_4K = machine(14.7, 3.2, 0.2, 0, 13.5, 2.2, 4.0, 4.0, 0, 4.0)
CORES_8K = machine(20.9, 3.2, 0.2, 0, 13.5, 2.2, 4.0, 4.0, 0, 8.0)
CORES_32K = machine(52.5, 4.0, 0.2, 0, 14.5, 2.4, 4.0, 4.0, 0, 25.0)

# Texts as they come at temperatures of 1, 0.6 and 0, and at 0.6 with a repetition penalty; on two cores.
HOT = Kind((0.75, 0.5), (0.95, 0.89))
WARM = Kind((0.85, 0.6), (0.96, 0.9), easy=0.55, trust=0.6, copied=0.15)
COLD = Kind((0.97, 0.7), (0.995, 0.96), easy=0.7, trust=1.0, copied=0.6)
PENALIZED = Kind((0.75, 0.52), (0.92, 0.84), trust=0.1)
HARD = Kind((0.6, 0.35), (0.98, 0.95), trust=0.1)  # drafts fail, but the middle level is nearly the target
CORES_WARM = Kind((0.72, 0.5), (0.99, 0.95), trust=0.4, copied=0.05)
CORES_COLD = Kind((0.9, 0.6), (0.995, 0.97), trust=0.7, copied=0.4)

# The machine, the texts of its answers, the last of which counts, and what the stack that chooses must reach.
CELLS: dict[str, tuple[Machine, list[Kind], float]] = {
    "8B hot": (H200_8B, [HOT, HOT], 0.93),
    "8B hot after warm": (H200_8B, [COLD, WARM, HOT], 0.9),
    "8B warm": (H200_8B, [HOT, COLD, WARM], 0.95),
    "8B cold": (H200_8B, [WARM, HOT, COLD], 1.05),
    "7B hot": (H200_7B, [COLD, WARM, HOT], 0.93),
    "7B warm": (H200_7B, [HOT, COLD, WARM], 0.93),
    "7B penalty": (PENALTY, [PENALIZED, PENALIZED], 0.94),
    "small hot": (H200_SMALL, [COLD, WARM, HOT], 0.93),
    "7B 8K hard": (H200_7B_8K, [COLD, WARM, HARD], 0.925),
    "small hard": (H200_SMALL_DRAFT, [COLD, WARM, HARD], 0.9),
    "cores 8K": (CORES_8K, [CORES_COLD, CORES_WARM], 0.96),
    "cores 32K": (CORES_32K, [CORES_WARM], 0.92),
    "cores 32K cold": (CORES_32K, [CORES_COLD], 0.92),
}


def took(name: str, where: Machine, kinds: Sequence[Kind], warm_up: int = WARM_UP) -> float:
    return mean(seconds_per_token(where, name, kinds, seed, warm_up)[0] for seed in SEEDS)


def best_of_the_fixed(where: Machine, kinds: Sequence[Kind], warm_up: int = WARM_UP) -> float:
    return min(took(name, where, kinds, warm_up) for name in STACKS)


@pytest.mark.parametrize("cell", CELLS)
def test_auto_is_nearly_the_best_stack(cell: str) -> None:
    where, kinds, share = CELLS[cell]
    assert took("auto", where, kinds) < best_of_the_fixed(where, kinds) / share


@pytest.mark.parametrize(
    ("where", "kind"), [(H200_8B, HOT), (PENALTY, PENALIZED), (H200_SMALL, HOT)], ids=["8B", "7B", "small"]
)
def test_so_it_is_in_the_first_answer_of_all(where: Machine, kind: Kind) -> None:
    """Nothing was learnt or warmed up before it."""
    assert took("auto", where, [kind], 0) < best_of_the_fixed(where, [kind], 0) / 0.91


def test_it_is_never_much_slower_than_plain_decoding() -> None:
    """Though no drafter pays there."""
    slow = H200_SMALL._replace(drafted_above=0.0012, middle=0.0019)
    hopeless = HOT._replace(draft=(0.5, 0.3), trust=0.1)
    assert took("auto", slow, [hopeless, hopeless]) < slow.ahead / 0.97


@pytest.mark.parametrize(
    ("where", "easy", "share"),
    [(H200_SMALL, COLD, 0.91), (CORES_4K, CORES_COLD, 0.94)],
    ids=["H200", "cores"],
)
def test_what_was_learnt_of_another_text_costs_little(where: Machine, easy: Kind, share: float) -> None:
    """Drafts and matches nearly always came true, and now hardly any do."""
    hopeless = Kind((0.45, 0.3), (0.85, 0.75), trust=0.1)
    plain = where.ahead or where.step + where.gap
    assert took("auto", where, [easy, hopeless], 0) < plain / share


# What a level's draft takes


def test_what_a_level_takes_beside_its_rounds_is_no_cost_of_its_tokens() -> None:
    """However short the drafts were by which it was measured, long ones are worth what they are."""
    pace = [0.002]
    arm = Arm(cast("Drafter", Nobody()), pace=lambda: pace[0])
    for made in (1, 1, 2, 1):
        arm.learn_cost(0.01 + 0.002 * made, 1, made, 1)
    assert arm.cost.mean == pytest.approx(0.002)
    assert arm.overhead.mean == pytest.approx(0.01)
    assert arm.seconds(10) == pytest.approx(0.03)
    assert arm.seconds(0) == 0
    pace[0] = 0.0  # not known: all of it belongs to the tokens
    other = Arm(cast("Drafter", Nobody()), pace=lambda: pace[0])
    other.learn_cost(0.012, 1, 1, 1)
    other.learn_cost(0.012, 1, 1, 1)
    assert other.seconds(10) == pytest.approx(0.12)


def test_what_a_draft_takes_beside_its_tokens_is_told_by_drafts_of_other_lengths() -> None:
    """As on a GPU: launching and catching up take 0.3 ms, each token 0.07."""
    arm = Arm(cast("Drafter", Nobody()), further=GPU_FURTHER_PRIOR)
    for made in (1, 2, 3, 3, 5, 5, 3) * 4:
        arm.learn_cost(0.0003 + 0.00007 * made, made, made, 1)
    for made in (1, 3, 9, 16):
        assert arm.seconds(made) == pytest.approx(0.0003 + 0.00007 * made, rel=0.08)
    known = LevelTimes(StepTimes(), Average(0.9), Average(0.9), (arm.cost,), (arm.excess,), (arm.overhead,))
    again = Arm(cast("Drafter", Nobody()))
    copied = known.copy()
    again.use_costs(copied.costs[0], copied.excess[0], copied.overheads[0], 0)
    for _ in range(9):
        again.learn_cost(0.0003 + 0.00007 * 3, 3, 3, 1)
    assert again.seconds(16) == pytest.approx(0.0003 + 0.00007 * 16, rel=0.08)


def test_where_each_token_takes_as_long_as_the_first_nothing_is_beside() -> None:
    arm = Arm(cast("Drafter", Nobody()))
    for made in (1, 2, 4, 4, 8, 8, 3):
        arm.learn_cost(0.002 * made, made, made, 1)
    assert arm.line == pytest.approx((0.0, 0.002), rel=0.01, abs=1e-5)


def test_what_a_level_s_own_rounds_took_by_bad_luck_is_no_cost_of_the_whole() -> None:
    """Three tokens are expected to take 6 ms, and its rounds took 20."""
    spent = [0.0]
    arm = Arm(cast("Drafter", Nobody()), pace=lambda: 0.002, spent=lambda: spent[0])
    for _ in range(3):
        spent[0] += 0.02
        arm.learn_cost(0.021, 3, 3, 1, arm.rounds_took())
    assert arm.overhead.mean == pytest.approx(0.001)
    assert arm.rounds_took() == 0.0


def test_a_level_is_expected_to_take_what_its_drafts_are_worth_now() -> None:
    """By the tests of the same model's drafts for the target, while the level itself is not used."""
    above, below = (Arm(cast("Drafter", Nobody()), forecast=lambda _: 0.02) for _ in range(2))
    above.pair_with(below)
    level = Planner([below], most=8)
    assert level.expected_gain(100) == 1.0
    assert level.expected_pace == 0.0
    for _ in range(40):
        level.learn(Plan(4, below), 0, 4, 4, 0.0002, 0.003)
    easy = level.expected_gain(100), level.expected_pace
    for _ in range(200):
        above.curve.learn(4, 0)
    assert level.expected_gain(100) < easy[0] / 2
    assert level.expected_pace > 1.5 * easy[1]
    above.curve.use(AcceptanceCurve())
    assert below.curve is above.curve
    below.restart()
    assert below.curve is above.curve
    assert not above.curve.tested


@pytest.mark.parametrize(("gamma", "sequences"), [(None, 4), (8, 1)])
def test_a_level_takes_as_long_as_expected(gamma: int | None, sequences: int) -> None:
    """Beside other sequences, and with drafts of a fixed length, which may be longer than is best."""
    luck, arm = random.Random(0), Arm(cast("Drafter", Nobody()))
    level = Planner([arm], None, gamma, 8, plain=False)
    level.sequences, took, made = sequences, 0.0, 0
    for _ in range(400):
        plan = level.choose(100, 8, 0)
        accepted = next((i for i in range(plan.n) if luck.random() > 0.5), plan.n)
        seconds = 0.0004 * plan.n, 0.002 + 0.0001 * plan.n
        level.learn(plan, 0, plan.n, accepted, *seconds)
        took, made = took + sum(seconds), made + 1 + accepted
    assert level.expected_pace == pytest.approx(took / made, rel=0.15)


def test_a_level_without_drafters_takes_what_its_rounds_took() -> None:
    """Lookup drafts for it."""
    level = Planner([], NgramLookup(), most=8)
    for _ in range(3):
        level.learn(Plan(3), 0, 3, 1, 0.0, 0.004)
    assert level.expected_pace == pytest.approx(level.pace) == pytest.approx(0.002)


@pytest.mark.parametrize("slower", [3, 12])
def test_slow_rounds_of_a_level_do_not_hide_what_the_whole_takes(slower: int) -> None:
    spent = [0.0]
    arm = Arm(cast("Drafter", Nobody()), pace=lambda: 0.002, spent=lambda: spent[0])
    for at in range(60):
        rounds = 0.006 * (slower if at % 2 else 1)
        spent[0] += rounds
        arm.learn_cost(0.004 + rounds, 3, 3, 1, arm.rounds_took())
    assert arm.overhead.mean == pytest.approx(0.004)


def test_a_draft_that_was_interrupted_does_not_stand() -> None:
    arm = Arm(cast("Drafter", Nobody()), pace=lambda: 0.002)
    for _ in range(9):
        arm.learn_cost(0.012, 5, 5, 1)
    arm.learn_cost(9.0, 5, 5, 1)
    assert arm.overhead.mean < 0.01


def test_what_a_draft_takes_as_a_whole_makes_longer_drafts_pay() -> None:
    asked = []
    for overhead in (0.0, 0.05):
        arm = Arm(cast("Drafter", Nobody()))
        planner = Planner([arm], most=16)
        for _ in range(4):
            planner.learn(Plan(0), 0, 0, 0, 0.0, 0.01)
        arm.cost.add(0.002, 4.0)
        arm.overhead.add(overhead, 4.0)
        rates = planner.rates(arm, 16, arm.line, arm.curve)
        asked.append(max(rates, key=rates.__getitem__))
    assert asked[1] > asked[0]


def test_a_level_knows_its_pace_by_all_tokens_and_all_seconds() -> None:
    """Half of its rounds bring eight tokens each: a token takes no mean of a long and a short round's share."""
    planner = Planner([Arm(cast("Drafter", Nobody()))], most=8)
    plan = Plan(7, planner.arms[0])
    for accepted in 50 * (0, 7):
        planner.learn_unwaited(plan, 0, accepted, 0.001, 0.003)
    assert planner.pace == pytest.approx(2 * 0.004 / 9, rel=0.05)
    planner.learn_unwaited(plan, 0, 7, 0.0, 9.0)  # it was interrupted
    assert planner.pace < 0.001
    planner.restart()
    assert planner.pace == 0


def test_it_is_kept_beside_the_other_times() -> None:
    stack = Hierarchy(H200_8B, "auto")
    stack.answer(Text(HOT, 1), 200)
    known = stack.planner.known_times
    plain = json.loads(json.dumps(known.plain()))
    found = LevelTimes.of(plain)
    assert found.overheads[0].mean == pytest.approx(stack.level.overhead.mean, rel=1e-4)
    assert found.overheads[0].mean > 0.001
    assert [each.mean for each in found.fixed().overheads] == [each.mean for each in found.overheads]
    stack.restack()
    stack.planner.use_times(found)
    assert stack.level.seconds(4) == pytest.approx(
        known.overheads[0].mean + 4 * known.costs[0].mean, rel=1e-4
    )
    del plain["overheads"]  # as earlier versions kept them
    assert [each.weight for each in LevelTimes.of(plain).overheads] == [0.0, 0.0]


# What a few tests say


def test_a_few_failures_do_not_condemn_a_level() -> None:
    level, model = AcceptanceCurve(LEVEL_GUESS), AcceptanceCurve()
    for curve in (level, model):
        curve.learn(4, 0)
        curve.learn(4, 1)
    assert level.chances(1)[0] > 0.78 > model.chances(1)[0] + 0.2
    for _ in range(100):
        level.learn(4, 0)
    assert level.chances(1)[0] < 0.2


def test_a_restarted_or_stored_level_is_still_one() -> None:
    arm = Arm(cast("Drafter", Nobody()), guess=LEVEL_GUESS)
    arm.curve.learn(4, 0)
    arm.curve.use(AcceptanceCurve.of(arm.curve.plain()))
    assert arm.curve.alike == LEVEL_GUESS.tests
    arm.restart()
    assert arm.curve.chances(1) == [LEVEL_GUESS.rate]


def test_tests_that_contradict_what_was_learnt_outweigh_it() -> None:
    """Also where it becomes easier; and a single failure contradicts nothing."""
    for usual, now in ((0.97, 0.2), (0.3, 0.97)):
        curve, luck = AcceptanceCurve(), random.Random(0)
        for _ in range(200):
            curve.learn(1, int(luck.random() < usual))
        learnt = curve.chances(1)[0]
        curve.learn(1, int(usual < 0.5))
        assert curve.chances(1)[0] == pytest.approx(learnt, abs=0.05)
        for _ in range(12):
            curve.learn(1, int(luck.random() < now))
        assert abs(curve.chances(1)[0] - now) < 0.5 * abs(learnt - now)


def test_what_matches_were_worth_in_other_answers_soon_counts_for_little() -> None:
    planner = Planner([], NgramLookup(), most=8)
    assert planner.lookup is not None
    for _ in range(100):
        planner.learn(Plan(8), 4, 8, 8, 0.0, 0.01)
        planner.lookup.learn(4, 8, 8)
    for another in (False, True):
        lookup, expected, accepted = (
            copy.deepcopy(planner.lookup),
            planner.lookup_expected,
            planner.lookup_accepted,
        )
        if another:
            planner.another_text()
        planner.learn(Plan(8), 4, 8, 0, 0.0, 0.01)
        planner.lookup.learn(4, 0, 1)
        assert (planner.record < 0.5, planner.lookup.rates[4] < 0.9) == (another, another)
        planner.lookup, planner.lookup_expected, planner.lookup_accepted = lookup, expected, accepted


def test_an_answer_that_copied_does_not_keep_the_next_one_from_trials() -> None:
    planner = Planner([], NgramLookup(), most=15)
    for _ in range(60):
        planner.learn(Plan(15), 4, 15, 15, 0.0, 0.01)
    assert planner.left_to_arms < 0.01 * planner.expected_rest
    planner.another_text()
    for _ in range(16):
        planner.learn_plain(0.01)
    assert planner.left_to_arms > 0.9 * planner.expected_rest


@pytest.mark.parametrize(("tests", "least", "most"), [(4, 0.06, 0.2), (400, 0.005, 0.04)])
def test_hope_fades_with_tests(tests: int, least: float, most: float) -> None:
    curve = AcceptanceCurve(Guess(0.7, 3.0))
    for i in range(tests):
        curve.learn(1, int(i % 10 < 7))
    (usual,), (hoped,) = curve.chances(1), curve.chances(1, hope=1.0)
    assert least < hoped - usual < most
    sure = AcceptanceCurve(Guess(1.0, 3.0))
    assert sure.chances(2, hope=1.0) == [1.0, 1.0]
