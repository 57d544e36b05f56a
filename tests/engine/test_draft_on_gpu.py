"""The shipped draft model, captured on a GPU: its own kernels draft what the usual ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward import small_decoder
from triforce_chat.engine.forward.loops import FusedLoop
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.models.presets import shipped

pytestmark = pytest.mark.gpu

GENERATOR = torch.Generator().manual_seed(3)
TEXT = torch.randint(100, 2000, (25,), generator=GENERATOR).tolist() * 14  # more than its window holds
SEVERAL = 6


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(shipped("draft"), dtype=torch.bfloat16).to("cuda").eval()


def drafted(runner: Runner, sampling: Sampling, forced: tuple[int, ...] = (), times: int = 2) -> list[Draft]:
    """One draft after the other, each of which the target takes as it is, or as it is forced to be."""
    sampler = Sampler(sampling, len(TEXT) - 40, forced=bool(forced))
    seq = TokenBuffer.of(TEXT, 64, torch.device("cuda"), forced)
    drafter, made = DraftModel(runner, StreamingCache(runner.shape)), []
    for _ in range(times):
        draft = drafter.propose(seq, SEVERAL, sampler)
        made.append(Draft(draft.tokens.clone(), draft.probs.clone()))
        seq.commit(draft.tokens, SEVERAL)
        seq.settle(seq.known + SEVERAL)
    return made


def usual(runner: Runner, monkeypatch: pytest.MonkeyPatch, *given: Any) -> list[Draft]:
    """The same by the usual blocks and operations."""
    with monkeypatch.context() as patch:
        patch.setattr(small_decoder, "small_decoder", lambda *_: None)
        patch.setattr(Sampling, "filters", property(lambda _: True))
        return drafted(runner, *given)


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_the_likeliest_tokens_are_the_same(
    model: Any, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, greedy = Runner(model), Sampling(0.0, repetition_penalty=penalty)
    assert FusedLoop(runner, StreamingCache(runner.shape), 2).small
    mine = [draft.tokens.tolist() for draft in drafted(runner, greedy)]
    assert mine == [draft.tokens.tolist() for draft in usual(runner, monkeypatch, greedy)]


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_distributions_differ_by_rounding(
    model: Any, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, forced = Runner(model), tuple(TEXT[3 : 3 + 2 * SEVERAL])
    given = Sampling(0.8, repetition_penalty=penalty, seed=1), forced
    for mine, theirs in zip(drafted(runner, *given), usual(runner, monkeypatch, *given), strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert ((mine.probs - theirs.probs).abs().sum(-1) / 2 < 0.05).all()
        torch.testing.assert_close(mine.probs.sum(-1), torch.ones(1, SEVERAL, device="cuda"))


def test_tokens_are_drawn_from_what_is_handed_on(model: Any) -> None:
    """Whatever the numbers: none has probability 0, and likely ones come about as often as they should."""
    runner, hits, expected = Runner(model), 0.0, 0.0
    for seed in range(60):
        (draft,) = drafted(runner, Sampling(1.0, seed=seed), times=1)
        chosen = draft.probs.gather(-1, draft.tokens[..., None])[..., 0]
        assert (chosen > 0).all()
        best = draft.probs.amax(-1)
        hits += float((chosen == best).sum())
        expected += float(best.sum())
    assert abs(hits - expected) < 4 * expected**0.5 + 1
