"""Plans of trees: what they are learnt from, when they take a chain's place, and that they need few captures."""

from __future__ import annotations

import json
import random
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
from support.clocked import CPU, Costly, FakeClock, clocked
from support.labs import SMALL_BUDGET, Lab, spell
from support.stored_calibrations import Shelf
from support.toys import ToyCache

from triforce_chat.engine.cuda_graph import MARGIN, TREE_DEPTHS, TREE_SIZES, fitting
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.calibration import Calibration
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.plan import Proposals
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.stack_specs import MAX_TREE
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_graph import graph_widths
from triforce_chat.engine.speculation.tree_plan import (
    LARGEST_PLANNED,
    LOST,
    PATIENCE,
    PAYS,
    UNKNOWN,
    RoundCosts,
    TreeOptions,
    TreeOrChain,
    TreePlan,
    usual,
)
from triforce_chat.engine.speculation.tree_rates import PRIOR, RankAcceptance, eldest_line, rates_of
from triforce_chat.engine.speculation.tree_shapes import best_shape, sequences
from triforce_chat.engine.tree import depth_of

EAGER: Any = SimpleNamespace(device_side=False)  # a draft model whose forwards are not captured
CAPTURED: Any = SimpleNamespace(device_side=True)
FREE = RoundCosts(1.0, 1e-6, 1e-9)  # neither rows nor depth cost anything


# What is learnt


def test_ranks_learn_which_child_is_accepted() -> None:
    ranks = RankAcceptance()
    assert ranks.rates == pytest.approx(PRIOR, abs=1e-3)
    for _ in range(2000):
        ranks.learn((-1, -1, 0), [1], 1.0)
    assert ranks.rates[0] < 0.01
    assert ranks.rates[1] > 0.98
    assert ranks.tests[2].mean == pytest.approx(PRIOR[2] / (1 - sum(PRIOR[:2])), abs=1e-9)  # never tested


def test_ranks_learn_from_chains_about_first_children_alone() -> None:
    ranks = RankAcceptance()
    before = [test.plain() for test in ranks.tests]
    for _ in range(500):
        ranks.learn_chain(4, 3)
    assert ranks.tests[0].mean == pytest.approx(0.75, abs=0.01)
    assert [test.plain() for test in ranks.tests[1:]] == before[1:]


def test_trees_are_believed_as_far_as_they_kept_their_promises() -> None:
    plan = TreePlan(TreeOptions("sequoia", 8, 4), EAGER)
    shape = plan.shape(8, UNKNOWN)
    hoped = plan.expected(shape)
    assert plan.forecast(shape) == pytest.approx(1 + hoped)
    for _ in range(300):
        plan.learn(shape, [], 9, None)
    assert plan.ranks.record.mean < 0.01
    for _ in range(3000):
        plan.ranks.learn_chain(1, 1)  # unused, they get another chance
    assert plan.ranks.record.mean > 0.9


@pytest.mark.parametrize(
    ("path", "line"),
    [([], (3, 0)), ([0], (3, 1)), ([0, 2], (3, 2)), ([0, 2, 4], (3, 3)), ([1], (3, 0)), ([0, 3], (3, 1))],
)
def test_a_tree_tells_of_the_chain_that_is_in_it(path: list[int], line: tuple[int, int]) -> None:
    assert eldest_line((-1, -1, 0, 0, 2), path) == line


def test_ranks_come_back() -> None:
    ranks = RankAcceptance((0.4, 0.3))
    luck = random.Random(0)
    for _ in range(200):
        ranks.learn((-1, -1), [0] if luck.random() < 0.5 else [], 0.7)
    found = RankAcceptance.of(json.loads(json.dumps(ranks.plain())))
    assert found.rates == ranks.rates
    assert found.record.mean == pytest.approx(ranks.record.mean, rel=1e-5)
    damaged: list[dict[str, Any]] = [{"tests": []}, {"tests": [[2.0, 1.0]]}, {"record": [-1.0, 1.0]}]
    for damage in damaged:
        with pytest.raises(ValueError, match=r"."):
            RankAcceptance.of({**ranks.plain(), **damage})
    for plain in ([], [0.9, 0.9], [-0.1], ["x"]):
        with pytest.raises(ValueError, match=r"."):
            rates_of(plain)


# Shapes


def test_plans_go_by_measured_times() -> None:
    def planned(costs: RoundCosts, most: int = 32) -> Any:
        return TreePlan(TreeOptions("auto"), EAGER).shape(most, costs)

    assert len(planned(FREE)) == 32
    assert len(planned(RoundCosts(1.0, 1.0, 1e-9))) == 1  # a row costs as much as a round
    assert depth_of(planned(RoundCosts(1.0, 1e-6, 10.0))) == 1  # a step of depth costs ten rounds
    assert planned(UNKNOWN, 3) == best_shape(RankAcceptance().rates, 3, 3)


def test_large_trees_are_planned_where_a_pass_takes_long() -> None:
    """As where weights are streamed, if they may be; elsewhere trees stay as they are."""

    def size(costs: RoundCosts, drafter: Any = CAPTURED, **options: Any) -> int:
        plan = TreePlan(TreeOptions("auto", **options), drafter)
        return len(plan.shape(plan.most(1000), costs))

    streamed, on_chip = RoundCosts(0.9, 1e-4, 2e-3), RoundCosts(0.012, 1e-4, 4e-4)
    assert size(streamed, planned=MAX_TREE) == 511
    assert size(streamed, EAGER, planned=MAX_TREE) > 255
    assert size(RoundCosts(0.04, 1e-4, 2e-3), planned=MAX_TREE) in (31, 63, 127)
    for drafter in (CAPTURED, EAGER):
        assert size(on_chip, drafter) <= LARGEST_PLANNED
        assert size(streamed, drafter) <= LARGEST_PLANNED


@pytest.mark.parametrize(("most", "deepest"), [(32, 16), (64, 16), (256, 32), (512, 32)])
def test_larger_trees_may_be_deeper(most: int, deepest: int) -> None:
    certain = (0.999, 0.0001)
    for drafter in (EAGER, CAPTURED):
        plan = TreePlan(TreeOptions("auto", planned=most), drafter)
        plan.begin_with(certain)
        assert depth_of(plan.shape(most, FREE)) == deepest
    assert max(depth_of(shape) for shape in plan.usual_depths()) == deepest


def test_what_joins_a_tree_from_elsewhere_has_room_in_it() -> None:
    for drafter, most, kept in ((EAGER, 40, 30), (CAPTURED, 40, 30), (CAPTURED, 64, 54)):
        plan = TreePlan(TreeOptions("sequoia", most), drafter)
        assert len(plan.shape(most, FREE)) == most
        assert len(plan.shape(most, FREE, 10)) == kept
    plan = TreePlan(TreeOptions("auto", planned=MAX_TREE), CAPTURED)
    assert len(plan.shape(MAX_TREE, FREE, 20)) == MAX_TREE - 20
    plan = TreePlan(TreeOptions("specinfer", 40, 5), EAGER)
    assert len(plan.shape(40, FREE, 10)) == 30


@pytest.mark.parametrize(
    ("options", "size", "depth"),
    [
        (TreeOptions("sequoia"), 16, 6),
        (TreeOptions("sequoia", 10, 3), 10, 3),
        (TreeOptions("sequoia", 40, 9), 40, 9),
        (TreeOptions("specinfer", 20, 5), 20, 5),
        (TreeOptions("specinfer", 64, 8), 64, 8),
    ],
)
def test_a_fixed_plan_keeps_to_its_options(options: TreeOptions, size: int, depth: int) -> None:
    plan = TreePlan(options, EAGER, fixed=True)
    made = plan.shape(options.most, RoundCosts(1.0, 0.1, 0.1))
    plan.learn(made, [0], 1 + size, (5.0, 5.0))
    assert plan.shape(options.most, RoundCosts(1.0, 0.1, 0.1)) == made
    assert len(made) == size
    assert depth_of(made) <= depth


def test_the_usual_choice_is_the_largest_that_is_no_larger() -> None:
    assert [usual(choices, 6) for choices in ([1, 3, 7], range(1, 9), [40])] == [3, 6, 40]


@pytest.mark.parametrize("kind", ["sequoia", "auto"])
@pytest.mark.parametrize("size", [None, 12, 63, 64])
def test_whatever_is_learnt_there_are_few_graphs(kind: str, size: int | None) -> None:
    """All are among the usual ones, which are captured before an answer."""
    plan = TreePlan(TreeOptions(kind, size), CAPTURED)
    drafts = {graph_widths(shape) for shape in plan.usual_depths()}
    rows = {fitting(1 + len(shape), TREE_SIZES) for shape in plan.usual_shapes()}
    assert len(drafts) <= len(TREE_DEPTHS)
    assert len(rows) <= 5
    luck = random.Random(1)
    for row, level in product((1e-6, 0.003, 0.03, 0.3), repeat=2):
        left, rates = 1.0, []
        for _ in range(8):
            rates.append(max(0.003, left * luck.random()))
            left = max(0.003, left - rates[-1])
        plan.begin_with(tuple(rates))
        plan.within = 0, 0
        made = plan.shape(plan.most(100), RoundCosts(1.0, row, level))
        assert graph_widths(made) in drafts
        assert fitting(1 + len(made), TREE_SIZES) in rows


def test_a_graph_is_as_wide_as_a_tree_needs() -> None:
    assert graph_widths(sequences(8, 8)) == (1, *7 * (8,))
    assert graph_widths(sequences(5, 8)) == (1, *7 * (8,))
    assert graph_widths(sequences(16, 4)) == (1, *3 * (16,))
    assert graph_widths(sequences(64, 1)) == (1,)
    assert graph_widths(sequences(10, 6)) == (1, *5 * (10,))  # 16 have no bits
    assert graph_widths(sequences(1, 16)) == (1, *15 * (4,))
    assert graph_widths(sequences(1, 32)) == (1, *31 * (2,))


def test_graphs_of_large_trees_are_wider() -> None:
    assert graph_widths(sequences(1, 12), 128) == (1, *11 * (16,))
    assert graph_widths(sequences(1, 12), 512) == (1, *11 * (64,))
    assert graph_widths(sequences(1, 32), 512) == (1, *31 * (32,))
    assert graph_widths(sequences(85, 6), 512) == (1, *5 * (128,))
    assert graph_widths(sequences(256, 2), 512) == (1, 256)


@pytest.mark.parametrize("depth", TREE_DEPTHS)
def test_a_draft_s_window_has_room_for_many_tokens_before_it_is_read_again(depth: int) -> None:
    """Beside what the rounds of a proposal make at most, and all that the last of them feeds."""
    options = StackOptions("triforce", tree=TreeOptions("sequoia", 64))
    fed = depth + 1 + sum(graph_widths(sequences(1, depth)))
    assert options.hop - (Proposals().most + fed + MARGIN) >= 64
    assert StackOptions("triforce").hop < options.hop


# Trees or chains


def test_a_tree_takes_the_chain_s_place_where_it_clearly_pays() -> None:
    choice = TreeOrChain()
    assert not choice.drafts_tree(0.99 * PAYS, 1.0, 5)
    assert choice.drafts_tree(1.01 * PAYS, 1.0, 5)
    choice.drafted(True, 5)
    assert choice.drafts_tree(1.001, 1.0, 6)  # now it stays as long as it promises more
    assert not choice.drafts_tree(0.999, 1.0, 7)
    choice.drafted(False, 7)
    assert not choice.drafts_tree(1.001, 1.0, 8)


def test_what_promises_less_is_measured_again_less_and_less_often() -> None:
    choice, tried = TreeOrChain(), []
    for now in range(1, 2000):
        tree = choice.drafts_tree(0.9, 1.0, now)
        choice.drafted(tree, now)
        if tree:
            tried.append(now)
    assert tried[0] == PATIENCE + 1
    assert [later - sooner for sooner, later in pairwise(tried)] == [
        PATIENCE * 2**n + 1 for n in range(1, len(tried))
    ]


@pytest.mark.parametrize(("rounds", "known", "loss"), [(1, True, 9), (4, True, 36), (4, False, 76)])
def test_what_is_far_off_is_measured_again_much_later(rounds: int, known: bool, loss: int) -> None:
    """After as long as makes its loss, in rounds of the better one, a small share of the time."""
    choice, wait = TreeOrChain(), round(loss / LOST)
    assert not any(choice.drafts_tree(0.1, 1.0, now, rounds, known) for now in range(wait))
    assert choice.drafts_tree(0.1, 1.0, wait + 1, rounds, known)


@pytest.mark.parametrize(("promise", "tree"), [(0.95, 0.5), (0.9, 0.4), (0.6, 0.6)])
def test_measuring_trees_that_do_not_pay_takes_little_time(promise: float, tree: float) -> None:
    """Proposals of four rounds each. Before trees were measured they promise more than they keep."""
    choice, now, lost, known = TreeOrChain(), 0, 0.0, False
    while now < 4000:
        drafts = choice.drafts_tree(tree if known else promise, 1.0, now, 4, known)
        lost += 4 * (1 / tree - 1) if drafts else 0.0
        known = known or drafts
        for _ in range(4):
            now += 1
            choice.drafted(drafts, now)
        assert lost < 2 * LOST * now
    assert known


class World:
    """A target of 0.1 s a step over a draft model that drafts trees or chains, on a clock of their own."""

    def __init__(self, right: float, cost: float, row: float, tree: TreeOptions | None, seed: int) -> None:
        clock = FakeClock()
        luck = random.Random(seed)
        target = Costly(clock, 0.1, 0.1 * row, noise=0.03, vocabulary=6, luck=luck)
        model: Any = DraftModel(Costly(clock, cost, right=right, vocabulary=6), ToyCache())  # type: ignore[arg-type]
        trees = None if tree is None else TreePlan(tree, model)
        self.planner = Planner([Arm(model)], most=16, plain=False, trees=trees)
        self.top = clocked("target", target, self.planner)
        self.sampler = Sampler(Sampling(temperature=1.0, seed=seed))

    def run(self, tokens: int) -> float:
        """Seconds per token."""
        seq = TokenBuffer.of([1], tokens + 200, CPU)
        before = self.top.clock.now()
        while seq.known < tokens:
            self.top.step(seq, self.sampler, 60)
        return (self.top.clock.now() - before) / seq.known


def seconds(tree: TreeOptions | None, row: float, costs: list[float]) -> float:
    """Seconds per token, over drafts of several qualities; by a single seed they differ by 3 % from luck alone."""
    every = product((0.4, 0.7, 0.9), costs, (3, 4, 5))
    return sum(World(right, cost, row, tree, seed).run(600) for right, cost, seed in every)


@pytest.mark.parametrize(("row", "costs"), [(0.3, [0.001, 0.01]), (0.15, [0.03]), (0.04, [0.01])])
def test_it_is_hardly_slower_than_chains_anywhere(row: float, costs: list[float]) -> None:
    assert seconds(TreeOptions("auto"), row, costs) < 1.02 * seconds(None, row, costs)


def test_it_is_faster_than_chains_where_rows_cost_little() -> None:
    auto, chain = seconds(TreeOptions("auto"), 0.003, [0.01]), seconds(None, 0.003, [0.01])
    assert auto < 0.85 * chain
    assert auto < 1.05 * seconds(TreeOptions("sequoia", 16, 4), 0.003, [0.01])


def test_what_a_tree_costs_is_learnt_and_the_chain_comes_back() -> None:
    """Before trees were measured they promise much; then each level takes ten times as long as a chain's token."""
    world = World(0.7, 0.005, 0.003, TreeOptions("auto"), 1)
    trees, draft = world.planner.trees, world.planner.arms[0].drafter
    assert trees is not None
    grow = trees.draft

    def slow(*given: Any) -> Any:
        draft.model.clock.seconds += 0.3  # type: ignore[attr-defined]
        return grow(*given)

    trees.draft = slow  # type: ignore[method-assign, assignment]
    world.run(1000)
    assert trees.measured
    assert not trees.choice.prefers_tree
    assert trees.verifications < 40


# Figures that outlive a process


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab.of(noise=0.1)


def engine_of(lab: Lab, shelf: Shelf, stack: str, tree: TreeOptions, **more: Any) -> Engine:
    options = StackOptions(stack, budget=SMALL_BUDGET, middle="full", tree=tree, **more)
    return Engine(lab.target, 400, TextCodec(spell, frozenset()), lab.draft, options, calibrations=shelf)


def trees_of(engine: Engine, stack: str) -> TreePlan:
    planner = engine.top.planner
    if stack == "triforce":
        planner = planner.arms[0].drafter.planner  # type: ignore[attr-defined]
    assert planner.trees is not None
    return planner.trees


@pytest.mark.parametrize("kind", ["sequoia", "auto", "specinfer"])
@pytest.mark.parametrize("stack", ["naive", "triforce"])
def test_a_new_process_begins_with_the_ranks_of_an_earlier_one(
    lab: Lab, stack: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Trees are drafted, whatever the clock says of them here.
    monkeypatch.setattr(Planner, "_tree_costs", lambda *_: RoundCosts(1.0, 0.01, 0.01))
    monkeypatch.setattr(TreeOrChain, "drafts_tree", lambda *_: True)
    shelf, tree = Shelf(), TreeOptions(kind, 8, 3)
    first = engine_of(lab, shelf, stack, tree)
    list(first.answer(Request(lab.text(120), 80, Sampling(temperature=1.0))))
    learnt = trees_of(first, stack)
    second = trees_of(engine_of(lab, shelf, stack, tree), stack)
    level = "target" if stack == "naive" else "retrieval"
    stored = shelf.read(first.options).acceptance[level].ranks
    assert stored is not None
    assert second.ranks.plain() == stored.plain()
    assert second.rates == stored.rates != RankAcceptance().rates
    if learnt.verifications > 2:
        times = engine_of(lab, shelf, stack, tree)
        times.calibrator.begin(120)
        assert trees_of(times, stack).measured


def test_what_was_evaluated_is_where_trees_begin(lab: Lab) -> None:
    shelf, rates = Shelf(), (0.3, 0.2, 0.1)
    shelf.keep_ranks(rates)
    tree = TreeOptions("sequoia", 8, 3)
    trees = trees_of(engine_of(lab, shelf, "naive", tree), "naive")
    assert trees.ranks.rates == pytest.approx(rates, abs=1e-3)
    trees.restart()
    assert trees.ranks.rates == pytest.approx(rates, abs=1e-3)
    fixed = trees_of(engine_of(lab, shelf, "naive", tree, gamma=8, repeatable=True), "naive")
    assert fixed.ranks.rates == pytest.approx(PRIOR, abs=1e-3)  # whatever was evaluated before


def test_figures_of_trees_are_left_out_where_there_are_none(lab: Lab) -> None:
    shelf = Shelf()
    options = StackOptions("naive", budget=SMALL_BUDGET, middle="full")
    engine = Engine(lab.target, 400, TextCodec(spell), lab.draft, options, calibrations=shelf)
    list(engine.answer(Request(lab.text(120), 40)))
    plain = shelf.read(engine.options).plain()
    assert "ranks" not in plain["acceptance"]["target"]
    assert "trees" not in next(iter(plain["learnt"].values()))["target"]
    assert Calibration.of(plain).plain() == plain


def test_with_a_seed_auto_drafts_chains(lab: Lab) -> None:
    request = Request(lab.text(60), 40, Sampling(temperature=1.0, seed=3))
    made = []
    for tree in (None, TreeOptions("auto")):
        for _ in range(2):
            options = StackOptions(
                "triforce", 8, 4, middle="full", repeatable=True, tree=tree, budget=SMALL_BUDGET
            )
            engine = Engine(lab.target, 400, TextCodec(spell), lab.draft, options)
            made.append([event for event in engine.answer(request) if hasattr(event, "token_ids")])
    assert made[0] == made[1] == made[2] == made[3]
