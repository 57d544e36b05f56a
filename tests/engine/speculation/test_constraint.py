"""The law of answers whose form is prescribed: the target's own, restricted to what is allowed, for every stack."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.toys import (
    Context,
    Echo,
    distribution_of,
    exact_distribution,
    three_levels,
    toy,
    two_levels,
    unwaited,
    variation,
)

from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner

EXACT = 1e-12
WARPS = {
    "plain": Sampling(temperature=1.0),
    "greedy": Sampling(temperature=0),
    "top-p": Sampling(temperature=0.8, top_p=0.7),
    "penalty": Sampling(temperature=1.0, top_k=2, repetition_penalty=1.7),
}


def no_repetition(context: Context) -> list[bool]:
    """Any token but the last one."""
    return [token != context[-1] for token in range(4)]


def forced(context: Context) -> list[bool]:
    """One token at every second place."""
    return [token == len(context) % 4 or len(context) % 2 == 0 for token in range(4)]


RULES: list[Callable[[Context], list[bool]]] = [no_repetition, forced]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("warp", WARPS)
def test_a_draft_model(warp: str, rule: Callable[[Context], list[bool]]) -> None:
    target, draft = toy(1, 4), toy(2, 4)
    found = distribution_of(two_levels(target, draft, 2), WARPS[warp], 3, may=rule)
    assert variation(found, exact_distribution(target, WARPS[warp], 3, may=rule)) <= EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gammas", [(1, 1), (2, 1), (2, 2)])
def test_a_hierarchy(gammas: tuple[int, int], rule: Callable[[Context], list[bool]]) -> None:
    target, middle, draft = toy(1, 4), toy(2, 4), toy(3, 4)
    found = distribution_of(three_levels(target, middle, draft, gammas), WARPS["plain"], 3, may=rule)
    assert variation(found, exact_distribution(target, WARPS["plain"], 3, may=rule)) <= EXACT
    assert variation(found, exact_distribution(target, WARPS["plain"], 3)) > 0.01  # it does restrict


@pytest.mark.parametrize("rule", RULES)
def test_rounds_that_are_not_waited_for(rule: Callable[[Context], list[bool]]) -> None:
    target, middle, draft = toy(1, 4), toy(2, 4), toy(3, 4)
    found = distribution_of(unwaited(target, middle, draft, (2, 1)), WARPS["plain"], 3, may=rule)
    assert variation(found, exact_distribution(target, WARPS["plain"], 3, may=rule)) <= EXACT


def test_lookup() -> None:
    target = toy(1, 4)
    found = distribution_of(two_levels(target, Echo(4), 2), WARPS["plain"], 3, may=no_repetition)
    assert variation(found, exact_distribution(target, WARPS["plain"], 3, may=no_repetition)) <= EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("warp", WARPS)
def test_drafts_that_the_form_prescribes(warp: str, rule: Callable[[Context], list[bool]]) -> None:
    target, draft = toy(1, 4), toy(2, 4)
    found = distribution_of(two_levels(target, draft, 2), WARPS[warp], 3, may=rule, guesses=2)
    assert variation(found, exact_distribution(target, WARPS[warp], 3, may=rule)) <= EXACT


def test_prescribed_drafts_say_nothing_about_lookup() -> None:
    planner = Planner(lookup=NgramLookup(), most=4)
    before = planner.lookup_expected, planner.lookup_accepted
    planner.learn(Plan(2, forced=(1, 2)), 4, 2, 0, 0.0, 0.01)
    assert (planner.lookup_expected, planner.lookup_accepted) == before
    planner.learn(Plan(2), 4, 2, 0, 0.0, 0.01)
    assert (planner.lookup_expected, planner.lookup_accepted) != before
