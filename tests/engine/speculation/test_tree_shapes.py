"""Shapes of trees: the best ones, and what follows from the parents of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from triforce_chat.engine.speculation.tree_plan import PRIOR, RankAcceptance, TreeOptions, TreePlan
from triforce_chat.engine.speculation.tree_shapes import (
    Rates,
    best_shape,
    expected_accepted,
    sequences,
    tables,
)
from triforce_chat.engine.tree import Parents, branches, children, depths, extended, levels, paths, verified

EAGER: Any = SimpleNamespace(device_side=False)  # a draft model whose forwards are not captured
RATES: list[Rates] = [
    (0.5, 0.2, 0.1),
    (0.9, 0.05, 0.02),
    (0.3, 0.3, 0.3),
    (0.4, 0.39, 0.01),
    (0.05, 0.04, 0.03),
    (0.7,),
]


def every_tree(n: int) -> Iterator[Parents]:
    """All trees of n tokens whose parents do not descend, each shape at least once."""

    def longer(parents: Parents) -> Iterator[Parents]:
        if len(parents) == n:
            yield parents
            return
        for parent in range(parents[-1] if parents else -1, len(parents)):
            yield from longer((*parents, parent))

    return longer(())


@pytest.mark.parametrize("rates", RATES)
def test_the_best_shapes_are_those_of_brute_force(rates: Rates) -> None:
    for n in range(1, 9):
        found = [(levels(tree), expected_accepted(tree, rates)) for tree in every_tree(n)]
        for depth in range(1, 9):
            made = best_shape(rates, n, depth)
            best = max((chance for d, chance in found if d <= depth), default=0.0)
            # Where all children of the rates are there, fewer tokens are as good.
            assert expected_accepted(made, rates) == pytest.approx(best, abs=1e-12) or len(made) < n
            assert expected_accepted(made, rates) >= best - 1e-12
            assert len(made) <= n
            assert levels(made) <= depth
            assert tables(rates, n, depth).accepted[depth, n] == pytest.approx(
                expected_accepted(made, rates), abs=1e-12
            )


def test_parents_come_level_by_level() -> None:
    made = best_shape(PRIOR, 40, 8)
    assert len(made) == 40
    assert list(depths(made)) == sorted(depths(made))
    assert list(made) == sorted(made)


def test_the_largest_tables_serve_smaller_trees() -> None:
    large = tables(PRIOR, 32, 12)
    for size, depth in ((5, 3), (16, 6), (32, 12)):
        assert best_shape(PRIOR, size, depth, large) == best_shape(PRIOR, size, depth)


def test_sequences_are_chains_side_by_side() -> None:
    assert sequences(2, 3) == (-1, -1, 0, 1, 2, 3)
    assert sequences(1, 3) == (-1, 0, 1)
    assert paths(sequences(2, 3))[-1] == (1, 3, 5)
    assert extended((-1, 0), 0, 3) == (-1, 0, 0, 2, 3)
    assert children((-1, -1, 0)) == {-1: (0, 1), 0: (2,)}


def test_a_verification_sees_ancestors() -> None:
    found = verified((-1, -1, 0, 2), 2)
    assert found.steps.tolist() == [0, 1, 2, 2, 3, 4]
    rows = ["100000", "110000", "111000", "110100", "111010", "111011"]
    assert found.visible.tolist() == [[each == "1" for each in row] for row in rows]


def test_a_chain_is_causal() -> None:
    found = verified((-1, 0, 1), 1)
    assert torch.equal(found.visible, torch.ones(4, 4, dtype=torch.bool).tril())
    assert found.steps.tolist() == [0, 1, 2, 3]


def test_a_level_sees_the_levels_before_it() -> None:
    found = branches((-1, -1, 0, 1), (0, 1, 2, 3), first=2)
    assert found.steps.tolist() == [-1, -1]  # the cache counts two tokens of the same depth
    assert found.visible.tolist() == [[True, False, True, False], [False, True, False, True]]


def test_ranks_learn_which_child_is_accepted() -> None:
    ranks = RankAcceptance()
    assert ranks.rates == pytest.approx(PRIOR, abs=1e-3)
    for _ in range(2000):
        ranks.learn((-1, -1, 0), [1])
    assert ranks.rates[0] < 0.01
    assert ranks.rates[1] > 0.98
    assert ranks.tests[2].mean == pytest.approx(PRIOR[2] / (1 - sum(PRIOR[:2])), abs=1e-9)  # never tested


def test_plans_go_by_measured_times() -> None:
    plan = TreePlan(TreeOptions("auto"), EAGER)
    plan.level.add(1e-9)
    assert len(plan.shape(32, 1.0, 1e-6)) == 32  # rows cost nothing
    assert len(plan.shape(32, 1.0, 1.0)) == 1  # a row costs as much as a round
    plan.level.clear()
    plan.level.add(10.0)
    assert levels(plan.shape(32, 1.0, 1e-6)) == 1  # a level costs ten rounds
    assert plan.shape(3, 0.0, 0.0) == best_shape(plan.rates, 3, 3)  # nothing was measured


@pytest.mark.parametrize(
    ("options", "size", "depth"),
    [
        (TreeOptions("sequoia"), 16, 6),
        (TreeOptions("sequoia", 10, 3), 10, 3),
        (TreeOptions("specinfer", 20, 5), 20, 5),
        (TreeOptions("auto", 8), 8, 6),
    ],
)
def test_a_fixed_plan_keeps_to_its_options(options: TreeOptions, size: int, depth: int) -> None:
    plan = TreePlan(options, EAGER, fixed=True)
    made = plan.shape(64, 1.0, 0.1)
    plan.learn(made, [0], 5.0)
    assert plan.shape(64, 1.0, 0.1) == made
    assert len(made) == size
    assert levels(made) <= depth
