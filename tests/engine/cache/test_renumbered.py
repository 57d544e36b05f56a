"""A middle level's cache of heavy hitters whose positions are counted inside: what it copies, and when."""

from __future__ import annotations

import random

import pytest
import torch
from support.caches import answer_of, buffer_of, caches, interrupt, told_until_interrupt
from support.labs import SMALL_BUDGET, Lab

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.evicting import turned
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.renumbered import RenumberedCache
from triforce_chat.engine.engine import Request
from triforce_chat.engine.speculation.stacks import retrieval_cache

POLICY = "streaming-h2o"


def over(lab: Lab, full: FullCache, repeatable: bool = False) -> RenumberedCache:
    made = retrieval_cache(lab.target, full, SMALL_BUDGET, POLICY, lambda _: None, repeatable=repeatable)
    assert isinstance(made, RenumberedCache)
    return made


def feed(lab: Lab, full: FullCache, ids: list[int]) -> None:
    fed = full.pending(torch.tensor(ids))
    if len(fed):
        lab.target.prefill(fed, full)


def check(cache: RenumberedCache) -> None:
    """Every copy is that of a listed token, turned from its own position to its place in the list."""
    if cache.copied < 0:
        return
    source, filled = buffer_of(cache.source), cache.layout.filled
    assert cache.copied == cache.layout.total == cache.source.held
    for layer in range(cache.source.shape.layers):
        slots = cache.slots[layer, :, :filled].long()
        index = slots[..., None].expand(-1, -1, source.keys.shape[3])
        keys, values = (part[layer].gather(1, index) for part in (source.keys, source.values))
        moved = torch.arange(filled) - slots
        expected = turned(keys, moved, cache.frequencies)
        torch.testing.assert_close(cache.storage.keys[layer, :, :filled], expected)
        assert torch.equal(cache.storage.values[layer, :, :filled], values)


def test_keys_stand_at_their_places_in_the_list(lab: Lab) -> None:
    """Those of the first layer depend on a token and its position alone: a fresh cache of the listed ones has them."""
    full, ids = FullCache(lab.target.shape, 400), lab.text(115)
    cache = over(lab, full)
    for end in (70, 110, 115):
        feed(lab, full, ids[:end])
    assert cache.ready(1)
    assert cache.position == cache.layout.filled == SMALL_BUDGET.tokens
    for head, slots in enumerate(cache.slots[0, :, : cache.layout.filled].tolist()):
        fresh = FullCache(lab.target.shape, 400)
        feed(lab, fresh, [ids[slot] for slot in slots])
        expected = buffer_of(fresh).keys[0, head, : len(slots)]
        found = cache.storage.keys[0, head, : len(slots)]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert slots != list(range(len(slots)))


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_forwards_cuts_and_questions(lab: Lab, seed: int, repeatable: bool) -> None:
    """With a seed prefills are not weighed: what they bring is copied all the same."""
    luck, full, ids = random.Random(seed), FullCache(lab.target.shape, 700), list[int]()
    cache = over(lab, full, repeatable)
    for step in range(30):
        kind = luck.choice(["forward", "forward", "cut", "asked", "restart"])
        if kind == "forward":
            ids += lab.text(luck.choice([1, 5, 70]), seed=step)[: 690 - len(ids)]
            feed(lab, full, ids)
        elif kind == "cut":
            ids = ids[: luck.randrange(len(ids) + 1)]
            full.truncate(len(ids))
        elif kind == "restart":
            cache.restart()
        elif ids and cache.ready(2):
            assert cache.copied == len(ids)
            lab.target(torch.tensor([[3, 4]]), cache, 1)
            cache.truncate(len(ids))
        if kind == "asked":
            check(cache)


def test_answers_are_the_target_s(lab: Lab) -> None:
    engine = lab.engine(policy=POLICY)
    assert caches(engine, RenumberedCache)
    prompt = lab.text(80)
    for turn, cut in enumerate((0, 9, 40, 0)):
        answer = answer_of(engine, prompt)
        assert answer == lab.greedy(prompt, 16)
        prompt = [*prompt, *answer][: len(prompt) + 16 - cut] + lab.text(4, seed=turn)


@pytest.mark.parametrize("method", ["_fill", "update", "truncate", "_select"])
def test_an_interrupt_at_any_step(lab: Lab, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 16)
    engine, prompt = lab.engine(policy=POLICY, context=700), lab.text(90)
    for call in (1, 2, 3):
        with monkeypatch.context() as patch:
            interrupt(patch, [(RenumberedCache, method)], call, bool(call % 2))
            told, broke = told_until_interrupt(engine, Request(prompt, 30))
        assert broke
        prompt = [*told, 3]
        assert answer_of(engine, prompt, 9) == lab.greedy(prompt, 9)
        engine.top.rollback(50)
        del engine.cached[50:]
