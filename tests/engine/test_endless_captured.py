"""Endless conversations where forwards are captured, as on a GPU: the cache forgets between replays.

Without a GPU, graphs are emulated, and plain arithmetic stands in for the kernels, which have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.emulated_graphs import captured_pair, emulate
from support.labs import SMALL_BUDGET, spell

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.evicting import EvictingCache
from triforce_chat.engine.cache.eviction import ENDLESS, EVICTIONS, Eviction
from triforce_chat.engine.cache.query_ring import QueryRing
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Rebuilt, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling import sampler
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.errors import UsageError

KEEP, STEP, SINKS = 100, 30, 4  # tokens; no ring of queries has a multiple of the step
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in STACKS if name != "autoregressive"},
    "attention": {"policy": "attention"},
    "planned": {"name": "auto", "gamma": None, "draft_gamma": None},
}
TEXT = torch.randint(1, 48, (400,), generator=torch.Generator().manual_seed(3)).tolist()
Pair = tuple[Runner, Runner]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """A target and a draft whose forwards are captured."""
    if request.param == "cpu":
        emulate(monkeypatch)
    return captured_pair(request.param, monkeypatch)


def endless(pair: Pair, policy: str, /, **options: Any) -> Engine:
    settings: dict[str, Any] = {"gamma": 4, "draft_gamma": 2, "budget": SMALL_BUDGET, **options}
    stack = StackOptions(**{"name": "triforce", **settings})
    rule = Eviction(policy, KEEP, STEP, SINKS)
    engine = Engine(pair[0], ENDLESS, TextCodec(spell), pair[1], stack, eviction=rule)
    engine.executor = GraphExecutor()
    return engine


def uncaptured(
    pair: Pair, policy: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[int], int], list[int]]:
    """What plain decoding says over such a cache where no forward is a replay."""
    engine = endless(pair, policy, name="autoregressive")
    engine.top.overlap = False

    def said(prompt: list[int], n: int) -> list[int]:
        with monkeypatch.context() as patch:
            patch.setattr(EvictingCache, "write_slot", lambda _: None)
            return tokens_of(engine, Request(prompt, n))

    return said


@pytest.mark.parametrize("policy", EVICTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_stack_says_what_plain_decoding_says(
    pair: Pair, policy: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four turns, in each of which the cache forgets; graphs of all of them are used again."""
    engine, plain = endless(pair, policy, **VARIANTS[variant]), uncaptured(pair, policy, monkeypatch)
    history, events = TEXT[:50], list[Event]()
    for turn in range(4):
        expected = plain(history, 50)
        if variant == "triforce":  # others capture at the first use
            engine.prepare(Request(history, 50))
        events += engine.answer(Request(history, 50))
        assert engine.cached[len(history) :] == expected[:-1]
        assert engine.full.forgotten >= engine.full.length - KEEP
        history = [*history, *expected, *TEXT[60 * turn :][:20]]
    rounds = [event for event in events if isinstance(event, Verified) and event.level == "target"]
    # Lookup finds nothing here, and a planner may go by a clock that drafts do not please.
    assert len(rounds) < 200 or variant in ("auto", "lookup", "planned")
    assert engine.target.graphs.made.get(engine.full.write_slot().owner)  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", EVICTIONS)
def test_plain_decoding_that_runs_ahead(pair: Pair, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a nucleus was cut short the token is drawn again, also where the next forward would have forgotten."""
    sampling = Sampling(temperature=1.5, top_p=0.95, seed=5)
    request = Request(TEXT[:90], 100, sampling)  # the second forward forgets
    monkeypatch.setattr(sampler, "CANDIDATES", 1)
    steady, engine = (endless(pair, policy, name="autoregressive") for _ in range(2))
    steady.top.overlap, engine.top.overlap = False, True
    assert tokens_of(engine, request) == tokens_of(steady, request)
    assert engine.full.forgotten > STEP


@pytest.mark.parametrize("policy", ["h2o", "streaming-h2o"])
def test_captured_forwards_leave_the_queries_that_weigh(
    pair: Pair, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With graphs that are captured in between, and rows that fill them up."""
    caches = []
    for captured in (True, False):
        engine = endless(pair, policy, name="autoregressive")
        cache, target = engine.full, engine.target
        assert isinstance(cache, EvictingCache)
        ids = torch.tensor(TEXT, device=target.device)
        with monkeypatch.context() as patch:
            if not captured:
                patch.setattr(EvictingCache, "write_slot", lambda _: None)
            for at in range(0, 200, 5):
                cache.make_room()
                target(ids[None, at : at + 5], cache, 5)
                cache.truncate(at + 3)  # two are rejected
                for prepare in target.unprepared(cache, 40) if at == 115 else ():  # close to the border
                    prepare()
                target(ids[None, at + 3 : at + 5], cache, 2)
            cache.make_room()
        caches.append(cache)
    assert caches[0].forgotten == caches[1].forgotten > 0
    torch.testing.assert_close(caches[0].paid, caches[1].paid, rtol=5e-3, atol=1e-3)
    for mine, other in zip(caches[0].slots(1), caches[1].slots(1), strict=True):
        held = caches[0].held
        torch.testing.assert_close(mine[:, :held], other[:, :held], rtol=1e-3, atol=1e-3)


def test_a_middle_level_selects_among_what_is_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built again after the cache forgot, from the slots that are in use, by queries of the same tokens."""
    engine, ends = endless(pair, "streaming"), []
    latest = QueryRing.latest

    def noted(self: QueryRing, layer: Any, length: int, most: int) -> torch.Tensor:
        found = latest(self, layer, length, most)
        if self is engine.full.queries:
            ends.append((length, found.shape[-2]))
        return found

    monkeypatch.setattr(QueryRing, "latest", noted)
    events = [*engine.answer(Request(TEXT[:150], 90))]
    built = [event for event in events if isinstance(event, Rebuilt)]
    assert len(built) > 3
    assert all(event.at <= KEEP for event in built)
    assert ends
    assert all(end <= KEEP + 5 and queries for end, queries in ends)


def test_a_replay_across_a_border_is_a_bug(pair: Pair) -> None:
    cache = endless(pair, "streaming", name="autoregressive").full
    ids = torch.tensor([TEXT[:STEP]], device=pair[0].device)
    pair[0](ids[:, : STEP - 4], cache, 1)
    with pytest.raises(ValueError, match=f"crosses token {STEP}"):
        pair[0](ids[:, :8], cache, 1)


@pytest.mark.parametrize("stack", ["naive", "triforce", "streaming"])
def test_trees(pair: Pair, stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TreeOptions("sequoia", 10, 4)
    engine, history = endless(pair, "streaming", name=stack, tree=tree), TEXT[:70]
    expected = uncaptured(pair, "streaming", monkeypatch)(history, 90)
    assert tokens_of(engine, Request(history, 90)) == expected
    assert engine.full.forgotten > STEP
    with pytest.raises(UsageError, match="no trees on a GPU where --endless goes by attention"):
        endless(pair, "h2o", name=stack, tree=tree)


@pytest.mark.parametrize("policy", EVICTIONS)
def test_a_long_prompt_is_read_in_pieces(pair: Pair, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that are captured meanwhile overwrite nothing that is needed."""
    expected = tokens_of(endless(pair, policy, name="autoregressive"), Request(TEXT[:300], 40))
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 7)
    monkeypatch.setattr(prefix_cache, "GPU_PREFILL_CHUNK", 7)
    engine = endless(pair, policy)
    for _ in engine.prefill(TEXT[:300], sampling=Sampling()):
        assert engine.full.held <= KEEP
    assert tokens_of(engine, Request(TEXT[:300], 40)) == expected
