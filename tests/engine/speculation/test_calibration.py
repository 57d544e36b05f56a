"""Figures that outlive a process: planners that begin with them, and plans that follow them alone."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from support.clocked import CPU, WARM, Costly, FakeClock, Jumpy, clocked, set_clocks
from support.emulated_graphs import captured_pair, emulate
from support.head_drafts import with_head_draft
from support.labs import SMALL_BUDGET, Lab, spell
from support.stored_calibrations import Shelf, times
from support.toys import ToyCache

from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Calibrated, Event, Text, Verified
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation import calibrator
from triforce_chat.engine.speculation.arm import TRIALS, Arm
from triforce_chat.engine.speculation.calibration import Calibration, LevelTimes, Measured, bucket_of
from triforce_chat.engine.speculation.calibrator import TOKENS, outlooks
from triforce_chat.engine.speculation.cost_model import AcceptanceCurve, StepTimes
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.survey import SURVEY_DRAFTS, SURVEY_PLAIN

BUCKET = 256  # tokens; of all histories here
CLOCKS = 8  # that run differently
OPTIONS = StackOptions("auto", budget=SMALL_BUDGET, middle="full", repeatable=True)


# Figures as plain data


def test_step_times_come_back() -> None:
    times = StepTimes()
    for i in range(200):
        times.add(1 + i % 5, 0.1 + 0.004 * (i % 5))
    found = StepTimes.of(json.loads(json.dumps(times.plain())))
    assert [found(rows) for rows in (1, 4, 9)] == pytest.approx([times(rows) for rows in (1, 4, 9)], rel=1e-4)
    assert StepTimes.of(StepTimes().plain()).known is False


def test_acceptance_comes_back() -> None:
    curve, luck = AcceptanceCurve(), random.Random(0)
    for _ in range(300):
        curve.learn(4, luck.randrange(5))
    found = AcceptanceCurve.of(json.loads(json.dumps(curve.plain())))
    assert found.chances(6) == pytest.approx(curve.chances(6), abs=0.05)


def test_stored_figures_do_not_stand_forever() -> None:
    times, curve = StepTimes(), AcceptanceCurve()
    for _ in range(500):
        times.add(1, 0.1)
        curve.learn(1, 1)
    times, curve = StepTimes.of(times.plain()), AcceptanceCurve.of(curve.plain())
    for _ in range(20):
        times.add(1, 0.2)
        curve.learn(1, 0)
    assert times(1) > 0.18
    assert curve.chances(1)[0] < 0.5


@pytest.mark.parametrize(
    "damage",
    [
        lambda plain: plain["measured"]["256"]["times"]["target"]["steps"].update(level=[-1.0, 2.0]),
        lambda plain: plain["measured"]["256"]["times"]["target"]["steps"].update(shape=["a", 2.0]),
        lambda plain: plain["measured"]["256"]["times"].update(target=None),
        lambda plain: plain["measured"]["256"].pop("acceptance"),
        lambda plain: plain["measured"]["256"].update(left={"target": "many"}),
        lambda plain: plain["measured"].update({"256": 7}),
        lambda plain: plain["measured"].update({"x": plain["measured"].pop("256")}),
    ],
)
def test_what_is_damaged_is_left_out(damage: Any) -> None:
    table = {"target": times(0.1, 0.001)}
    plain = Calibration({BUCKET: Measured(table, {}), 512: Measured(table, {})}, {BUCKET: table}).plain()
    damage(plain)
    found = Calibration.of(json.loads(json.dumps(plain)))
    assert list(found.measured) == [512]
    assert list(found.learnt) == [BUCKET]


@pytest.mark.parametrize("plain", [None, 3, [], {}, {"measured": 3, "learnt": [1], "acceptance": "x"}])
def test_what_is_foreign_is_nothing(plain: Any) -> None:
    assert Calibration.of(plain).plain() == Calibration().plain()


def test_times_hold_up_to_a_factor_of_two() -> None:
    near, far = {"target": times(0.1, 0.0)}, {"target": times(0.4, 0.0)}
    known = Calibration({4096: Measured(near, {})}, {1024: far})
    assert known.near(4096) is known.near(8192) is near
    assert known.near(2048) is far
    assert known.near(512) is far
    assert known.near(16384) == {}
    assert [bucket_of(length) for length in (1, 256, 511, 512, 8191)] == [256, 256, 256, 512, 4096]


def test_what_was_measured_stays() -> None:
    first, other = {"target": times(0.1, 0.0)}, {"target": times(0.4, 0.0)}
    known = Calibration({BUCKET: Measured(first, {})}, {BUCKET: first})
    known.absorb(Calibration({BUCKET: Measured(other, {})}, {BUCKET: other}))
    assert known.measured[BUCKET].times is first
    assert known.learnt[BUCKET] is other


def test_the_outlook_says_what_drafts_are_worth() -> None:
    table = {"target": times(0.1, 0.001, 0.5, 0.001)}
    (found,) = outlooks(Calibration({BUCKET: Measured(table, {})}))
    assert found.plain_ms == pytest.approx(100)
    assert 20 < found.best_ms < 60
    assert outlooks(Calibration({BUCKET: Measured({}, {})})) == []


# Planners


class World:
    """A target of 0.1 s a step over a draft, on a clock of their own."""

    def __init__(self, right: float = 0.8, cost: float = 0.005) -> None:
        self.clock = FakeClock()
        self.draft = Costly(self.clock, cost, right=right)
        model = DraftModel(self.draft, ToyCache())  # type: ignore[arg-type]
        self.planner = Planner([Arm(model)], NgramLookup(), most=16)
        self.planner.lookup = None
        self.target = Costly(self.clock, 0.1, 0.004)
        self.top = clocked("target", self.target, self.planner)
        self.seq, self.sampler = TokenBuffer.of([1], 4000, CPU), Sampler(WARM)

    def run(self, rounds: int) -> list[Plan]:
        """The plans of so many rounds."""
        return [self.top.step(self.seq, self.sampler, 15)[0].plan for _ in range(rounds)]


def test_a_planner_goes_on_where_another_ended() -> None:
    first, second = World(), World()
    last = first.run(60)[-1]
    second.planner.use_times(LevelTimes.of(json.loads(json.dumps(first.planner.known_times.plain()))))
    second.planner.use_acceptance(first.planner.known_acceptance)
    begun = second.run(10)
    assert not any(plan.trial for plan in begun)
    assert begun[0].arm is second.planner.arms[0]
    assert abs(begun[0].n - last.n) <= 2
    assert any(plan.trial for plan in World().run(10))
    assert second.planner.times.steps(1) != first.planner.times.steps(1)  # refined


def test_the_first_draft_of_a_process_may_include_preparations() -> None:
    planner = World().planner
    planner.use_times(times(0.1, 0.001, 0.01))
    planner.arms[0].learn_cost(4.0, 4, 4, 1)
    assert planner.arms[0].cost.mean == pytest.approx(0.01, rel=1e-3)
    planner.arms[0].learn_cost(0.08, 4, 4, 2)
    assert planner.arms[0].cost.mean == pytest.approx(0.012, rel=0.2)


def fixed_world(noise: float, speed: float) -> World:
    """Fixed figures say that drafts pay; the clock says something else each time."""
    world = World()
    world.planner.restart()
    world.planner.use_times(times(0.1, 0.004, 0.005).fixed())
    world.draft.one, world.target.one, world.target.noise = speed * 0.005, 0.1 / speed, noise
    return world


def test_fixed_times_make_plans_that_ignore_the_clock() -> None:
    usual = fixed_world(0.0, 1.0).run(120)
    assert sum(plan.n for plan in usual) > 120
    for noise, speed in ((0.9, 1.0), (0.0, 500.0), (0.5, 0.01)):
        world = fixed_world(noise, speed)
        assert [(plan.n, plan.rate) for plan in world.run(120)] == [(plan.n, plan.rate) for plan in usual]
        assert world.planner.times.steps(1) == 0.1
        assert world.planner.times.gap.mean == 0.0


def test_fixed_times_of_nothing_stay_unknown() -> None:
    planner = World().planner
    planner.use_times(LevelTimes.unknown(1).fixed())
    planner.learn(Plan(3, planner.arms[0]), 0, 3, 1, 0.1, 0.2)
    planner.learn_plain(0.1)
    planner.times.add_gap(0.1)
    assert not planner.known_times.known
    assert not planner.arms[0].measured
    assert planner.arms[0].curve.positions  # acceptance follows the tokens


def test_a_survey_measures_every_arm() -> None:
    world = World(right=0.05, cost=0.02)
    world.planner.survey(10_000)
    world.run(8)
    assert not world.planner.agenda
    assert world.planner.arms[0].cost.mean == pytest.approx(0.02)
    assert world.planner.times.steps.line == pytest.approx((0.1, 0.004), rel=0.05)
    assert world.planner.arms[0].trials == len(TRIALS)


# Answers


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab.of(noise=0.1)


def engine_of(lab: Lab, shelf: Shelf, delays: int = 0, options: StackOptions = OPTIONS) -> Engine:
    engine = Engine(lab.target, 400, TextCodec(spell, frozenset()), lab.draft, options, calibrations=shelf)
    set_clocks(engine, delays)
    return engine


def request(lab: Lab, tokens: int = 40, seed: int = 5) -> Request:
    return Request(lab.text(120), tokens, Sampling(temperature=1.0, seed=seed))


def ids(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Text) for token in event.token_ids]


def proposed(events: Sequence[Event], level: str) -> int:
    return sum(event.proposed for event in events if isinstance(event, Verified) and event.level == level)


MIDDLE = times(0.01, 0.0001, 0.001)
TABLES = {
    "hierarchy": {"target": times(0.1, 0.001, 0.001, 9.0), "retrieval": MIDDLE},
    "draft model": {"target": times(0.1, 0.001, 9.0, 0.001), "retrieval": MIDDLE},
    "both": {"target": times(0.1, 0.001, 0.008, 0.005), "retrieval": MIDDLE},
}


@pytest.mark.parametrize("arm", TABLES)
def test_a_seed_gives_the_same_tokens_whatever_the_clock_says(lab: Lab, arm: str) -> None:
    shelf = Shelf()
    shelf.put(OPTIONS, BUCKET, TABLES[arm])
    runs = [list(engine_of(lab, shelf, delays).answer(request(lab))) for delays in range(CLOCKS)]
    assert [ids(run) for run in runs] == [ids(runs[0])] * CLOCKS
    assert not any(isinstance(event, Calibrated) for event in runs[0])
    assert proposed(runs[0], "target") > 20
    drafting = any(isinstance(event, Verified) and event.level == "retrieval" for event in runs[0])
    assert drafting is (arm != "draft model")
    if drafting:
        assert proposed(runs[0], "retrieval") > 0  # the whole hierarchy


def test_an_answer_begins_with_little_trust_in_the_matches_of_others(lab: Lab) -> None:
    """Unless it has a seed: then no other one shows in it."""
    for options in (OPTIONS, replace(OPTIONS, repeatable=False)):
        engine = engine_of(lab, Shelf(), options=options)
        engine.calibrator.begin(BUCKET)
        engine.top.planner.lookup_expected = engine.top.planner.lookup_accepted = 50.0
        engine.calibrator.begin(BUCKET)
        assert engine.top.planner.lookup_expected == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_that_measures_is_the_answer_of_later_runs(lab: Lab, seed: int) -> None:
    shelf = Shelf()
    engine = engine_of(lab, shelf, 1)
    assert not engine.plan_key
    first = list(engine.answer(request(lab, seed=seed)))
    kept = dict(shelf.texts)
    assert [event.done for event in first if isinstance(event, Calibrated)][-1] == TOKENS
    for delays in range(2, 6):
        again = engine_of(lab, shelf, delays)
        later = list(again.answer(request(lab, seed=seed)))
        assert again.plan_key == engine.plan_key != ""
        assert not any(isinstance(event, Calibrated) for event in later)
        assert ids(later) == ids(first)
    assert shelf.texts == kept  # seeded answers do not change it


@pytest.mark.parametrize("seed", range(6))
def test_what_measuring_leaves_behind_has_no_effect(
    lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was measured; here that the hierarchy pays, whose caches and queries measuring has changed."""
    found = TABLES["hierarchy"]
    shown = property(lambda planner: found["target" if len(planner.arms) == 2 else "retrieval"].copy())
    monkeypatch.setattr(Planner, "known_times", shown)
    shelf, given = Shelf(), request(lab, seed=seed)
    first, later = (list(engine_of(lab, shelf).answer(given)) for _ in range(2))
    assert isinstance(first[3], Calibrated)
    assert proposed(later, "retrieval") > 0
    assert ids(later) == ids(first)


@pytest.mark.parametrize("head", [False, True], ids=["", "reading states"])
@pytest.mark.parametrize("arm", TABLES)
@pytest.mark.parametrize("seed", range(3))
def test_no_earlier_answer_shows_in_a_later_one(lab: Lab, arm: str, seed: int, head: bool) -> None:
    if head:
        lab = with_head_draft(lab, range(lab.target.vocabulary), strength=1.0)
    shelf = Shelf()
    shelf.put(OPTIONS, BUCKET, TABLES[arm])
    given = request(lab)
    engine, fresh = (engine_of(lab, shelf) for _ in range(2))
    list(engine.answer(request(lab, 40, seed + 100)))
    engine.settle(given.prompt)
    list(fresh.prefill(given.prompt[:-1]))
    assert ids(list(engine.answer(given))) == ids(list(fresh.answer(given)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stack", ["auto", "triforce", "retrieval", "lookup"])
def test_the_same_request_again_has_the_same_answer(lab: Lab, stack: str, seed: int) -> None:
    """In one process, where the first answer's queries, chunks and matches were learnt."""
    shelf = Shelf()
    shelf.put(OPTIONS, BUCKET, TABLES["hierarchy"])
    gammas = (None, None) if stack == "auto" else (8, 4)
    engine = engine_of(
        lab, shelf, options=replace(OPTIONS, name=stack, gamma=gammas[0], draft_gamma=gammas[1])
    )
    given = Request(lab.text(200), 80, Sampling(temperature=1.0, seed=seed))
    first, again = (ids(list(engine.answer(given))) for _ in range(2))
    assert again == first


def test_a_calibration_leaves_nothing_in_the_caches(lab: Lab) -> None:
    engine, given = engine_of(lab, Shelf()), request(lab)
    list(engine.prefill(given.prompt[:-1]))
    positions = engine.full.queries.positions.copy()
    queries = engine.full.queries.latest(0, len(given.prompt) - 1, 64).clone()
    list(engine.calibrate(given))
    assert engine.full.queries.positions == positions
    assert engine.full.queries.latest(0, len(given.prompt) - 1, 64).equal(queries)
    assert engine.cached == list(given.prompt[:-1])
    assert engine.full.length == len(given.prompt) - 1
    assert list(engine.calibration.measured) == [BUCKET]
    known = engine.calibration.measured[BUCKET].times
    assert known["target"].steps.known
    assert known["retrieval"].steps.known
    assert all(cost.weight for level in known.values() for cost in level.costs)
    assert not any(isinstance(event, Calibrated) for event in engine.calibrate(given))
    assert not any(planner.agenda or planner.rounds for planner in engine.calibrator.planners.values())


@pytest.mark.parametrize("at", range(3, 12, 3))
def test_an_interrupted_calibration_keeps_nothing(lab: Lab, at: int) -> None:
    shelf, given = Shelf(), request(lab)
    engine = engine_of(lab, shelf)
    events = engine.answer(given)
    assert isinstance([*islice(events, at)][-1], Calibrated)
    events.close()
    assert not shelf.texts
    assert engine.cached == list(given.prompt[:-1])
    assert ids(list(engine.answer(given)))


def test_a_calibration_that_took_too_long_is_continued_by_later_starts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrator, "SECONDS", 0.0)  # each start has time for one round
    shelf, given, left = Shelf(), request(lab), list[int]()
    for start in range(40):
        engine = engine_of(lab, shelf, start)
        first, again = (list(engine.answer(given)) for _ in range(2))
        assert ids(again) == ids(first)  # a stack goes by the same times all its life
        assert not any(isinstance(event, Calibrated) for event in again)
        left.append(shelf.read(engine.calibrator.options).measured[BUCKET].left.get("target", 0))
        if not left[-1]:
            break
    assert left == list(range(SURVEY_PLAIN + 2 * len(SURVEY_DRAFTS) - 1, -1, -1))
    known = shelf.read(engine.calibrator.options).measured[BUCKET]
    assert known.complete
    costs = [cost for level in known.times.values() for cost in level.costs]
    assert all(cost.weight > 0.5 for cost in costs)  # no arm was left with its warm-ups alone
    later = list(engine_of(lab, shelf).answer(given))
    assert not any(isinstance(event, Calibrated) for event in later)
    assert ids(later) == ids(first)


def test_of_two_unfinished_calibrations_the_further_one_stays() -> None:
    def known(left: int) -> Calibration:
        return Calibration({BUCKET: Measured({"target": times(0.1, 0.0)}, {}, {"target": left})})

    for lefts in ((3, 5), (5, 3), (3, 3), (0, 3), (3, 0)):
        first, other = map(known, lefts)
        first.absorb(other)
        plain = json.loads(json.dumps(first.plain()))
        assert Calibration.of(plain).measured[BUCKET].left.get("target", 0) == min(lefts)
        assert first.measured[BUCKET].complete == (0 in lefts)


def test_other_answers_learn_and_begin_with_what_was_learnt(lab: Lab) -> None:
    shelf, options = Shelf(), replace(OPTIONS, repeatable=False)
    first = engine_of(lab, shelf, options=options)
    first.top.planner.survey(BUCKET)  # by such a clock an arm may not be worth a trial
    list(first.answer(Request(lab.text(120), 80, Sampling(temperature=1.0))))
    known = shelf.read(options)
    assert list(known.learnt) == [BUCKET]
    assert not known.measured
    assert known.acceptance.keys() == {"target", "retrieval"}
    second = engine_of(lab, shelf, options=options)
    begun = second.top.planner.known_acceptance
    assert begun.plain() == known.acceptance["target"].plain()
    next(event for event in second.answer(request(lab)) if isinstance(event, Text))
    assert all(arm.measured for arm in second.top.planner.arms)
    assert [arm.trials for arm in second.top.planner.arms] == [len(TRIALS)] * 2


def test_other_figures_have_another_name(lab: Lab) -> None:
    names = set()
    for table in TABLES.values():
        shelf = Shelf()
        shelf.put(OPTIONS, BUCKET, table)
        engine = engine_of(lab, shelf)
        list(engine.answer(request(lab)))
        names.add(engine.plan_key)
        assert engine.plan_key.startswith(f"{engine.calibration_key}-")
    assert len(names) == len(TABLES)


def test_an_answer_that_learns_as_it_goes_names_no_figures(lab: Lab) -> None:
    engine = engine_of(lab, Shelf(), options=replace(OPTIONS, repeatable=False))
    list(engine.answer(request(lab)))
    assert engine.calibration_key
    assert not engine.plan_key


def test_fixed_numbers_need_no_calibration(lab: Lab) -> None:
    options = StackOptions("triforce", 4, 2, budget=SMALL_BUDGET, middle="full", repeatable=True)
    shelf = Shelf()
    runs = [list(engine_of(lab, shelf, delays, options).answer(request(lab))) for delays in range(3)]
    assert not shelf.texts
    assert engine_of(lab, shelf, 0, options).calibration_key == ""
    assert [ids(run) for run in runs] == [ids(runs[0])] * 3


# Forwards that are captured: the middle level's rounds are not waited for, and plain decoding overlaps


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def captured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Runner]:
    if request.param == "cpu":
        emulate(monkeypatch)
    return captured_pair(request.param, monkeypatch)


def captured_engine(pair: tuple[Runner, Runner], shelf: Shelf, delays: int) -> Engine:
    engine = Engine(pair[0], 400, TextCodec(spell), pair[1], OPTIONS, calibrations=shelf)
    engine.executor = GraphExecutor()
    engine.top.overlap = True
    middle = engine.top.planner.arms[0].drafter
    assert isinstance(middle, Speculative)
    assert middle.unwaited
    if pair[0].device.type == "cpu":
        engine.top.clock, middle.clock = Jumpy(delays), Jumpy(delays + 100)
    return engine


SLOW_DRAFTS = {"target": times(0.1, 0.001, 0.045, 0.06), "retrieval": MIDDLE}


@pytest.mark.parametrize("table", [*TABLES.values(), SLOW_DRAFTS, None])
def test_captured_forwards_repeat_an_answer(
    captured: tuple[Runner, Runner], lab: Lab, table: dict[str, LevelTimes] | None
) -> None:
    """Also where plain decoding runs ahead of the host, and where the first answer has to measure."""
    shelf = Shelf()
    if table:
        shelf.put(OPTIONS, BUCKET, table)
    answers = [list(captured_engine(captured, shelf, n).answer(request(lab, 50))) for n in range(4)]
    assert [ids(answer) for answer in answers] == [ids(answers[0])] * 4
    measured = [any(isinstance(event, Calibrated) for event in answer) for answer in answers]
    assert measured == [table is None, False, False, False]


def test_captured_rounds_are_measured(captured: tuple[Runner, Runner], lab: Lab) -> None:
    engine = captured_engine(captured, Shelf(), 0)
    list(engine.calibrate(request(lab)))
    known = engine.calibration.measured[BUCKET].times
    assert known["target"].undrafted.weight
    assert all(level.steps.known for level in known.values())
    assert all(cost.weight for level in known.values() for cost in level.costs)
