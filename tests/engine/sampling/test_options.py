"""Settings at the edge of what numbers can hold."""

from __future__ import annotations

import pytest
import torch

from triforce_chat.engine.sampling.ops import PenaltyContext, penalized, warp
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.errors import UsageError

SCORES = torch.tensor([[[9.0, -4.0, 0.0, 8.9]]])
SAID = PenaltyContext(torch.tensor([[0, 1, 2]]), torch.tensor([3]))


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e30])
@pytest.mark.parametrize("penalty", [1e-30, 1.0, 1e30])
def test_every_allowed_factor_leaves_a_distribution(temperature: float, penalty: float) -> None:
    scores = penalized(SCORES, SAID, None, penalty).masked_fill(torch.arange(4) == 2, -torch.inf)
    law = warp(scores, Sampling(temperature, repetition_penalty=penalty))[0]
    assert float(law.sum()) == pytest.approx(1)
    assert float(law[..., 2]) == 0


@pytest.mark.parametrize("factor", [1e-50, 1e39])
def test_other_factors_are_refused_before_they_are_taken_for_damaged_weights(factor: float) -> None:
    with pytest.raises(UsageError, match="temperature must be 0, or from 1e-30 to 1e30"):
        Sampling(temperature=factor)
    with pytest.raises(UsageError, match="repetition penalty must be from 1e-30 to 1e30"):
        Sampling(repetition_penalty=factor)
