"""Losses computed in slices equal the plain formulas, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.lab.training import draft, losses
from triforce_chat.lab.training.dataset import Batch
from triforce_chat.lab.training.draft import Distance, accepted, penalized
from triforce_chat.lab.training.losses import divergence, next_token_loss

ROWS, VOCABULARY = 23, 31


def random(*shape: int, seed: int, learnt: bool = True) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return made.requires_grad_(learnt)


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


@pytest.mark.parametrize("size", [1, 7, 23, 100])
def test_the_next_token_loss_is_weighted_cross_entropy(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(losses, "SLICE", size)
    hidden, head = random(ROWS, 8, seed=0), random(VOCABULARY, 8, seed=1)
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=torch.Generator().manual_seed(2))
    weights = random(ROWS, seed=3, learnt=False).abs()
    plain = (cross_entropy(hidden @ head.T, targets, reduction="none") * weights).sum()
    loss = next_token_loss(hidden, head, targets, weights)
    torch.testing.assert_close(loss.double(), plain, rtol=1e-6, atol=1e-6)
    for found, expected in zip(gradients(loss, hidden, head), gradients(plain, hidden, head), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 7, 23, 100])
def test_the_divergence_is_the_mean_kl_from_the_teacher(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(losses, "SLICE", size)
    student, teacher = random(ROWS, 8, seed=0), random(ROWS, 8, seed=1)
    head = random(VOCABULARY, 8, seed=2, learnt=False)
    log_p, log_q = ((rows @ head.T).log_softmax(-1) for rows in (teacher.detach(), student))
    plain = (log_p.exp() * (log_p - log_q)).sum() / ROWS
    loss = divergence(student, teacher, head)
    torch.testing.assert_close(loss.double(), plain, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradients(loss, student), gradients(plain, student), rtol=1e-5, atol=1e-6)
    unused: tuple[Tensor | None, ...] = torch.autograd.grad(
        divergence(student, teacher, head), teacher, allow_unused=True
    )
    assert unused == (None,)
    assert float(divergence(teacher, teacher, head).detach()) == pytest.approx(0, abs=1e-6)


def said(states: Tensor, penalty: float) -> Batch:
    """Two windows: the first foretells 11 tokens, of which it holds all; the second only reads."""
    tokens = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(9))
    window = torch.tensor([0] * 11 + [1] * 12)
    place = torch.tensor([*range(4, 15), *range(3, 15)])
    return Batch(tokens, window, place, states, torch.tensor([5, 16]), torch.tensor([penalty, 1.0]))


@pytest.mark.parametrize("penalty", [1.0, 1.1, 1.7])
def test_the_penalty_is_the_samplers(penalty: float) -> None:
    batch = said(random(ROWS, 8, seed=2, learnt=False), penalty)
    logits = random(ROWS, VOCABULARY, seed=5, learnt=False)
    every = slice(None)
    found, growth = penalized(logits, batch.seen(every, VOCABULARY), batch.penalty(every))
    sampler = Sampler(Sampling(repetition_penalty=penalty), answer_start=5)
    torch.testing.assert_close(
        found[:11], sampler.scores(logits[:11], batch.tokens[0, :15]), check_dtype=False
    )
    assert torch.equal(found[11:], logits[11:])
    torch.testing.assert_close(logits * growth, found)


@pytest.mark.parametrize("size", [5, 23, 100])
@pytest.mark.parametrize(("kl", "tv"), [(1.0, 0.0), (0.3, 1.0), (0.0, 2.0)])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_the_distance_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch, size: int, kl: float, tv: float, temperature: float, penalty: float
) -> None:
    monkeypatch.setattr(draft, "SLICE", size)
    student, head = random(ROWS, 6, seed=0), random(VOCABULARY, 6, seed=1)
    teacher, other = random(ROWS, 8, seed=2, learnt=False), random(VOCABULARY, 8, seed=3, learnt=False)
    batch = said(teacher, penalty)
    every = slice(None)
    under = batch.seen(every, VOCABULARY), batch.penalty(every)
    p, q = (
        (penalized(rows, *under)[0] / temperature).softmax(-1)
        for rows in (teacher @ other.T, student @ head.T)
    )
    plain = kl * (p * (p.log() - q.log())).sum() + tv * (p - q).abs().sum() / 2
    loss: Tensor = Distance.apply(student, head, batch, other, temperature, kl, tv)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=1e-5)
    found, expected = gradients(3 * loss, student, head), gradients(3 * plain, student, head)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_acceptance_at_zero_is_whether_both_agree() -> None:
    p = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]])
    q = torch.tensor([[0.0, 9.0, 8.0], [1.0, 0.0, 2.0]])
    assert accepted(p, q, 0.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_acceptance_is_one_minus_the_total_variation(temperature: float) -> None:
    p, q = random(9, 31, seed=0, learnt=False), random(9, 31, seed=1, learnt=False)
    variation = ((p / temperature).softmax(-1) - (q / temperature).softmax(-1)).abs().sum(-1) / 2
    torch.testing.assert_close(accepted(p, q, temperature), 1 - variation)
    assert torch.allclose(accepted(p, p, temperature), torch.ones(9, dtype=torch.double))
