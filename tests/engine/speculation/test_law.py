"""The law of the output, computed exactly: every outcome of every random choice is walked through."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.toys import (
    PROMPT,
    Branching,
    Echo,
    ToyCache,
    ToyModel,
    exact_law,
    fixed_law,
    law_of,
    nothing,
    random_law,
    support_law,
    three_levels,
    two_levels,
    variation,
)
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.executor import Chances
from triforce_chat.engine.sampling.sampler import Sampler, Sampling
from triforce_chat.engine.speculation.level import Autoregressive, Silent, Speculative
from triforce_chat.engine.speculation.lookup import Forecast, NgramLookup
from triforce_chat.engine.speculation.planner import Arm, Choice, Planner
from triforce_chat.engine.speculation.step_times import StepTimes
from triforce_chat.engine.speculation.verify import residual, verify

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


def model(seed: int, vocabulary: int = 3) -> ToyModel:
    return ToyModel(vocabulary, random_law(vocabulary, seed))


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_two_levels(gamma: int) -> None:
    target, draft = model(1, 4), model(2, 4)
    assert variation(law_of(two_levels(target, draft, gamma), PLAIN, 3), exact_law(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("gammas", GAMMAS)
def test_three_levels(gammas: tuple[int, int]) -> None:
    target, middle, draft = model(1), model(2), model(3)
    law = law_of(three_levels(target, middle, draft, gammas), PLAIN, 3)
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    assert variation(law, exact_law(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("gammas", [(1, 1), (1, 2), (2, 2), (1, 3)])
def test_four_tokens(gammas: tuple[int, int]) -> None:
    target, middle, draft = model(4), model(5), model(6)
    law = law_of(three_levels(target, middle, draft, gammas), PLAIN, 4)
    assert variation(law, exact_law(target, PLAIN, 4)) <= EXACT


@pytest.mark.parametrize("gammas", [(1, 1), (2, 1), (1, 2)])
def test_without_lumping_what_lies_behind_the_horizon(gammas: tuple[int, int]) -> None:
    target, middle, draft = model(1), model(2), model(3)
    law = law_of(three_levels(target, middle, draft, gammas), PLAIN, 2, lump=False)
    assert variation(law, exact_law(target, PLAIN, 2)) <= EXACT


@pytest.mark.parametrize("warp", WARPS)
def test_every_warp(warp: str) -> None:
    target, middle, draft = model(7, 4), model(8, 4), model(9, 4)
    law = law_of(three_levels(target, middle, draft, (2, 2)), WARPS[warp], 3)
    assert variation(law, exact_law(target, WARPS[warp], 3)) <= EXACT


CASES = {
    "middle is the target": (random_law(4, 1), random_law(4, 1), random_law(4, 2)),
    "draft is the target": (random_law(4, 1), random_law(4, 2), random_law(4, 1)),
    "draft is the middle": (random_law(4, 1), random_law(4, 2), random_law(4, 2)),
    "all the same": (random_law(4, 1), random_law(4, 1), random_law(4, 1)),
    "disjoint from the draft": (random_law(4, 1), support_law(4, 2, [0, 1]), support_law(4, 3, [2, 3])),
    "disjoint from the middle": (
        support_law(4, 1, [0, 1]),
        support_law(4, 2, [2, 3]),
        support_law(4, 3, [1, 2]),
    ),
    "one-hot draft": (random_law(4, 1), random_law(4, 2), support_law(4, 3, [2])),
    "one-hot middle": (random_law(4, 1), support_law(4, 2, [3]), random_law(4, 3)),
    "one-hot target": (support_law(4, 1, [1]), random_law(4, 2), random_law(4, 3)),
    "sharp draft": (random_law(4, 1), random_law(4, 2), random_law(4, 3, sharpness=6)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_relation_between_levels(case: str) -> None:
    target, middle, draft = (ToyModel(4, law) for law in CASES[case])
    law = law_of(three_levels(target, middle, draft, (2, 2)), PLAIN, 3)
    assert variation(law, exact_law(target, PLAIN, 3)) <= EXACT


def test_five_tokens_of_vocabulary() -> None:
    target, middle, draft = model(1, 5), model(2, 5), model(3, 5)
    law = law_of(three_levels(target, middle, draft, (1, 2)), PLAIN, 3)
    assert variation(law, exact_law(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("gammas", [(1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("warp", ["plain", "top-p", "greedy"])
def test_one_hot_proposals_and_none_at_all(gammas: tuple[int, int], warp: str) -> None:
    target, middle = model(1, 4), model(2, 4)
    law = law_of(three_levels(target, middle, Echo(4), gammas), WARPS[warp], 3)
    assert variation(law, exact_law(target, WARPS[warp], 3)) <= EXACT


def test_lookup_that_learns_from_pending_tokens() -> None:
    target, middle = model(1, 3), model(2, 3)
    law = law_of(three_levels(target, middle, NgramLookup(3, cutoff=0.1), (2, 2)), PLAIN, 4)
    assert variation(law, exact_law(target, PLAIN, 4)) <= EXACT


def test_a_middle_that_proposes_by_itself() -> None:
    target, middle = model(1, 4), model(2, 4)
    law = law_of(three_levels(target, middle, Silent(middle), (1, 2)), PLAIN, 3)
    assert variation(law, exact_law(target, PLAIN, 3)) <= EXACT


def test_a_planner_that_changes_its_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookup, draft and hierarchy, as the history decides: a legal rule."""
    target, middle, draft = model(1), model(2), model(3)
    stack = three_levels(target, middle, draft, (1, 2))
    alone = ToyCache()
    arms = [Arm(stack.top.drafter), Arm(Autoregressive(draft, alone))]
    planner = Planner(StepTimes(), NgramLookup(3), arms)
    stack.top.drafter = planner

    def decide(forecast: object, length: int, n: int) -> Choice:  # noqa: ARG001
        turn = (length + n) % 3
        return Choice(0.0, min(n, 2), arms[turn] if turn < 2 else None)

    monkeypatch.setattr(planner, "_choose", decide)
    stack.parts.append(alone)
    stack.parts.append(planner.lookup)
    law = law_of(stack, PLAIN, 3)
    assert variation(law, exact_law(target, PLAIN, 3)) <= EXACT


def test_a_middle_that_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is drafted for the middle depends on pending tokens, which are revealed to it."""
    target, middle, draft = model(1), model(2), model(3)
    stack = three_levels(target, middle, draft, (2, 2))
    level = stack.top.drafter
    assert isinstance(level, Speculative)
    planner = Planner(StepTimes(), NgramLookup(3), [Arm(level.drafter)])
    level.drafter = planner

    def decide(forecast: Forecast, length: int, n: int) -> Choice:
        last = int(forecast.tokens[0]) if len(forecast.tokens) else length
        return Choice(0.0, min(n, last % 3), planner.arms[0] if (last + length) % 2 else None)

    monkeypatch.setattr(planner, "_choose", decide)
    stack.parts.append(planner.lookup)
    law = law_of(stack, PLAIN, 3)
    assert variation(law, exact_law(target, PLAIN, 3)) <= EXACT


# What the tests above must be able to see


def word(tokens: list[Tensor], n: int) -> Tensor:
    """What a rule says that commits ``tokens``, of which the last was not among the n drafted."""
    return torch.stack([torch.tensor(len(tokens) - 1), *tokens, *[torch.tensor(0)] * (n + 1 - len(tokens))])


def middle_draws_from_its_target(draft: Draft, target: Tensor, sampler: Sampler, chances: Chances) -> Tensor:
    """Defect D1: the recovered token is drawn from the level's own law, not from the residual."""
    index = draft.tokens[:, None]
    n = len(draft)
    p, q = target[:n].gather(-1, index)[:, 0], draft.probs.gather(-1, index)[:, 0]
    accepted = int(sampler.leading(p, q, chances)) if n else 0
    last = sampler.draw(target[accepted], chances)
    return word([*draft.tokens[:accepted], last], n)


def middle_hands_up_the_drafter_s_vectors(
    draft: Draft, target: Tensor, sampler: Sampler, chances: Chances
) -> Tensor:
    judged = verify(draft, target, sampler, chances)
    accepted = int(judged[0])
    target[:accepted] = draft.probs[:accepted]
    return judged


def middle_accepts_everything(draft: Draft, target: Tensor, sampler: Sampler, chances: Chances) -> Tensor:
    return word([*draft.tokens, sampler.draw(target[-1], chances)], len(draft))


def middle_withholds_unlikely_tokens(
    draft: Draft, target: Tensor, sampler: Sampler, chances: Chances
) -> Tensor:
    """Spec 7.2, point 4: dropping the last token because of what it is."""
    judged = verify(draft, target, sampler, chances)
    accepted = judged[0]
    last = target[accepted, judged[1 + accepted]]
    judged[0] -= int(accepted > 0 and bool(last < 0.4))
    return judged


@pytest.mark.parametrize(
    "rule",
    [
        middle_draws_from_its_target,
        middle_hands_up_the_drafter_s_vectors,
        middle_accepts_everything,
        middle_withholds_unlikely_tokens,
    ],
)
def test_a_wrong_rule_changes_the_law(rule: object) -> None:
    target, middle, draft = model(1), model(2), model(3)
    law = law_of(three_levels(target, middle, draft, (2, 2), rule), PLAIN, 3)  # type: ignore[arg-type]
    assert variation(law, exact_law(target, PLAIN, 3)) > 0.01


def test_the_published_rule_leans_to_the_small_draft() -> None:
    """Spec D1: p = p' = (.5, .5), q = (.9, .1) gives (.7, .3)."""
    half, draft = ToyModel(2, fixed_law(0.5, 0.5)), ToyModel(2, fixed_law(0.9, 0.1))
    law = law_of(three_levels(half, half, draft, (1, 1), middle_draws_from_its_target), PLAIN, 1)
    assert law[(0,)] == pytest.approx(0.5)  # one token left: nothing is drafted
    law = law_of(three_levels(half, half, draft, (1, 1), middle_draws_from_its_target), PLAIN, 2)
    assert law[(0, 0)] + law[(0, 1)] == pytest.approx(0.7)


class Skewed(ToyCache):
    """Forgets one token too many, and then does not know (the length says otherwise)."""

    def truncate(self, length: int) -> None:
        lost = len(self.ids) > length
        super().truncate(length)
        if lost and self.ids:
            self.ids[-1] = (self.ids[-1] + 1) % 3


def test_a_full_cache_cut_at_the_wrong_place_changes_the_law() -> None:
    target, draft = model(1), model(2)
    stack = two_levels(target, draft, 2)
    stack.top.cache = stack.parts[0] = Skewed()
    assert variation(law_of(stack, PLAIN, 3), exact_law(target, PLAIN, 3)) > 0.01


def test_a_middle_cache_cut_at_the_wrong_place_does_not() -> None:
    """Lower caches may be arbitrarily wrong (spec 7.2, point 6)."""
    target, middle, draft = model(1), model(2), model(3)
    stack = three_levels(target, middle, draft, (2, 2))
    stack.top.drafter.cache = stack.parts[1] = Skewed()  # type: ignore[attr-defined]
    assert variation(law_of(stack, PLAIN, 3), exact_law(target, PLAIN, 3)) <= EXACT


# The comparison itself: U < p/q on every value of a coarse lattice of uniforms


class Lattice(Branching):
    """Walks through u in {0, 1/4, 2/4, 3/4} instead of intervals, with the sampler's own comparison."""

    def leading(self, p: Tensor, q: Tensor, chances: Chances) -> Tensor:
        tests = torch.tensor([self.choose([0.25] * 4) / 4 for _ in p])
        return Sampler.leading(self, p, q, chances._replace(tests=tests))


def lattice_law(kind: type[Lattice]) -> Tensor:
    """One drafted token: p is a multiple of q/4 everywhere, so four uniforms are enough to be exact."""
    p, q = [0.0, 0.0625, 0.3125, 0.625], [0.25, 0.25, 0.25, 0.25]
    sampler = kind(PLAIN, 0)
    law, scripts = torch.zeros(4, dtype=torch.float64), [[]]  # type: ignore[var-annotated]
    while scripts:
        sampler.begin(scripts.pop())
        chances = Chances.blank(1, torch.device("cpu"))
        drawn = Draft(sampler.draw(torch.tensor(q), chances)[None], torch.tensor([q]))
        judged = verify(drawn, torch.tensor([p, p]), sampler, chances)
        scripts += [[*prefix, other] for prefix, other in sampler.open]
        law[judged[1]] += sampler.chance
    return law - torch.tensor(p)


def test_acceptance_is_strict() -> None:
    assert lattice_law(Lattice).abs().max() <= EXACT


class Lenient(Lattice):
    def leading(self, p: Tensor, q: Tensor, _: Chances) -> Tensor:
        u = torch.tensor([self.choose([0.25] * 4) / 4 for _ in range(len(p))])
        return (u * q <= p).cumprod(0).sum()


def test_a_lenient_acceptance_changes_the_law() -> None:
    gap = lattice_law(Lenient)
    assert gap.abs().sum() / 2 > 0.01
    assert gap[0] > 0  # a token without any probability came out


def test_a_uniform_of_zero_never_passes_an_impossible_token() -> None:
    sampler, zeros = Sampler(PLAIN), Chances(torch.zeros(2), torch.zeros(1, dtype=torch.float64))
    assert sampler.leading(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]), zeros) == 0
    assert sampler.leading(torch.tensor([0.5, 0.0]), torch.tensor([1.0, 1.0]), zeros) == 1


def test_residual() -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    assert residual(p, q).tolist() == [0.25, 0, 0]
    assert residual(p, p).tolist() == p.tolist()  # nothing left: p itself


def test_verify_of_nothing_is_a_plain_draw() -> None:
    target, cpu = torch.tensor([[0.0, 1.0, 0.0]]), torch.device("cpu")
    for u in (0.0, 0.5, 0.999):
        chances = Chances(torch.zeros(0), torch.tensor([u], dtype=torch.float64))
        assert verify(Draft.empty(3, cpu), target, Sampler(PLAIN), chances).tolist() == [0, 1]


def test_levels_propose_at_least_what_was_asked() -> None:
    target, draft = model(1), model(2)
    for n in range(5):
        level = Speculative("x", target, ToyCache(), Autoregressive(draft, ToyCache()), 2, nothing)
        made = level.propose(torch.tensor(PROMPT), n, Sampler(Sampling(temperature=1.0, seed=n)))
        assert n <= len(made) <= max(n + 2, 0) if n else len(made) == 0
        assert made.probs.shape == (len(made), 3)
        assert torch.allclose(made.probs.sum(-1), torch.ones(len(made), dtype=made.probs.dtype))
