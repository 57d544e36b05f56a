"""Tokens of a draft drawn by kernels: the distributions and draws of ``Verification``, by the interpreter or a GPU."""

from __future__ import annotations

import pytest
import torch
from support import triton_interpreter
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.draft import FREE, Draft
from triforce_chat.engine.sampling.executor import SamplerInputs, SamplerOutput, Verification
from triforce_chat.engine.sampling.ops import CANDIDATES, PenaltyContext, Uniforms
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.draft_model import draft_tokens

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    triton_interpreter.patch()

ROWS, STEPS = 2, 5
VOCABULARIES = (5, 1024, 9001)  # one tile, a whole one, more than is read at a time


def logits_of(vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of each step and row; the written tokens are likely ones."""
    generator = torch.Generator().manual_seed(vocabulary)
    made = torch.randn(STEPS, ROWS, vocabulary, generator=generator) * 3
    made[..., :3] += 4
    return made.to(DEVICE, dtype)


def written() -> PenaltyContext:
    tokens = torch.tensor([[1, 0, 1, 2] + STEPS * [0], [3, 4, 4, 4] + STEPS * [0]], device=DEVICE)
    return PenaltyContext(tokens, torch.tensor([3, 2], device=DEVICE))


def by_operations(
    logits: Tensor, sampling: Sampling, numbers: Tensor, forced: Tensor | None
) -> tuple[Tensor, Tensor]:
    op = Verification(sampling, CANDIDATES, forced is not None)
    nothing = Draft(
        torch.empty(ROWS, 0, dtype=torch.long, device=DEVICE),
        torch.empty(ROWS, 0, logits.shape[2], device=DEVICE),
    )

    def sample(inputs: SamplerInputs, step: int) -> SamplerOutput:
        uniforms = Uniforms(numbers[:, :0].float(), numbers[:, step : step + 1])
        return op(inputs, op.randomness(uniforms))

    penalty = written() if sampling.repetition_penalty != 1 else None
    made = draft_tokens(STEPS, lambda _, step: logits[step][:, None], sample, penalty, nothing, forced)
    return made.tokens, made.probs


def by_kernels(
    logits: Tensor, sampling: Sampling, numbers: Tensor, forced: Tensor | None
) -> tuple[Tensor, Tensor]:
    vocabulary, penalty = logits.shape[2], sampling.repetition_penalty
    since = kernels.since_written(*written(), vocabulary) if penalty != 1 else None
    how = kernels.Drawing(sampling.temperature, numbers, penalty, since, forced)
    tokens = torch.full((ROWS, STEPS), -7, device=DEVICE)
    probs = torch.full((ROWS, STEPS, vocabulary), torch.nan, device=DEVICE)
    for step in range(STEPS):
        kernels.draw_token(logits[step], how, step, tokens, probs)
    return tokens, probs


def uniforms() -> Tensor:
    return torch.rand(ROWS, STEPS, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).to(DEVICE)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.7])
def test_tokens_and_distributions_are_those_of_operations(
    temperature: float, penalty: float, vocabulary: int
) -> None:
    given = logits_of(vocabulary), Sampling(temperature, repetition_penalty=penalty), uniforms(), None
    (tokens, probs), (expected, laws) = by_kernels(*given), by_operations(*given)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(probs, laws, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_forced_tokens_replace_drawn_ones_and_count_as_written(temperature: float) -> None:
    forced = torch.tensor([[4, FREE, 2, FREE, FREE], [FREE, FREE, FREE, FREE, 0]], device=DEVICE)
    given = logits_of(5), Sampling(temperature, repetition_penalty=1.5), uniforms(), forced
    (tokens, probs), (expected, laws) = by_kernels(*given), by_operations(*given)
    assert tokens.tolist() == expected.tolist()
    assert tokens[0, ::2].tolist()[:2] == [4, 2]
    torch.testing.assert_close(probs, laws, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_first_of_equal_logits_is_likeliest(dtype: torch.dtype) -> None:
    logits = torch.zeros(1, 2500, dtype=dtype, device=DEVICE)
    logits[0, [1100, 40, 2400]] = 2.0
    tokens, probs = torch.empty(1, 1, dtype=torch.long, device=DEVICE), torch.empty(1, 1, 2500, device=DEVICE)
    kernels.draw_token(logits, kernels.Drawing(0.0, uniforms()), 0, tokens, probs)
    assert tokens.item() == 40
    assert probs.nonzero().tolist() == [[0, 0, 40]]


@pytest.mark.parametrize("number", [0.0, 0.3, 0.999, 1 - 2.0**-53])
def test_what_cannot_be_is_never_drawn(number: float) -> None:
    """Not even by the smallest and largest numbers: the draft may not know the first and last tokens of its target."""
    logits = torch.full((1, 3000), -torch.inf, device=DEVICE)
    logits[0, 1030:2040:5] = logits_of(5)[0, 0, 0]
    tokens, probs = torch.empty(1, 1, dtype=torch.long, device=DEVICE), torch.empty(1, 1, 3000, device=DEVICE)
    numbers = torch.full((1, 1), number, dtype=torch.float64, device=DEVICE)
    kernels.draw_token(logits, kernels.Drawing(1.0, numbers), 0, tokens, probs)
    assert probs[0, 0, int(tokens)] > 0
    assert int(tokens) == 1030 + 5 * min(201, int(202 * number))


def test_draws_invert_the_distribution_that_is_handed_on() -> None:
    logits = logits_of(9001)[0, :1]
    tokens, probs = torch.empty(1, 1, dtype=torch.long, device=DEVICE), torch.empty(1, 1, 9001, device=DEVICE)
    for number in torch.linspace(0, 1, 23, dtype=torch.float64)[:-1].tolist():
        numbers = torch.full((1, 1), number, dtype=torch.float64, device=DEVICE)
        kernels.draw_token(logits, kernels.Drawing(2.0, numbers), 0, tokens, probs)
        assert int(tokens) == int(Uniforms(numbers[:, :0].float(), numbers).draw(probs[:, 0]))
