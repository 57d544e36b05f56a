"""The level over a 4-bit copy of the full cache: what the copy holds, and that answers stay those of the target."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
import torch
from support.caches import answer_of, caches, check_copy, check_retrieval, interrupt, told_until_interrupt
from support.labs import SMALL_BUDGET, Lab, spell

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache import quantized_copy
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.quantization import GROUP
from triforce_chat.engine.cache.quantized_copy import LATEST, UNQUANTIZED, QuantizedCopy
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Verified
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.speculation.stacks import (
    MOST_DRAFT_GAMMA,
    MOST_GAMMA,
    STREAMED_GAMMA,
    StackOptions,
)
from triforce_chat.errors import UsageError

STORES = [KVBuffer, OffloadedKV]
MOST_FED = 1 + STREAMED_GAMMA + MOST_GAMMA + MOST_DRAFT_GAMMA + 1


def engine_of(lab: Lab, storage: Any = KVBuffer, **options: Any) -> Engine:
    settings: dict[str, Any] = {"gamma": 8, "draft_gamma": 2, "budget": SMALL_BUDGET, **options}
    stack = StackOptions(name="triforce-int4", **settings)
    return Engine(lab.target, 900, TextCodec(spell), lab.draft, stack, storage=storage)


def copy_of(engine: Engine) -> QuantizedCopy:
    [cache] = caches(engine, QuantizedCopy)
    assert isinstance(cache, QuantizedCopy)
    return cache


def feed(full: FullCache, n: int, seed: int) -> None:
    """A forward of n tokens, whatever they are."""
    torch.manual_seed(seed)
    shape = full.shape
    for layer in range(shape.layers):
        q = torch.randn(1, shape.query_heads, n, shape.head_dim)
        k, v = torch.randn(2, 1, shape.kv_heads, n, shape.head_dim)
        full.update(layer, q, k, v)
    full.advance(n)


@pytest.mark.parametrize("storage", STORES)
@pytest.mark.parametrize("policy", ["mean", "attention"])
def test_answers_are_the_target_s_and_the_copy_follows(lab: Lab, storage: Any, policy: str) -> None:
    engine, history = engine_of(lab, storage, policy=policy), lab.text(400)
    for turn in range(3):
        assert answer_of(engine, history, 24) == lab.greedy(history, 24)
        check_copy(copy_of(engine))
        for cache in caches(engine, RetrievalCache):
            check_retrieval(cache)
        kept = len(engine.cached) - (turn == 0) * 170  # a rewind within the quantized tokens
        history = [*engine.cached[:kept], *lab.text(60, seed=turn)]
    assert copy_of(engine).quantized >= 4 * GROUP


def test_the_level_confirms_what_the_level_below_has_drafted(lab: Lab) -> None:
    """Its proposals are accepted more often than those it confirms: 4 bits change less than a small budget."""
    engine = engine_of(lab, gamma=None, draft_gamma=None)
    events = [event for event in engine.answer(Request(lab.text(400), 120)) if isinstance(event, Verified)]
    names = {event.level for event in events}
    assert names == {"target", "int4", "retrieval"}
    by_name = {name: [event for event in events if event.level == name and event.proposed] for name in names}
    assert {event.drafter for event in by_name["int4"]} == {"retrieval"}
    assert {event.drafter for event in by_name["target"]} == {"int4"}
    rates = {
        name: sum(event.accepted for event in found) / sum(event.proposed for event in found)
        for name, found in by_name.items()
    }
    assert rates["target"] > rates["int4"]
    assert rates["target"] > 0.6


@pytest.mark.parametrize("storage", STORES)
def test_rejected_tokens_never_touch_a_quantized_group(lab: Lab, storage: Any) -> None:
    full = FullCache(lab.target.shape, 4000, storage=storage)
    copy, luck, before = QuantizedCopy(full), random.Random(0), 0
    feed(full, 300, 0)
    while full.length < 3000:
        committed = full.length
        codes = copy.groups.keys[:, :, : copy.quantized // 2].clone()
        feed(full, luck.choice([1, 7, 30, MOST_FED]), committed)
        assert copy.quantized <= committed
        full.truncate(luck.randrange(committed + 1, full.length + 1))
        assert copy.quantized >= before
        assert torch.equal(copy.groups.keys[:, :, : codes.shape[2]], codes)
        before = copy.quantized
    check_copy(copy)
    assert MOST_FED <= UNQUANTIZED


@pytest.mark.parametrize("storage", STORES)
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_forwards_and_cuts(lab: Lab, storage: Any, seed: int) -> None:
    full = FullCache(lab.target.shape, 4000, storage=storage)
    copy, luck = QuantizedCopy(full), random.Random(seed)
    for step in range(40):
        kind = luck.choice(["forward", "forward", "cut", "asked", "restart"])
        if kind == "forward":
            feed(full, luck.choice([1, 5, 64, 700]) % (3900 - full.length) + 1, step)
        elif kind == "cut":
            full.truncate(luck.randrange(full.length + 1))
        elif kind == "restart":
            copy.restart()
        else:
            assert copy.ready(1)
            assert copy.filled == full.length == copy.length
        check_copy(copy)


@pytest.mark.parametrize("storage", STORES)
def test_a_history_that_came_without_a_forward_is_copied_when_asked_for(lab: Lab, storage: Any) -> None:
    full = FullCache(lab.target.shape, 4000, storage=storage)
    feed(full, 700, 0)
    copy = QuantizedCopy(full)
    assert copy.filled == 0
    assert copy.ready(LATEST - UNQUANTIZED - GROUP)
    assert copy.quantized == 512
    check_copy(copy)
    assert not copy.ready(LATEST)


@pytest.mark.parametrize("storage", STORES)
@pytest.mark.parametrize("seed", range(2))
def test_an_interrupt_between_any_two_levels(
    lab: Lab, storage: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at any layer of any level's forward, or while the copy is brought up to date."""
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 64)
    luck, engine, prompt = random.Random(seed), engine_of(lab, storage), lab.text(250, seed=seed)
    steps = [(kind, "update") for kind in (FullCache, RetrievalCache, QuantizedCopy)]
    steps += [(QuantizedCopy, name) for name in ("_begin", "_copy", "on_forward")]
    for turn in range(6):
        with monkeypatch.context() as patch:
            interrupt(patch, steps, luck.randrange(1, 60), late=bool(turn % 2))
            told, broke = told_until_interrupt(engine, Request(prompt, 100))
            assert broke
        prompt = [*told[: luck.choice([len(told), len(told), 200])], *lab.text(3, seed=turn)]
        assert answer_of(engine, prompt, 12) == lab.greedy(prompt, 12)
        check_copy(copy_of(engine))


def test_large_histories_are_quantized_in_pieces(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_copy, "PIECE", 2 * GROUP)
    full = FullCache(lab.target.shape, 1000)
    copy = QuantizedCopy(full)
    feed(full, 900, 0)
    assert copy.quantized == 768
    check_copy(copy)


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_a_target_that_quantizes_itself_is_refused(lab: Lab, kv: str) -> None:
    target = Runner(deepcopy(lab.stock), kv=getattr(torch, kv))
    stack = StackOptions(name="triforce-int4", budget=SMALL_BUDGET)
    with pytest.raises(UsageError, match="not with --kv int8"):
        Engine(target, 400, TextCodec(spell), None, stack)
