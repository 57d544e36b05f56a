"""The distribution of the output where drafts are trees, computed exactly at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from support.emulated_graphs import emulate
from support.toys import (
    LONGER,
    PROMPT,
    Context,
    ToyModel,
    distribution_of,
    exact_distribution,
    reading,
    support_table,
    toy,
    variation,
)
from support.tree_toys import (
    LARGE,
    SHAPES,
    Batch,
    captured_tree_over,
    only_the_token_is_lost,
    tree_below,
    tree_over,
    untouched_residual,
    unwaited_tree_below,
    with_replacement_rule,
)
from torch import Tensor

from triforce_chat.engine import draft as draft_module
from triforce_chat.engine.sampling import branching, executor
from triforce_chat.engine.sampling.executor import EagerExecutor, Executor, GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation import planner, tree_draft
from triforce_chat.engine.tree import Parents, families

EXACT = 1e-12
PLAIN = Sampling(temperature=1.0)
WARPS = {
    "greedy": Sampling(temperature=0),
    "top-p": Sampling(temperature=0.8, top_p=0.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "penalty": Sampling(temperature=1.0, repetition_penalty=1.7),
    "everything": Sampling(temperature=0.7, top_k=3, top_p=0.9, min_p=0.05, repetition_penalty=1.2),
}


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tree_under_the_target(kind: str, shape: str) -> None:
    target, draft = toy(1), toy(2)
    n = 2 if shape == "deep" else 3
    found = distribution_of(tree_over(target, draft, SHAPES[shape], kind=kind), PLAIN, n)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    assert variation(found, exact_distribution(target, PLAIN, n)) <= EXACT


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("shape", ["siblings", "fork"])
def test_a_tree_below_the_middle_level(kind: str, shape: str) -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    stack = tree_below(target, middle, draft, SHAPES[shape], 1, kind=kind)
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("shape", ["chain", "siblings", "fork"])
@pytest.mark.parametrize("warp", ["plain", "top-p", "penalty"])
def test_trees_of_captured_forwards(kind: str, shape: str, warp: str) -> None:
    target, draft, sampling = toy(1), toy(2), {"plain": PLAIN, **WARPS}[warp]
    stack = captured_tree_over(target, draft, SHAPES[shape], kind=kind)
    found = distribution_of(stack, sampling, 3, prompt=LONGER)
    assert variation(found, exact_distribution(target, sampling, 3, LONGER)) <= EXACT


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize("shape", ["one", "siblings", "fork"])
def test_trees_below_a_middle_level_that_nobody_waits_for(kind: str, shape: str) -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    stack = unwaited_tree_below(target, middle, draft, SHAPES[shape], 2, kind=kind)
    assert stack.middle.unwaited
    found = distribution_of(stack, PLAIN, 3, prompt=LONGER)
    assert variation(found, exact_distribution(target, PLAIN, 3, LONGER)) <= EXACT


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("below", [False, True])
def test_every_warp(warp: str, below: bool) -> None:
    target, middle, draft = toy(7), toy(8), toy(9)
    stack = (
        tree_below(target, middle, draft, SHAPES["fork"], 1)
        if below
        else tree_over(target, draft, SHAPES["fork"])
    )
    found = distribution_of(stack, WARPS[warp], 3)
    assert variation(found, exact_distribution(target, WARPS[warp], 3)) <= EXACT


def test_a_draft_with_less_support_than_children() -> None:
    """The third child follows for certain, as nothing is left to draw from."""
    target, draft = toy(1, 4), ToyModel(4, support_table(4, 2, [1, 3]))
    found = distribution_of(tree_over(target, draft, SHAPES["siblings"]), PLAIN, 2)
    assert variation(found, exact_distribution(target, PLAIN, 2)) <= EXACT


def nearly_certain(vocabulary: int, seed: int, open_at: int) -> ToyModel:
    """A model that draws from all tokens after contexts of one length, and is certain after all others."""
    free, one = (support_table(vocabulary, seed, range(n)) for n in (vocabulary, 1))

    def table(context: Context) -> Tensor:
        if len(context) == open_at:
            return free(context)
        return one(context).roll(sum(context) % vocabulary)

    return ToyModel(vocabulary, table)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("after", [0, 1])
def test_a_tree_of_more_than_64_tokens(after: int, captured: bool) -> None:
    """Where the draft is certain, the second and third child are the next best tokens."""
    prompt = (*LONGER, *LONGER, *LONGER)  # the captured draft is no longer than that
    target, draft = toy(1), nearly_certain(3, 2, len(prompt) + after)
    over = captured_tree_over if captured else tree_over
    found = distribution_of(over(target, draft, LARGE), PLAIN, 3, prompt=prompt)
    assert variation(found, exact_distribution(target, PLAIN, 3, prompt)) <= EXACT


@pytest.mark.parametrize("shape", ["chain", "siblings", "fork"])
def test_a_branch_of_looked_up_tokens(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "CUTOFF", 0.01)
    target, draft = toy(1), toy(2)
    stack = tree_over(target, draft, SHAPES[shape], lookup=True)
    prompt = (0, 1, 2, 0, 1)
    found = distribution_of(stack, PLAIN, 3, prompt=prompt)
    assert variation(found, exact_distribution(target, PLAIN, 3, prompt)) <= EXACT


def test_a_tree_whose_draft_reads_the_target_s_state() -> None:
    target, draft = toy(1), toy(2)
    state, stack = reading(target, target, draft), tree_over(target, draft, SHAPES["fork"])
    stack.parts.append(state)
    assert variation(distribution_of(stack, PLAIN, 4), exact_distribution(target, PLAIN, 4)) <= EXACT


def test_a_constrained_answer() -> None:
    def may(context: Context) -> list[bool]:
        return [True, len(context) % 2 == 0, context[-1] != 2]

    target, draft = toy(1), toy(2)
    found = distribution_of(tree_over(target, draft, SHAPES["fork"]), PLAIN, 3, may=may)
    assert variation(found, exact_distribution(target, PLAIN, 3, may=may)) <= EXACT


BATCHES: list[tuple[int, tuple[Parents, ...]]] = [
    (3, ((-1, -1), (-1,))),
    (3, ((-1,), (-1, -1))),
    (2, ((-1, -1, 0), (-1, 0))),
    (2, ((-1, 0), (-1, -1, 1, 0))),
]


def batch(vocabulary: int, trees: tuple[Parents, ...], kind: str, executor: Executor) -> Batch:
    prompts = [(0, 1), (1, 0)]
    return Batch(toy(1, vocabulary), toy(2, vocabulary), trees, prompts, kind == "specinfer", executor)


@pytest.mark.parametrize("kind", ["sequoia", "specinfer"])
@pytest.mark.parametrize(("vocabulary", "trees"), BATCHES)
@pytest.mark.parametrize("graphs", [False, True])
def test_trees_of_several_sequences_at_once(
    kind: str, vocabulary: int, trees: tuple[Parents, ...], graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of different shapes and sizes: what all of them make is as likely as if each were alone."""
    if graphs:
        emulate(monkeypatch)
    made = batch(vocabulary, trees, kind, GraphExecutor() if graphs else EagerExecutor())
    found = made.distribution(2)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    exact = made.exact(2)
    assert sum(abs(found.get(key, 0.0) - exact.get(key, 0.0)) for key in found | exact) / 2 <= EXACT


# What the tests above must be able to see


@pytest.mark.parametrize("graphs", [False, True])
def test_another_sequence_s_shape_changes_the_distribution(
    graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if graphs:
        emulate(monkeypatch)
    for module in (draft_module, executor):
        turned = lambda trees, *room: families(trees[::-1], *room)  # noqa: E731
        monkeypatch.setattr(module, "families", turned)
    made = batch(2, ((-1, -1, 0), (-1, 0, 0)), "sequoia", GraphExecutor() if graphs else EagerExecutor())
    found, exact = made.distribution(2), made.exact(2)
    assert sum(abs(found.get(key, 0.0) - exact.get(key, 0.0)) for key in found | exact) / 2 > 0.01


@pytest.mark.parametrize("rule", [untouched_residual, with_replacement_rule, only_the_token_is_lost])
def test_a_wrong_rule_changes_the_distribution(rule: Callable[..., branching.PathVerdict]) -> None:
    target, draft = toy(1), toy(2)
    with patch.object(executor, "verify_tree", rule):
        found = distribution_of(tree_over(target, draft, SHAPES["siblings"]), PLAIN, 2)
    assert variation(found, exact_distribution(target, PLAIN, 2)) > 0.01


def test_laws_that_forget_the_elder_siblings_change_the_distribution() -> None:
    target, draft = toy(1), toy(2)

    def whole(laws: Tensor, *given: Any) -> None:
        branching.draw_children(laws, *given)
        given[-2][:] = laws[0]  # of the root's children, all there are

    with patch.object(tree_draft, "draw_children", whole):
        found = distribution_of(tree_over(target, draft, SHAPES["siblings"]), PLAIN, 2)
    assert variation(found, exact_distribution(target, PLAIN, 2)) > 0.01


def test_a_cache_that_keeps_another_path_changes_the_distribution() -> None:
    target, draft = toy(1), toy(2)
    stack = tree_over(target, draft, SHAPES["fork"])
    stack.top.cache.keep = lambda length, path: stack.parts[0].ids.__delitem__(  # type: ignore[method-assign]
        slice(length + len(path), None)
    )
    assert (
        variation(distribution_of(stack, PLAIN, 3, prompt=PROMPT), exact_distribution(target, PLAIN, 3))
        > 0.01
    )
