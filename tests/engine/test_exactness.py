"""The judges of exactness: they catch what is wrong and let pass what is right."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.judging import greedy_test, sampling_test
from support.labs import Lab
from torch import Tensor

from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import (
    SamplingTest,
    favouring,
    gaps,
    judge,
    kolmogorov_p,
    rounding,
    tokens_of,
)
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling import executor, ops
from triforce_chat.engine.sampling.ops import Randomness, Uniforms, warp_fully
from triforce_chat.engine.sampling.options import Sampling

ALARM = 1e-4
WARM = Sampling(temperature=1.0)
MADE = 32  # tokens of one answer


@pytest.fixture(scope="module")
def rough() -> Lab:
    """A drafter that is wrong often enough for every rule to matter."""
    return Lab.of("llama", seed=1, noise=0.5)


# The law of sampled answers


def p_value(lab: Lab, answers: int, stack: str = "naive", sampling: Sampling = WARM) -> float:
    test = sampling_test(lab.engine(stack), Request(lab.text(40), MADE, sampling), range(answers))
    assert len(test.transformed) == answers * MADE
    return test.p_value


@pytest.mark.parametrize("stack", ["naive", "triforce", "lookup", "autoregressive"])
def test_the_right_rule_passes(rough: Lab, stack: str) -> None:
    assert p_value(rough, 10, stack) > ALARM


@pytest.mark.parametrize(
    "sampling", [Sampling(0.7, top_p=0.9), Sampling(1.3, top_k=8, repetition_penalty=1.2)]
)
def test_the_right_rule_passes_under_filters(rough: Lab, sampling: Sampling) -> None:
    assert p_value(rough, 10, sampling=sampling) > ALARM


def no_residual(p: Tensor, q: Tensor) -> Tensor:  # noqa: ARG001
    return p


def wrong_residual(p: Tensor, q: Tensor) -> Tensor:
    rest = (q - p).clamp_min(0)
    return rest if bool(rest.any()) else p


def generous(self: Uniforms, p: Tensor, q: Tensor) -> Tensor:  # noqa: ARG001
    """Every drafted token passes."""
    return (p > 0).cumprod(-1).sum(-1)


def mean(self: Uniforms, p: Tensor, q: Tensor) -> Tensor:  # noqa: ARG001
    """Passes a token with p instead of p/q: the accepted ones are too sharp."""
    return (self.tests < p).cumprod(-1).sum(-1)


right_draw = Uniforms.draw


def sharp_draw(self: Uniforms, weights: Tensor) -> Tensor:
    return right_draw(self, weights**1.5)


def first_draw(self: Uniforms, weights: Tensor) -> Tensor:  # noqa: ARG001
    return weights.argmax(-1)


MUTANTS: list[tuple[Any, str, Callable[..., Any], int]] = [
    (ops, "residual", no_residual, 64),
    (ops, "residual", wrong_residual, 8),
    (Uniforms, "accepts", generous, 8),
    (Uniforms, "accepts", mean, 36),
    (Uniforms, "draw", sharp_draw, 8),
    (Uniforms, "draw", first_draw, 8),
]


@pytest.mark.parametrize(
    ("place", "name", "mutant", "answers"), MUTANTS, ids=[mutant.__name__ for *_, mutant, _ in MUTANTS]
)
def test_a_biased_rule_is_caught(
    rough: Lab,
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    mutant: Callable[..., Any],
    answers: int,
) -> None:
    monkeypatch.setattr(place, name, mutant)
    assert p_value(rough, answers) < ALARM


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, top_k=4), Sampling(1.0, top_p=0.7), Sampling(1.0, min_p=0.2)]
)
def test_drawing_without_a_filter_is_caught(rough: Lab, sampling: Sampling) -> None:
    """Answers of the unfiltered law, judged under a filter."""
    engine, request = rough.engine("naive"), Request(rough.text(40), MADE, sampling)
    made = tokens_of(engine, Request(request.prompt, MADE, Sampling(1.0, seed=3)))
    test = SamplingTest()
    test.add(engine, request, made)
    assert test.ties == 0
    assert test.p_value < ALARM


def test_nothing_sampled_proves_nothing() -> None:
    assert SamplingTest().p_value == 1.0


def test_a_certain_token_is_no_evidence_and_an_impossible_one_is_proof() -> None:
    test = SamplingTest()
    certain = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    for _ in range(50):
        test._add(certain, 1)
    assert test.p_value > ALARM
    test._add(certain, 2)
    assert test.p_value < ALARM


# Tokens at the border of what filters keep


class Rounding:
    """An engine whose target gives four tokens the same scores everywhere; few rows add ``off`` to the first one's."""

    def __init__(self, temperature: float, off: float) -> None:
        self.scores = temperature * torch.tensor([0.5, 0.3, 0.12, 0.08]).log()
        self.off = off * torch.tensor([1, 0, 0, 0])

    def rescore(self, request: Request, made: Sequence[int], rows: int = 64) -> Any:  # noqa: ARG002
        block = (self.scores + self.off * (rows < 64)).repeat(len(made), 1)
        yield block, torch.tensor(made)
        block.fill_(math.nan)  # it was valid until now


@pytest.mark.parametrize(
    ("sampling", "enough"),  # by how much scores must be off for the third token to be kept
    [
        (Sampling(1.0, top_k=2), math.log(0.3 / 0.12) / 2),
        (Sampling(1.0, top_p=0.79), math.log(0.8 / 0.2 / (0.79 / 0.21)) / 2),
        (Sampling(1.0, min_p=0.25), math.log(0.5 * 0.25 / 0.12) / 2),
        (Sampling(1.0, top_k=2, top_p=0.79, min_p=0.25), math.log(0.3 / 0.12) / 2),
        (Sampling(0.5, min_p=0.25), math.log(0.5 * 0.25 / 0.12) / 4),
    ],
)
def test_only_a_token_that_rounding_leaves_out_is_a_tie(sampling: Sampling, enough: float) -> None:
    for off, ties in ((1.05 * enough, 1), (0.95 * enough, 0)):
        engine: Any = Rounding(sampling.temperature, off)
        test = SamplingTest()
        test.add(engine, Request([3], 5, sampling), [0, 1, 2, 0, 1])
        assert (test.ties, len(test.transformed)) == (ties, 5 - ties)
        assert (test.p_value > ALARM) == bool(ties)


@pytest.mark.parametrize("token", [0, 1])
def test_rounding_is_measured_for_nothing_else(token: int) -> None:
    asked: list[int] = []

    class Counting(Rounding):
        def rescore(self, request: Request, made: Sequence[int], rows: int = 64) -> Any:
            asked.append(rows)
            return super().rescore(request, made, rows)

    engine: Any = Counting(1.0, 1.0)
    SamplingTest().add(engine, Request([3], 1, Sampling(1.0, top_k=1)), [token])
    assert (len(asked) > 1) == (token == 1)


@pytest.mark.parametrize(
    "sampling",
    [
        *(Sampling(1.0, top_k=3), Sampling(1.0, top_p=0.6), Sampling(0.7, min_p=0.3)),
        Sampling(1.3, top_k=5, top_p=0.8, min_p=0.1),
    ],
)
def test_no_scores_within_rounding_keep_a_token_that_the_favouring_ones_do_not(sampling: Sampling) -> None:
    generator, off, found = torch.Generator().manual_seed(1), 0.2, set()
    for _ in range(30):
        scores = torch.randn(12, generator=generator)
        noise = 2 * torch.rand(2, 500, 12, generator=generator) - 1
        moved = scores + off * torch.cat([noise[0], noise[1].sign()])
        kept = (warp_fully(moved, sampling) > 0).any(0)
        for token in range(12):
            favoured = favouring(token, scores, off)
            assert (favoured - scores).abs().max() <= off + 1e-6
            possible = bool(warp_fully(favoured, sampling)[token] > 0)
            assert possible or not kept[token]
            found.add((possible, bool(warp_fully(scores, sampling)[token] > 0)))
    assert found == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.01), Sampling(1.0, min_p=1 - 1e-7)]
)
def test_a_token_beside_a_twin_is_no_evidence(rough: Lab, sampling: Sampling) -> None:
    """Whichever of them the filter leaves out; another one, whose score is clearly lower, is a proof."""
    prompt = rough.text(30)
    engine, choice, twin = twins(rough, prompt, 2e-7)
    for token, exact in ((choice, True), (twin, True), ((choice + 1) % 48, False)):
        test = SamplingTest()
        test.add(engine, Request(prompt, 1, sampling), [token])
        assert test.ties + len(test.transformed) == 1
        assert (test.p_value > ALARM) == exact


# Kolmogorov's distribution


def shifted(n: int, distance: float) -> list[float]:
    """n values whose distribution function lies ``distance`` from the uniform one."""
    return [min(1.0, (i + 0.5) / n + distance - 0.5 / n) for i in range(n)]


@pytest.mark.parametrize(
    ("x", "p"), [(0.5, 0.9639), (0.8276, 0.5), (1.0, 0.2700), (1.2238, 0.1), (1.3581, 0.05), (1.6276, 0.01)]
)
@pytest.mark.parametrize("n", [400, 10_000])
def test_known_values(x: float, p: float, n: int) -> None:
    distance = x / (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    assert kolmogorov_p(shifted(n, distance)) == pytest.approx(p, abs=2e-4)
    assert kolmogorov_p([1 - value for value in shifted(n, distance)]) == pytest.approx(p, abs=2e-4)


@pytest.mark.parametrize(("n", "distance", "p"), [(5, 0.5633, 0.05), (10, 0.4092, 0.05), (20, 0.3524, 0.01)])
def test_tables_for_few_values(n: int, distance: float, p: float) -> None:
    assert kolmogorov_p(shifted(n, distance)) == pytest.approx(p, rel=0.1)


def test_extremes() -> None:
    assert kolmogorov_p([]) == 1.0
    assert kolmogorov_p([(i + 0.5) / 100 for i in range(100)]) == 1.0
    assert kolmogorov_p([0.5] * 100) < 1e-20
    assert 0 <= kolmogorov_p([0.0] * 10_000) < 1e-100


def test_uniform_values_have_uniform_p_values() -> None:
    generator = torch.Generator().manual_seed(0)
    found = [kolmogorov_p(torch.rand(50, generator=generator).tolist()) for _ in range(400)]
    assert kolmogorov_p(found) > 0.01


# Greedy answers


@pytest.mark.parametrize("stack", ["triforce", "lookup", "naive"])
def test_greedy_answers_are_identical(rough: Lab, stack: str) -> None:
    verdict = greedy_test(rough.engine(stack), Request(rough.text(60), MADE))
    assert (verdict.tokens, verdict.identical, verdict.ties, verdict.mismatches) == (MADE, True, 0, 0)


def test_sampled_answers_are_not_compared_token_by_token(rough: Lab) -> None:
    verdict = judge(rough.engine(), Request(rough.text(20), 4, WARM), [1, 2, 3, 4], [4, 3, 2, 1])
    assert (verdict.tokens, verdict.identical, verdict.ties, verdict.mismatches) == (4, False, None, 0)


def test_every_wrong_token_counts_once(rough: Lab) -> None:
    engine, request = rough.engine(), Request(rough.text(30), 12)
    plain = tokens_of(engine, request, plain=True)
    made = list(plain)
    made[3] = (made[3] + 1) % 48
    expected = 1
    for at in range(4, 12):  # the rest follows the wrong token rightly, but for one more
        choice = int(rough.logits([*request.prompt, *made[:at]])[-1].argmax())
        made[at] = (choice + 5) % 48 if at == 8 else choice
        expected += at == 8
    verdict = judge(engine, request, made, plain)
    assert (verdict.identical, verdict.ties, verdict.mismatches) == (False, 0, expected)


def twins(lab: Lab, prompt: Sequence[int], difference: float) -> tuple[Engine, int, int]:
    """An engine whose first choice behind ``prompt`` has a twin with almost the same score: (engine, both)."""
    stock = copy.deepcopy(lab.stock)
    choice = int(lab.logits(prompt)[-1].argmax())
    twin = (choice + 7) % 48
    head = stock.lm_head.weight.data
    head[twin] = head[choice] * (1 - difference)
    engine = lab.engine("autoregressive", draft=False)
    return Engine(Runner(stock), 400, TextCodec(engine.decode), None, engine.options), choice, twin


@pytest.mark.parametrize("difference", [0.0, 2e-7])
def test_a_tie_is_counted_as_one(rough: Lab, difference: float) -> None:
    prompt = rough.text(30)
    engine, choice, twin = twins(rough, prompt, difference)
    request = Request(prompt, 1)
    plain = tokens_of(engine, request, plain=True)
    assert plain in ([choice], [twin])
    made = [twin if plain == [choice] else choice]
    verdict = judge(engine, request, made, plain)
    assert (verdict.identical, verdict.ties, verdict.mismatches) == (False, 1, 0)


def test_rounding_is_what_other_widths_change(rough: Lab) -> None:
    engine, request, made = rough.engine(), Request(rough.text(60), MADE), rough.text(MADE, seed=5)
    found = rounding(engine, request, made)
    logits = rough.logits([*request.prompt, *made])
    assert 0 < found < 1e-5 * float(logits.abs().max())

    def rescored(request: Request, made: Sequence[int], rows: int = 64) -> Any:
        """A target whose scores move with the number of rows."""
        for scores, tokens in plain(request, made, rows):
            yield scores + 0.01 * rows * torch.arange(scores.shape[-1]), tokens

    plain = engine.rescore
    engine.rescore = rescored  # type: ignore[method-assign]
    assert rounding(engine, request, made) > 10


@pytest.mark.parametrize("difference", [3e-5, 1e-3, 0.1])
def test_a_clear_difference_is_no_tie(rough: Lab, difference: float) -> None:
    prompt = rough.text(30)
    engine, choice, twin = twins(rough, prompt, difference)
    verdict = judge(engine, Request(prompt, 1), [twin], [choice])
    assert (verdict.ties, verdict.mismatches) == (0, 1)


def test_an_answer_that_was_cut_short_is_not_the_same(rough: Lab) -> None:
    """Every one of its tokens is plain decoding's choice, yet tokens are missing."""
    engine, request = rough.engine(), Request(rough.text(30), 12)
    plain = tokens_of(engine, request, plain=True)
    for made in (plain[:7], []):
        verdict = judge(engine, request, made, plain)
        assert not verdict.identical
        assert verdict.mismatches > 0


def test_a_wrong_rule_is_found_by_greedy_answers(rough: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(draft: Draft, target: Tensor, random: Randomness, _: Tensor | None) -> Tensor:
        accepted, last = torch.tensor([[len(draft)]]), random.draw(target[:, len(draft)])
        return torch.cat([accepted, draft.tokens, last[:, None]], -1)

    monkeypatch.setattr(executor, "verify", trusting)
    verdict = greedy_test(rough.engine("naive"), Request(rough.text(60), MADE))
    assert not verdict.identical
    assert verdict.mismatches > 0


def test_gaps_are_those_of_stock_logits(rough: Lab) -> None:
    request, made = Request(rough.text(30), 6), [3, 1, 4, 1, 5, 9]
    found = [gap for gap, _ in gaps(rough.engine(), request, made)]
    logits = rough.logits([*request.prompt, *made])[29:-1]
    expected = logits.max(-1).values - logits.gather(-1, torch.tensor(made)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(found), expected, atol=1e-4)


def test_judging_leaves_the_cache_usable(rough: Lab) -> None:
    engine, request = rough.engine(), Request(rough.text(60), MADE)
    made = tokens_of(engine, request)
    judge(engine, request, [*made[:-1], (made[-1] + 1) % 48], made)
    sampling_test(engine, Request(request.prompt, 4, WARM), range(2))
    SamplingTest().add(engine, replace(request, sampling=Sampling(1.0, top_k=1)), [(made[0] + 1) % 48])
    assert tokens_of(engine, request) == made == rough.greedy(request.prompt, MADE)
