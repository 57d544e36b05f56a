"""After every round each cache holds what a fresh one would, and an answer may break off anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.caches import (
    STACKS,
    answer_of,
    buffer_of,
    caches,
    check_retrieval,
    in_turn,
    interrupt,
    levels,
    rows,
    told_until_interrupt,
)
from support.labs import SMALL_BUDGET, Lab
from torch import Tensor

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache import selection
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.query_ring import QueryRing
from triforce_chat.engine.cache.retrieval import RetrievalCache, State
from triforce_chat.engine.cache.selection import AttentionMass, MeanKey
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Rebuilt, Text
from triforce_chat.engine.forward import attention
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.planner import Planner

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def fresh(runner: Runner, ids: Sequence[int]) -> KVBuffer:
    """Keys and values of ids, computed from nothing."""
    cache = FullCache(runner.shape, len(ids))
    if ids:
        runner.prefill(torch.tensor(ids), cache)
    return buffer_of(cache)


def same(mine: KVBuffer, theirs: KVBuffer, n: int) -> bool:
    return torch.allclose(mine.keys[:, :, :n], theirs.keys[:, :, :n], **CLOSE) and torch.allclose(
        mine.values[:, :, :n], theirs.values[:, :, :n], **CLOSE
    )


def small_streaming(monkeypatch: pytest.MonkeyPatch, sinks: int = 3, window: int = 10, hop: int = 6) -> None:
    """Let the stacks build streaming caches that overflow many times in a short answer."""
    made = StreamingCache.__init__

    def init(cache: StreamingCache, shape: Any, *_: int, **more: Any) -> None:
        made(cache, shape, **{**more, "sinks": sinks, "window": window, "hop": hop})

    monkeypatch.setattr(StreamingCache, "__init__", init)


def check_full(engine: Engine, committed: list[int]) -> None:
    n = engine.full.length
    assert n <= len(committed) - 1
    assert same(buffer_of(engine.full), fresh(engine.target, committed[:n]), n)


def check_streaming(cache: StreamingCache, draft: Runner, committed: list[int]) -> None:
    assert cache.length <= len(committed)
    held = committed[: min(cache.sinks, cache.length)]
    if cache.length > cache.sinks:
        held = held + committed[cache.start : cache.length]
    assert cache.position == len(held)
    assert same(cache.storage, fresh(draft, held), len(held))


def check_all(lab: Lab, engine: Engine, committed: list[int]) -> None:
    check_full(engine, committed)
    for cache in caches(engine, RetrievalCache):
        check_retrieval(cache)
    for cache in caches(engine, StreamingCache):
        check_streaming(cache, lab.draft, committed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stack", STACKS)
def test_every_round_leaves_every_cache_as_a_fresh_one(
    lab: Lab, stack: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_streaming(monkeypatch)
    monkeypatch.setattr(Planner, "_choose", in_turn)
    engine, prompt = lab.engine(stack), lab.text(45)
    for turn, cut in enumerate((0, 13, 0)):  # the third turn follows a rewind
        committed = list(prompt)
        for event in engine.answer(Request(prompt, 24, Sampling(temperature, seed=turn))):
            if isinstance(event, Text):
                committed += event.token_ids
                if (
                    len(committed) < len(prompt) + 24
                ):  # behind the last token a proposal may be left until the end
                    check_all(lab, engine, committed)
        check_all(lab, engine, committed)
        assert engine.cached == committed[:-1]
        assert engine.full.length == len(committed) - 1
        prompt = [*committed[: len(committed) - cut], *lab.text(5, seed=turn)]


def test_small_streaming_caches_do_overflow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    small_streaming(monkeypatch)
    engine = lab.engine("naive")
    list(engine.answer(Request(lab.text(45), 24)))
    [cache] = caches(engine, StreamingCache)
    assert cache.start > cache.sinks


@pytest.mark.parametrize(("sinks", "window", "hop"), [(0, 4, 1), (0, 8, 8), (1, 2, 1), (4, 8, 3), (3, 5, 9)])
@pytest.mark.parametrize("seed", range(4))
def test_streaming_cache_under_random_growth_and_rewinds(
    lab: Lab, sinks: int, window: int, hop: int, seed: int
) -> None:
    """Feed, cut and feed again: the cache says which tokens it holds, and holds just those."""
    random.seed(seed)
    cache = StreamingCache(lab.draft.shape, sinks, window, hop)
    tokens: list[int] = []
    for _ in range(25):
        tokens += [random.randrange(48) for _ in range(random.choice([1, 1, 2, 3, 20]))]
        fed = cache.pending(torch.tensor(tokens))
        lab.draft(fed[None], cache, 1)
        assert cache.length == len(tokens)
        latest = cache.length - max(cache.start, 0)
        assert latest >= min(window // 2, len(tokens) - sinks)
        check_streaming(cache, lab.draft, tokens)
        keep = random.choice([len(tokens) - 1] * 6 + [len(tokens) // 2, max(0, len(tokens) - window)])
        del tokens[keep:]
        cache.truncate(keep)
        check_streaming(cache, lab.draft, tokens)


@pytest.mark.parametrize("scratch", [0, 40, 960])
def test_a_large_tree_reads_no_longer_a_history(lab: Lab, scratch: int) -> None:
    """Its tokens have slots of their own, so the window is read again as often as for a small one."""
    ids, restarts = torch.arange(900) % 48, []
    cache = StreamingCache(lab.draft.shape, 16, 240, 256, scratch=scratch)
    for length in range(500, 900):
        held = cache.length
        fed = cache.pending(ids[:length], 64 + scratch)
        restarts.extend([length] if cache.length < held or len(fed) > 1 else [])
        assert cache.position + len(fed) + 64 + scratch <= cache.storage.capacity
        cache.length = length
    assert restarts == [500, 693, 886]


def test_a_broken_restart_of_a_streaming_cache_is_made_good(lab: Lab) -> None:
    cache = StreamingCache(lab.draft.shape, 2, 4, 2)
    tokens = torch.tensor(lab.text(30))
    lab.draft(cache.pending(tokens)[None], cache, 1)
    cache.truncate(26)
    assert len(cache.pending(tokens[:28])) == 6  # a restart whose forward never came
    fed = cache.pending(tokens)
    assert len(fed) == 6
    lab.draft(fed[None], cache, 1)
    check_streaming(cache, lab.draft, tokens.tolist())


@pytest.mark.parametrize("policy", ["mean", "minmax"])
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_retrieval_cache_under_random_growth_and_rewinds(lab: Lab, policy: str, chunk: int) -> None:
    random.seed(chunk)
    budget = replace(SMALL_BUDGET, chunk=chunk)
    engine = lab.engine("retrieval", policy=policy, budget=budget)
    [cache] = caches(engine, RetrievalCache)
    tokens: list[int] = []
    for _ in range(40):
        tokens += lab.text(random.choice([1, 2, 5, 30]), seed=len(tokens))
        tokens = tokens[:350]
        cache.ready(3)
        for fed in (tokens[:-1], tokens):  # the last one alone, as decoding feeds it
            ids = engine.full.pending(torch.tensor(fed))
            if len(ids):
                lab.target.prefill(ids, engine.full)
        assert cache.ready(3)
        proposal = torch.tensor([*tokens, 7, 8, 9])
        lab.target(cache.pending(proposal)[None], cache, 1)
        check_retrieval(cache)
        assert cache.verified_length == len(tokens)
        assert cache.length == len(tokens) + 3
        keep = random.choice([len(tokens)] * 5 + [len(tokens) - 1, len(tokens) // 2, 2])
        del tokens[keep:]
        engine.top.rollback(keep)


@pytest.mark.parametrize("chunk", [1, 4])
def test_attention_is_the_same_in_any_number_of_heads_at_once(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(chunk)
    queries, keys = torch.randn(6, 5, 8), torch.randn(3, 12 // chunk, chunk, 8)
    whole = AttentionMass().scores(queries, keys)
    weights = torch.softmax(
        queries.unflatten(0, (3, 2)).flatten(1, 2) @ keys.flatten(1, 2).transpose(1, 2) / 8**0.5, -1
    )
    assert torch.allclose(whole, weights.sum(1).unflatten(1, (-1, chunk)).sum(-1), atol=1e-5)
    monkeypatch.setattr(selection, "LOGITS_BYTES", 2 * 4 * 10 * 12)  # two heads
    assert torch.allclose(AttentionMass().scores(queries, keys), whole, atol=1e-6)


def test_the_pick_is_what_the_queries_look_at(lab: Lab) -> None:
    """By mean keys, four queries, plain loops: chunks 1 to 37 of 4 tokens compete for three places."""
    engine = lab.engine("retrieval")
    tokens = torch.tensor(lab.text(160))
    [cache] = caches(engine, RetrievalCache)
    assert not cache.ready(1)
    lab.target.prefill(tokens[:159], engine.full)
    assert not cache.ready(1)  # too many at once to build it on the way
    lab.target(tokens[None, 159:], engine.full, 1)
    assert cache.ready(1)
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        queries = engine.full.queries.latest(layer, 160, 4)[2 * head : 2 * head + 2]
        assert queries.shape == (2, 4, 8)
        means = buffer_of(engine.full).keys[layer, head, 4:148].unflatten(0, (-1, 4)).mean(1)
        mass = sum(torch.softmax(means @ query / 8**0.5, 0) for query in queries.flatten(0, 1))
        assert isinstance(mass, Tensor)
        best = sorted(4 + 4 * pick for pick in mass.topk(3).indices.tolist())
        places = [*range(4), *(at + i for at in best for i in range(4)), *range(148, 160)]
        have = rows(cache.storage, layer, head, cache._slot(160))
        assert torch.equal(have, rows(engine.full.storage, layer, head, 160)[places])


def test_what_a_forward_leaves_in_a_cache_that_nobody_asks_for(lab: Lab) -> None:
    engine, tokens = lab.engine("retrieval"), torch.tensor(lab.text(160))
    [cache] = caches(engine, RetrievalCache)
    for end in (159, 160):
        lab.target.prefill(engine.full.pending(tokens[:end]), engine.full)
    assert cache.state is not State.READY
    assert not cache.storage.keys.any()


class Followed:
    """A retrieval cache that was built behind 100 tokens, and what it reports."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.built: list[Event] = []
        self.full = FullCache(lab.target.shape, 400)
        self.cache = RetrievalCache(self.full, SMALL_BUDGET, MeanKey(), self.built.append)
        self.feed(100)
        self.cache.ready(1)
        self.feed(1)
        assert self.reasons() == ["first"]

    def feed(self, n: int) -> None:
        self.lab.target.prefill(torch.tensor(self.lab.text(n, seed=n)), self.full)

    def reasons(self) -> list[str]:
        rebuilt = [event for event in self.built if isinstance(event, Rebuilt)]
        assert rebuilt == self.built
        return [event.reason for event in rebuilt]


def test_no_build_that_nobody_asked_for(lab: Lab) -> None:
    followed = Followed(lab)
    for _ in range(30):
        followed.feed(1)
    assert followed.reasons() == ["first"]
    assert not followed.cache.ready(20)  # its room is used up
    followed.feed(1)
    assert followed.reasons() == ["first", "stride"]
    assert followed.cache.ready(20)


@pytest.mark.parametrize("gap", ["long", "restored"])
def test_a_gap_is_not_closed_by_what_comes_behind_it(lab: Lab, gap: str) -> None:
    followed = Followed(lab)
    if gap == "long":
        followed.feed(50)  # more than there is room for
    else:
        buffer = buffer_of(followed.full)
        for part in (buffer.keys, buffer.values):
            part[:, :, 101:104] = torch.randn(2, 2, 3, 8)
        followed.full.restored(3)  # of keys and values that came from elsewhere, fewer than a stride
    assert not followed.cache.requested
    followed.feed(1)
    followed.feed(1)
    assert not followed.cache.ready(1)
    followed.feed(1)
    assert followed.cache.ready(1)
    assert followed.reasons() == ["first", "stride"]
    check_retrieval(followed.cache)


def test_after_a_build_acceptance_is_watched_anew(lab: Lab) -> None:
    followed = Followed(lab)
    followed.cache.falling.usual = 1.0
    followed.cache.judged(0, 0)
    for _ in range(40):
        followed.cache.judged(1, 0)
    for _ in range(3):
        followed.cache.ready(1)
        followed.feed(1)
    assert followed.reasons() == ["first", "acceptance"]


def test_the_query_ring_knows_what_it_lost(lab: Lab) -> None:
    full = FullCache(lab.target.shape, 300, query_window=8)

    def latest(most: int) -> Tensor:
        return full.queries.latest(1, full.length, most)

    lab.target.prefill(torch.tensor(lab.text(30)), full)
    assert latest(16).shape[1] == 8
    assert latest(3).shape[1] == 3
    before = latest(3).clone()
    lab.target.prefill(torch.tensor([1, 2, 3]), full)
    full.truncate(30)  # three of the eight are gone
    assert latest(16).shape[1] == 5
    assert torch.equal(latest(3), before)
    full.truncate(20)
    assert latest(16).shape[1] == 0


@pytest.mark.parametrize(
    ("written", "most", "expected"), [(6, 4, [5, 4, 3, 2]), (11, 3, [10, 9, 8]), (11, 8, range(10, 2, -1))]
)
def test_the_query_ring_gives_the_latest_first(written: int, most: int, expected: Sequence[int]) -> None:
    """Also where they lie on both sides of its end."""
    ring = QueryRing(Shape(2, 3, 1, 4, torch.float32, torch.device("cpu")), 8)
    ring.write(slice(None), 0, torch.arange(float(written))[:, None].expand(2, 3, written, 4))
    for found in (*ring.latest(slice(None), written, most), ring.latest(1, written, most)):
        assert found[:, :, 0].tolist() == [[*expected]] * 3


# Breaking off


@pytest.mark.parametrize("stack", ["triforce", "streaming", "naive", "auto"])
def test_closing_at_every_event(lab: Lab, stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 16)
    monkeypatch.setattr(Planner, "_choose", in_turn)
    small_streaming(monkeypatch)
    first, engine = lab.text(50), lab.engine(stack)
    follow = [*first, 4, 5, *lab.text(6, seed=9)]
    expected = lab.greedy(follow, 6)
    total = len(list(lab.engine(stack).answer(Request(first, 10))))
    assert total > 8
    for stop in range(1, total + 1):
        events, told = engine.answer(Request(first, 10)), list(first)
        for _, event in zip(range(stop), events, strict=False):
            told += event.token_ids if isinstance(event, Text) else ()
        events.close()
        assert engine.full.length == len(engine.cached)
        assert engine.cached[: len(told) - 1] == told[: len(engine.cached)][: len(told) - 1]
        assert same(buffer_of(engine.full), fresh(engine.target, engine.cached), engine.full.length)
        assert answer_of(engine, follow, 6) == expected
        engine.top.rollback(0)
        engine.cached.clear()


@pytest.mark.parametrize("stack", ["triforce", "streaming", "naive", "auto", "lookup"])
@pytest.mark.parametrize("seed", range(3))
def test_an_interrupt_inside_any_layer_of_any_forward(
    lab: Lab, stack: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C raises at some attention call, before or after that layer's cache was written."""
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 16)
    monkeypatch.setattr(Planner, "_choose", in_turn)
    small_streaming(monkeypatch)
    luck = random.Random(seed)
    updates = [(kind, "update") for kind in (FullCache, RetrievalCache, StreamingCache)]
    engine, prompt = lab.engine(stack, context=900), lab.text(40, seed=seed)
    for turn in range(12):
        with monkeypatch.context() as patch:
            interrupt(patch, updates, luck.randrange(1, 60), late=bool(turn % 2))
            told, broke = told_until_interrupt(engine, Request(prompt, 100))
            assert broke
        prompt = [
            *told[: luck.choice([len(told), len(told) - 5])],
            3,
            *lab.text(luck.choice([1, 4]), seed=turn),
        ]
        if turn % 3 == 2:
            assert answer_of(engine, prompt, 9) == lab.greedy(prompt, 9)
            assert same(buffer_of(engine.full), fresh(engine.target, engine.cached), engine.full.length)


def test_an_interrupt_while_the_retrieval_cache_is_built(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = lab.engine(), lab.text(100)
    for method in ("_begin", "_select", "_build", "on_layer", "on_forward"):
        real = getattr(RetrievalCache, method)

        def broken(cache: RetrievalCache, *arguments: Any, real: Any = real) -> Any:
            real(cache, *arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(RetrievalCache, method, broken)
            with pytest.raises(KeyboardInterrupt):
                answer_of(engine, prompt)
        for cache in caches(engine, RetrievalCache):
            check_retrieval(cache)
        prompt = [*prompt, 5, 6]
        assert answer_of(engine, prompt) == lab.greedy(prompt, 16)


def test_a_later_build_that_breaks_off_leaves_no_half_built_cache(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prompt = lab.engine(), lab.text(100)
    prompt += answer_of(engine, prompt, 3)
    [cache] = caches(engine, RetrievalCache)
    assert cache.state is State.READY
    built = cache.layout.total
    real = RetrievalCache._select

    def broken(cache: RetrievalCache, layer: int, *arguments: Any) -> Tensor:
        if layer == 1:
            raise KeyboardInterrupt
        return real(cache, layer, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RetrievalCache, "_select", broken)
        with pytest.raises(KeyboardInterrupt):
            answer_of(engine, [*prompt, *lab.text(30, seed=8)])
    assert cache.state is not State.READY
    engine.top.rollback(len(prompt))  # back to where the old build would still serve
    assert not cache.ready(1)
    assert answer_of(engine, prompt) == lab.greedy(prompt, 16)
    assert cache.layout.total > built
    check_retrieval(cache)


def test_an_error_in_the_forward_passes_through(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = lab.engine("autoregressive"), lab.text(20)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(attention, "softmax_attention", fail)
        with pytest.raises(RuntimeError, match="out of luck"):
            answer_of(engine, prompt)
    assert engine.cached == []
    assert answer_of(engine, prompt) == lab.greedy(prompt, 16)


def test_levels_of_the_automatic_stack_are_all_found(lab: Lab) -> None:
    engine = lab.engine("auto")
    assert len(caches(engine, RetrievalCache)) == 1
    assert len(caches(engine, StreamingCache)) == 2
    assert sum(isinstance(level, DraftModel) for level in levels(engine.top)) == 2
