"""The shipped draft model, captured on a GPU: its own kernels draft what the usual ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from triforce_chat.engine.cache.streaming import LONG_HOP, StreamingCache
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward import small_decoder
from triforce_chat.engine.forward.loops import FusedLoop
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.tree_graph import TreeGraphs
from triforce_chat.engine.speculation.tree_shapes import best_shape
from triforce_chat.engine.tree import children
from triforce_chat.models.presets import shipped

pytestmark = pytest.mark.gpu

GENERATOR = torch.Generator().manual_seed(3)
TEXT = torch.randint(100, 2000, (25,), generator=GENERATOR).tolist() * 14  # more than its window holds
SEVERAL = 6
TREE = best_shape((0.6, 0.2, 0.1, 0.05), 31, SEVERAL)


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


def tree_of(runner: Runner, sampling: Sampling, forced: tuple[int, ...] = ()) -> list[Draft]:
    """A tree, drafted twice: after a capture and as a replay."""
    sampler = Sampler(sampling, len(TEXT) - 40, forced=bool(forced))
    seq = TokenBuffer.of(TEXT, 64, torch.device("cuda"), forced)
    drafter, made = DraftModel(runner, StreamingCache(runner.shape, hop=LONG_HOP)), []
    graphs = TreeGraphs(drafter, len(TREE), False)
    for _ in range(2):
        draft = graphs.draft(seq, TREE, sampler)
        made.append(Draft(draft.tokens.clone(), draft.probs.clone(), parents=TREE))
    return made


def usual(
    make: Callable[..., list[Draft]], runner: Runner, monkeypatch: pytest.MonkeyPatch, *given: Any
) -> list[Draft]:
    """The same by the usual blocks and operations."""
    with monkeypatch.context() as patch:
        patch.setattr(small_decoder, "small_decoder", lambda *_: None)
        patch.setattr(Sampling, "filters", property(lambda _: True))
        return make(runner, *given)


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_the_likeliest_tokens_are_the_same(
    model: Any, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, greedy = Runner(model), Sampling(0.0, repetition_penalty=penalty)
    assert FusedLoop(runner, StreamingCache(runner.shape), 2).small
    mine = [draft.tokens.tolist() for draft in drafted(runner, greedy)]
    assert mine == [draft.tokens.tolist() for draft in usual(drafted, runner, monkeypatch, greedy)]


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_distributions_differ_by_rounding(
    model: Any, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, forced = Runner(model), tuple(TEXT[3 : 3 + 2 * SEVERAL])
    given = Sampling(0.8, repetition_penalty=penalty, seed=1), forced
    for mine, theirs in zip(
        drafted(runner, *given), usual(drafted, runner, monkeypatch, *given), strict=True
    ):
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


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_the_likeliest_path_of_a_tree_is_the_same(
    model: Any, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, greedy = Runner(model), Sampling(0.0, repetition_penalty=penalty)
    mine, theirs = tree_of(runner, greedy)[1], usual(tree_of, runner, monkeypatch, greedy)[1]
    first = [0]
    while following := children(TREE).get(first[-1]):
        first.append(following[0])
    assert mine.tokens[0, first].tolist() == theirs.tokens[0, first].tolist()
    # Of tokens far behind, some are so close that rounding orders them.
    assert (mine.tokens == theirs.tokens).float().mean() > 0.6
    chain = drafted(runner, greedy, times=1)[0]
    assert mine.tokens[0, first].tolist() == chain.tokens[0, : len(first)].tolist()


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_distributions_of_a_tree_differ_by_rounding(
    model: Any, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, forced = Runner(model), tuple(TEXT[3 : 3 + SEVERAL])
    given = Sampling(0.8, repetition_penalty=penalty, seed=1), forced
    eldest = [following[0] for following in children(TREE).values()]
    for mine, theirs in zip(
        tree_of(runner, *given), usual(tree_of, runner, monkeypatch, *given), strict=True
    ):
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert ((mine.probs - theirs.probs)[0, eldest].abs().sum(-1) / 2 < 0.05).all()


def test_siblings_are_drawn_from_what_is_handed_on(model: Any) -> None:
    for seed in range(20):
        (_, draft) = tree_of(Runner(model), Sampling(1.0, seed=seed))
        torch.testing.assert_close(draft.probs.sum(-1), torch.ones(1, len(TREE), device="cuda"))
        for siblings in children(TREE).values():
            for place, node in enumerate(siblings):
                assert draft.probs[0, node, draft.tokens[0, node]] > 0
                assert not draft.probs[0, node, draft.tokens[0, [*siblings[:place]]]].any()
