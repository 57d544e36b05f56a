"""Continuations behind shared prefixes are what the plain model says, one sequence at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from support.labs import Lab
from torch import Tensor

from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.lab import generation
from triforce_chat.lab.generation import LOOK, Generator, Sampled, SequenceSampling, with_mass

PREFIX, TOKENS = 30, 2 * LOOK + 5
SUFFIX_LENGTHS = (1, 7, 3, 2, 9, 1)  # three behind each of two prefixes


def prompts(lab: Lab) -> tuple[Tensor, list[list[int]]]:
    prefixes = torch.tensor([lab.text(PREFIX, seed) for seed in (1, 2)])
    return prefixes, [lab.text(n, seed=10 + i) for i, n in enumerate(SUFFIX_LENGTHS)]


def wholes(prefixes: Tensor, suffixes: Sequence[Sequence[int]]) -> list[list[int]]:
    each = len(suffixes) // len(prefixes)
    return [[*prefixes[i // each].tolist(), *suffix] for i, suffix in enumerate(suffixes)]


def sampling_of(count: int, temperature: float = 0.0, penalty: float = 1.0) -> SequenceSampling:
    return SequenceSampling(torch.full((count,), temperature), torch.full((count,), penalty))


def run(lab: Lab, ends: Iterable[int] = (), tokens: int = TOKENS, **how: float) -> Sampled:
    prefixes, suffixes = prompts(lab)
    return Generator(lab.stock, ends).run(prefixes, suffixes, sampling_of(len(suffixes), **how), tokens)


@pytest.mark.parametrize("at_once", [1, 1000])
def test_greedy_continuations_are_the_plain_models(
    any_lab: Lab, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(generation, "PREFIX_TOKENS", at_once)
    sampled = run(any_lab)
    assert sampled.lengths.tolist() == [TOKENS] * len(SUFFIX_LENGTHS)
    for whole, tokens in zip(wholes(*prompts(any_lab)), sampled.tokens.tolist(), strict=True):
        assert tokens == any_lab.greedy(whole, TOKENS)


def test_hidden_states_are_those_that_foretold_the_tokens(lab: Lab) -> None:
    sampled = run(lab, temperature=1.0)
    for i, whole in enumerate(wholes(*prompts(lab))):
        plain = lab.logits([*whole, *sampled.tokens[i].tolist()])[len(whole) - 1 : -1]
        with torch.no_grad():
            torch.testing.assert_close(lab.stock.lm_head(sampled.hidden[i]), plain, rtol=1e-4, atol=1e-4)


def test_the_penalty_is_the_samplers_over_the_answer_alone(lab: Lab) -> None:
    sampled = run(lab, penalty=1.4)
    changed = 0
    for i, whole in enumerate(wholes(*prompts(lab))):
        sampler = Sampler(Sampling(repetition_penalty=1.4), answer_start=len(whole))
        ids = [*whole, *sampled.tokens[i].tolist()]
        scores = sampler.scores(lab.logits(ids)[len(whole) - 1 : -1], torch.tensor(ids[:-1]))
        assert sampled.tokens[i].tolist() == scores.argmax(-1).tolist()
        changed += sampled.tokens[i].tolist() != lab.greedy(whole, TOKENS)
    assert changed


def test_the_penalty_of_unlikely_tokens(lab: Lab) -> None:
    copies, prompt = 24_000, [*lab.text(PREFIX), 5]
    sampling = Sampling(temperature=3.0, repetition_penalty=0.25)
    torch.manual_seed(0)
    samplings = sampling_of(copies, sampling.temperature, sampling.repetition_penalty)
    prefix = torch.tensor([prompt[:-1]])
    first, second = Generator(lab.stock, ()).run(prefix, [[5]] * copies, samplings, 2).tokens.T
    repeated = expected = 0.0
    for token in range(48):
        ids = [*prompt, token]
        if lab.logits(ids)[-1, token] < 0:
            law = Sampler(sampling, len(prompt)).probs(lab.logits(ids)[-1:], torch.tensor(ids))[0]
            repeated += int(((first == token) & (second == token)).sum())
            expected += float(law[token]) * int((first == token).sum())
    assert expected > 40
    assert abs(repeated - expected) < 4 * expected**0.5


def test_every_sequence_has_its_own_temper(lab: Lab) -> None:
    prefixes, suffixes = prompts(lab)
    mixed = sampling_of(len(suffixes))
    mixed.penalty[1::2] = 1.4
    found = Generator(lab.stock, ()).run(prefixes, suffixes, mixed, TOKENS).tokens
    for i in range(len(suffixes)):
        assert torch.equal(found[i], run(lab, penalty=1.4 if i % 2 else 1.0).tokens[i])


def test_a_sequence_ends_with_its_first_end_token(lab: Lab) -> None:
    plain = run(lab).tokens.tolist()
    ends = {plain[0][0], plain[1][LOOK - 1], plain[2][5]}
    sampled = run(lab, ends)
    first = [next((i + 1 for i, token in enumerate(row) if token in ends), TOKENS) for row in plain]
    assert sampled.lengths.tolist() == first
    assert min(first) == 1
    for row, found, length in zip(plain, sampled.tokens.tolist(), first, strict=True):
        assert found[:length] == row[:length]


def test_nothing_is_computed_when_all_have_ended(lab: Lab) -> None:
    sampled = run(lab, ends=range(48))
    assert sampled.lengths.tolist() == [1] * len(SUFFIX_LENGTHS)
    assert sampled.hidden[:, :LOOK].abs().amax(-1).min() > 0
    assert sampled.hidden[:, LOOK:].abs().max() == 0


def chi_square(counts: Tensor, law: Tensor) -> float:
    """In standard deviations from its mean; rare tokens count as one."""
    expected = law * counts.sum()
    rare = expected < 5
    found = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = wanted > 0
    freedom = int(kept.sum()) - 1
    statistic = ((found - wanted)[kept].square() / wanted[kept]).sum()
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_they_are_likely(lab: Lab, temperature: float) -> None:
    copies = 6000
    prefix, suffix = lab.text(PREFIX), lab.text(4, seed=9)
    torch.manual_seed(0)
    sampled = Generator(lab.stock, ()).run(
        torch.tensor([prefix]), [suffix] * copies, sampling_of(copies, temperature), 2
    )
    first, second = sampled.tokens.T
    law = (lab.logits(prefix + suffix)[-1].double() / temperature).softmax(-1)
    assert abs(chi_square(first.bincount(minlength=48).double(), law)) < 4
    often = int(first.bincount().argmax())
    follow = (lab.logits([*prefix, *suffix, often])[-1].double() / temperature).softmax(-1)
    assert abs(chi_square(second[first == often].bincount(minlength=48).double(), follow)) < 4
    assert chi_square(first.bincount(minlength=48).double(), follow) > 20  # another law is found out


def test_the_models_own_attention_comes_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = lab.stock.config._attn_implementation
    run(lab, tokens=1)
    assert lab.stock.config._attn_implementation == usual
    monkeypatch.setattr(Generator, "_encode", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(lab, tokens=1)
    assert lab.stock.config._attn_implementation == usual


def test_attention_with_its_mass() -> None:
    q, k, v = (torch.randn(2, 3, n, 8, generator=torch.Generator().manual_seed(n)) for n in (4, 9, 9))
    out, mass = with_mass(q, k, v, 0.3)
    scores = 0.3 * q @ k.transpose(-1, -2)
    torch.testing.assert_close(out, scores.softmax(-1) @ v)
    torch.testing.assert_close(mass, scores.exp().sum(-1).log())
