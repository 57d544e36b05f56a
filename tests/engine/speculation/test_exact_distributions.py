"""The distribution of the output, computed exactly: every outcome of every random choice is visited."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from support.endless_toys import (
    Forgetting,
    by_definition,
    forgetting,
    sink_and_latest,
    weightiest_and_latest,
)
from support.rules import (
    middle_accepts_everything,
    middle_draws_from_its_target,
    middle_hands_up_the_drafter_s_vectors,
    middle_withholds_unlikely_tokens,
)
from support.toys import (
    CPU,
    LONGER,
    PROMPT,
    ROOM,
    Echo,
    Rule,
    ToyCache,
    ToyModel,
    distribution_of,
    drafting,
    exact_distribution,
    fixed_table,
    four_levels,
    nothing,
    random_table,
    reading,
    selecting_levels,
    support_table,
    three_levels,
    toy,
    two_levels,
    unwaited,
    variation,
)
from torch import Tensor

from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative

EXACT = 1e-12
PLAIN = Sampling(temperature=1.0)
GAMMAS = list(itertools.product((1, 2, 3), repeat=2))
WARPS = {
    "plain": PLAIN,
    "cold": Sampling(temperature=0.6),
    "greedy": Sampling(temperature=0),
    "top-p": Sampling(temperature=0.8, top_p=0.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "min-p": Sampling(temperature=1.0, min_p=0.4),
    "penalty": Sampling(temperature=1.0, repetition_penalty=1.7),
    "greedy penalty": Sampling(temperature=0, repetition_penalty=1.7),
    "everything": Sampling(temperature=0.7, top_k=3, top_p=0.9, min_p=0.05, repetition_penalty=1.2),
}


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_two_levels(gamma: int) -> None:
    target, draft = toy(1, 4), toy(2, 4)
    found = distribution_of(two_levels(target, draft, gamma), PLAIN, 3)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("gammas", GAMMAS)
def test_three_levels(gammas: tuple[int, int]) -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    found = distribution_of(three_levels(target, middle, draft, gammas), PLAIN, 3)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("gammas", [(1, 1), (1, 2), (2, 2), (1, 3)])
def test_four_tokens(gammas: tuple[int, int]) -> None:
    target, middle, draft = toy(4), toy(5), toy(6)
    found = distribution_of(three_levels(target, middle, draft, gammas), PLAIN, 4)
    assert variation(found, exact_distribution(target, PLAIN, 4)) <= EXACT


@pytest.mark.parametrize("gammas", [(1, 1), (2, 1), (1, 2)])
def test_without_lumping_outcomes_behind_the_horizon(gammas: tuple[int, int]) -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    found = distribution_of(three_levels(target, middle, draft, gammas), PLAIN, 2, lump=False)
    assert variation(found, exact_distribution(target, PLAIN, 2)) <= EXACT


@pytest.mark.parametrize("warp", WARPS)
def test_every_warp(warp: str) -> None:
    target, middle, draft = toy(7, 4), toy(8, 4), toy(9, 4)
    found = distribution_of(three_levels(target, middle, draft, (2, 2)), WARPS[warp], 3)
    assert variation(found, exact_distribution(target, WARPS[warp], 3)) <= EXACT


CASES = {
    "middle is the target": (random_table(4, 1), random_table(4, 1), random_table(4, 2)),
    "draft is the target": (random_table(4, 1), random_table(4, 2), random_table(4, 1)),
    "draft is the middle": (random_table(4, 1), random_table(4, 2), random_table(4, 2)),
    "all equal": (random_table(4, 1), random_table(4, 1), random_table(4, 1)),
    "disjoint from the draft": (random_table(4, 1), support_table(4, 2, [0, 1]), support_table(4, 3, [2, 3])),
    "disjoint from the middle": (
        support_table(4, 1, [0, 1]),
        support_table(4, 2, [2, 3]),
        support_table(4, 3, [1, 2]),
    ),
    "one-hot draft": (random_table(4, 1), random_table(4, 2), support_table(4, 3, [2])),
    "one-hot middle": (random_table(4, 1), support_table(4, 2, [3]), random_table(4, 3)),
    "one-hot target": (support_table(4, 1, [1]), random_table(4, 2), random_table(4, 3)),
    "sharp draft": (random_table(4, 1), random_table(4, 2), random_table(4, 3, sharpness=6)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_relation_between_levels(case: str) -> None:
    target, middle, draft = (ToyModel(4, table) for table in CASES[case])
    found = distribution_of(three_levels(target, middle, draft, (2, 2)), PLAIN, 3)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


def test_five_tokens_of_vocabulary() -> None:
    target, middle, draft = toy(1, 5), toy(2, 5), toy(3, 5)
    found = distribution_of(three_levels(target, middle, draft, (1, 2)), PLAIN, 3)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


# Four levels: one over a copy of the full cache lies between the middle and the target


@pytest.mark.parametrize("gammas", [(1, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2)])
@pytest.mark.parametrize("waits", [True, False])
def test_four_levels(gammas: tuple[int, int, int], waits: bool) -> None:
    target = toy(1)
    found = distribution_of(four_levels(target, toy(2), toy(3), toy(4), gammas, waits), PLAIN, 3)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("waits", [True, False])
def test_four_levels_under_every_warp(warp: str, waits: bool) -> None:
    target = toy(5)
    found = distribution_of(four_levels(target, toy(6), toy(7), toy(8), (1, 1, 2), waits), WARPS[warp], 3)
    assert variation(found, exact_distribution(target, WARPS[warp], 3)) <= EXACT


@pytest.mark.parametrize("gammas", [(1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("warp", ["plain", "top-p", "greedy"])
def test_one_hot_proposals_and_none_at_all(gammas: tuple[int, int], warp: str) -> None:
    target, middle = toy(1, 4), toy(2, 4)
    found = distribution_of(three_levels(target, middle, Echo(4), gammas), WARPS[warp], 3)
    assert variation(found, exact_distribution(target, WARPS[warp], 3)) <= EXACT


def test_lookup_that_learns_from_pending_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from triforce_chat.engine.speculation import planner

    monkeypatch.setattr(planner, "CUTOFF", 0.1)
    target, middle = toy(1, 3), toy(2, 3)
    stack = three_levels(target, middle, None, (2, 2), lookup=NgramLookup())
    assert variation(distribution_of(stack, PLAIN, 4), exact_distribution(target, PLAIN, 4)) <= EXACT


def test_a_middle_that_proposes_by_itself() -> None:
    target, middle = toy(1, 4), toy(2, 4)
    found = distribution_of(three_levels(target, middle, None, (1, 2)), PLAIN, 3)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


def test_a_planner_that_changes_its_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookup, draft and hierarchy, as the history decides: a legal rule."""
    target, middle, draft = toy(1), toy(2), toy(3)
    stack = three_levels(target, middle, draft, (1, 2))
    alone, lookup = ToyCache(), NgramLookup()
    arms = [Arm(stack.middle), Arm(DraftModel(draft, alone))]  # type: ignore[arg-type]
    planner = Planner(arms, lookup, most=4)
    stack.top.planner = planner

    def decide(length: int, n: int, match: int, needed: int) -> Plan:  # noqa: ARG001
        turn = (length + n) % 3
        return Plan(min(n, 2) if turn < 2 or match else 0, arms[turn] if turn < 2 else None)

    monkeypatch.setattr(planner, "_choose", decide)
    stack.parts += [alone, lookup]
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) <= EXACT


def test_a_middle_that_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is drafted for the middle depends on pending tokens, which are revealed to it."""
    target, middle, draft = toy(1), toy(2), toy(3)
    stack = three_levels(target, middle, draft, (2, 2))
    lookup = NgramLookup()
    planner = Planner(stack.middle.planner.arms, lookup, most=2)
    stack.middle.planner = planner

    def decide(length: int, n: int, match: int, needed: int) -> Plan:  # noqa: ARG001
        lookup_now = match and (match + length) % 2
        return Plan(min(n, (length + match) % 3), None if lookup_now else planner.arms[0])

    monkeypatch.setattr(planner, "_choose", decide)
    stack.parts.append(lookup)
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) <= EXACT


# Rounds that nobody waits for


@pytest.mark.parametrize("gammas", [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)])
def test_unwaited_rounds(gammas: tuple[int, int]) -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    found = distribution_of(unwaited(target, middle, draft, gammas), PLAIN, 3)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("threshold", [None, 1, 2])
def test_unwaited_rounds_under_every_warp(warp: str, threshold: int | None) -> None:
    target, middle, draft = toy(4), toy(5), toy(6)
    stack = unwaited(target, middle, draft, (1, 3), threshold is not None, threshold)
    found, wanted = distribution_of(stack, WARPS[warp], 3), exact_distribution(target, WARPS[warp], 3)
    assert variation(found, wanted) <= EXACT


@pytest.mark.parametrize("lookup", [False, True])
def test_unwaited_rounds_without_a_draft_model(lookup: bool) -> None:
    target, middle = toy(7), toy(8)
    stack = unwaited(target, middle, None, (1, 3), lookup)
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) <= EXACT


def test_a_longer_prompt_for_longer_drafts() -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    stack = unwaited(target, middle, draft, (3, 3), lookup=True, threshold=2)
    found = distribution_of(stack, PLAIN, 2, prompt=LONGER)
    assert variation(found, exact_distribution(target, PLAIN, 2, LONGER)) <= EXACT


# Drafts that read their target's state


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("warp", ["plain", "top-p"])
def test_two_levels_whose_draft_reads_a_state(gamma: int, warp: str) -> None:
    target, draft = toy(1), toy(2)
    state, stack = reading(target, target, draft), two_levels(target, draft, gamma)
    stack.parts.append(state)
    assert (
        variation(distribution_of(stack, WARPS[warp], 4), exact_distribution(target, WARPS[warp], 4)) <= EXACT
    )


@pytest.mark.parametrize("gammas", [(1, 1), (1, 2), (2, 2), (2, 3)])
@pytest.mark.parametrize("waits", [True, False])
def test_three_levels_whose_draft_reads_the_states_of_both_others(
    gammas: tuple[int, int], waits: bool
) -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    state = reading(target, middle, draft)
    stack = (three_levels if waits else unwaited)(target, middle, draft, gammas)
    stack.parts.append(state)
    found = distribution_of(stack, PLAIN, 3)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


def test_the_state_of_a_rejected_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row must be that of the last accepted token, however many were drafted."""

    def last_row(self: ToyModel, count: Tensor, length: Tensor) -> None:  # noqa: ARG001
        if self.state is not None:
            self.state.row, self.state.base = self.rows[-1], int(length) - 1

    monkeypatch.setattr(ToyModel, "committed", last_row)
    target, draft = toy(1), toy(2)
    state, stack = reading(target, target, draft), two_levels(target, draft, 2)
    stack.parts.append(state)
    with pytest.raises(AssertionError, match="the state of another row"):
        distribution_of(stack, PLAIN, 4)


# Selection by every verification


@pytest.mark.parametrize("gammas", [(1, 1), (1, 2), (2, 2), (2, 3)])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("drafts", [True, False])
def test_a_middle_that_reads_what_every_verification_selects(
    gammas: tuple[int, int], waits: bool, drafts: bool
) -> None:
    stack, target, _ = selecting_levels(gammas, toy(3) if drafts else None, waits)
    found = distribution_of(stack, PLAIN, 3)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    assert variation(found, exact_distribution(target, PLAIN, 3)) <= EXACT


def test_the_distributions_of_another_selection_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that were drawn under one selection must come with the distributions that it gave."""
    stack, target, middle = selecting_levels((1, 2), toy(3))
    propose = stack.middle.propose

    def exchanged(seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        draft = propose(seq, n, sampler)
        middle.selection.chosen = (1, 1)
        context, tokens = tuple(seq.tokens.tolist()), draft.tokens[0].tolist()
        rows = [middle.logits((*context, *tokens[:i])).softmax(-1) for i in range(len(tokens))]
        return Draft(draft.tokens, torch.stack(rows)[None]) if rows else draft

    monkeypatch.setattr(stack.middle, "propose", exchanged)
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) > 0.01


# A target whose own cache forgets


@pytest.mark.parametrize("rule", [sink_and_latest, weightiest_and_latest])
@pytest.mark.parametrize("gammas", [(1,), (3,), (1, 2), (2, 2)])
def test_a_target_that_forgets(gammas: tuple[int, ...], rule: Forgetting) -> None:
    """It forgets before the fourth token, wherever rounds begin and whatever they draft."""
    target, draft = toy(1), toy(3)
    if len(gammas) == 1:
        stack = two_levels(target, draft, gammas[0])
    else:
        stack = three_levels(target, toy(2), draft, (gammas[0], gammas[1]))
    found = distribution_of(forgetting(stack, rule), PLAIN, 4)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    assert variation(found, exact_distribution(by_definition(1, rule), PLAIN, 4)) <= EXACT


def test_forgetting_wherever_a_round_ends_changes_the_distribution() -> None:
    stack = forgetting(two_levels(toy(1), toy(3), 3), sink_and_latest, bounded=False)
    exact = exact_distribution(by_definition(1, sink_and_latest), PLAIN, 4)
    assert variation(distribution_of(stack, PLAIN, 4), exact) > 0.01


# What the tests above must be able to see


@pytest.mark.parametrize(
    "rule",
    [
        middle_draws_from_its_target,
        middle_hands_up_the_drafter_s_vectors,
        middle_accepts_everything,
        middle_withholds_unlikely_tokens,
    ],
)
def test_a_wrong_rule_changes_the_distribution(rule: Rule) -> None:
    target, middle, draft = toy(1), toy(2), toy(3)
    found = distribution_of(three_levels(target, middle, draft, (2, 2), rule), PLAIN, 3)
    assert variation(found, exact_distribution(target, PLAIN, 3)) > 0.01


@pytest.mark.parametrize("rule", [middle_draws_from_its_target, middle_hands_up_the_drafter_s_vectors])
def test_a_wrong_rule_of_the_third_level_changes_the_distribution(rule: Rule) -> None:
    target = toy(1)
    stack = four_levels(target, toy(2), toy(3), toy(4), (1, 1, 2), rule=rule)
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) > 0.01


def test_the_published_rule_leans_to_the_small_draft() -> None:
    """p = p' = (.5, .5), q = (.9, .1) gives (.7, .3)."""
    half, draft = ToyModel(2, fixed_table(0.5, 0.5)), ToyModel(2, fixed_table(0.9, 0.1))
    found = distribution_of(three_levels(half, half, draft, (1, 1), middle_draws_from_its_target), PLAIN, 1)
    assert found[(0,)] == pytest.approx(0.5)  # one token left: nothing is drafted
    found = distribution_of(three_levels(half, half, draft, (1, 1), middle_draws_from_its_target), PLAIN, 2)
    assert found[(0, 0)] + found[(0, 1)] == pytest.approx(0.7)


class Skewed(ToyCache):
    """Forgets one token too many without knowing it: the length says otherwise."""

    def truncate(self, length: int) -> None:
        lost = len(self.ids) > length
        super().truncate(length)
        if lost and self.ids:
            self.ids[-1] = (self.ids[-1] + 1) % 3


def test_a_full_cache_cut_at_the_wrong_place_changes_the_distribution() -> None:
    target, draft = toy(1), toy(2)
    stack = two_levels(target, draft, 2)
    stack.parts[0] = Skewed()
    stack.top.cache = stack.parts[0]
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) > 0.01


def test_a_middle_cache_cut_at_the_wrong_place_does_not() -> None:
    """Lower caches may be arbitrarily wrong."""
    target, middle, draft = toy(1), toy(2), toy(3)
    stack = three_levels(target, middle, draft, (2, 2))
    stack.parts[1] = Skewed()
    stack.middle.cache = stack.parts[1]
    assert variation(distribution_of(stack, PLAIN, 3), exact_distribution(target, PLAIN, 3)) <= EXACT


def test_levels_propose_at_least_what_was_asked() -> None:
    target, draft = toy(1), toy(2)
    for n in range(5):
        planner = drafting(DraftModel(draft, ToyCache()), 2)  # type: ignore[arg-type]
        level = Speculative("x", target, ToyCache(), planner, nothing)  # type: ignore[arg-type]
        made = level.propose(TokenBuffer.of(PROMPT, ROOM, CPU), n, Sampler(replace(PLAIN, seed=n)))
        assert n <= len(made) <= max(n + 2, 0) if n else len(made) == 0
        assert made.probs.shape == (1, len(made), 3)
        assert torch.allclose(made.probs.sum(-1), torch.ones(1, len(made), dtype=made.probs.dtype))
