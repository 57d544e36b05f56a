"""A retrieval cache that only lists slots: what it reads, what selects, and what may not be disturbed."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.caches import answer_of, buffer_of, caches, interrupt, told_until_interrupt
from support.labs import SMALL_BUDGET, Lab
from torch import Tensor

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.chunk_mass import ChunkMass, chunk_mass
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.in_place import HALF_LIFE, MOST_ROWS, InPlaceCache
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Rebuilt, Text
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.attention import read_attention
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import retrieval_cache

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


class Made:
    """A cache over the target's full cache, and what it reports."""

    def __init__(self, lab: Lab, chunk: int = 4, tokens: int = 24) -> None:
        self.lab, self.told = lab, list[Event]()
        self.budget = replace(SMALL_BUDGET, chunk=chunk, tokens=tokens)
        self.full = FullCache(lab.target.shape, 400)
        self.cache = InPlaceCache(self.full, self.budget, self.told.append)

    def verify(self, ids: list[int], n: int) -> None:
        """Feed all ids that the full cache lacks; the last n are a verification."""
        for end in (len(ids) - n, len(ids)):
            fed = self.full.pending(torch.tensor(ids[:end]))
            if len(fed):
                self.lab.target.prefill(fed, self.full)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.told if isinstance(event, Rebuilt)]


def check(cache: InPlaceCache) -> None:
    """Lists are in reading order, begin with the sinks and end with the tail; nothing is listed twice."""
    here = cache.source.length
    read = cache._read(here)
    if not cache.selected or read > cache.budget.capacity:  # as long as it was not asked
        return
    assert here >= cache.layout.total
    for places in cache.slots[..., :read].flatten(0, 1).tolist():
        assert places == sorted(set(places))
        sinks = min(cache.budget.sinks, cache.layout.total)
        assert places[:sinks] == list(range(sinks))
        tail = min(cache.budget.tail, cache.layout.total) + here - cache.layout.total
        assert places[read - tail :] == list(range(here - tail, here))


def fresh(lab: Lab, ids: list[int]) -> KVBuffer:
    cache = FullCache(lab.target.shape, max(1, len(ids)))
    if ids:
        lab.target.prefill(torch.tensor(ids), cache)
    return buffer_of(cache)


def check_source(lab: Lab, full: FullCache, ids: list[int]) -> None:
    """The full cache holds what a fresh one does, whatever the middle level wrote behind it."""
    n = min(full.length, len(ids))
    mine, other = buffer_of(full), fresh(lab, ids[:n])
    for have, want in ((mine.keys, other.keys), (mine.values, other.values)):
        torch.testing.assert_close(have[:, :, :n], want[:, :, :n], **CLOSE)


def paid(lab: Lab, ids: list[int], layer: int) -> Tensor:
    """Stock attention weights of one layer: [Hq, n, n]."""
    stock = copy.deepcopy(lab.stock)
    stock.set_attn_implementation("eager")
    with torch.no_grad():
        found: Tensor = stock(torch.tensor([ids]), output_attentions=True).attentions[layer][0]
    return found


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_the_selection_follows_every_row_of_every_verification(lab: Lab, chunk: int) -> None:
    """The latest four queries, the three rows of a verification, and the five of the next, by stock weights."""
    made, ids = Made(lab, chunk), lab.text(115)
    assert not made.cache.ready(1)
    made.verify(ids[:107], 1)
    assert made.cache.ready(1)
    made.verify(ids[:110], 3)
    made.cache.ready(1)
    made.verify(ids, 5)
    assert made.cache.ready(1)
    layout, found = made.cache.layout, set()
    assert layout.total == 115
    for layer in range(2):
        weights = paid(lab, ids, layer).unflatten(0, (2, 2)).sum(1)  # [Hkv, n, n]
        before, half = weights[:, 103:107].sum(1) * 0.5 ** (3 / HALF_LIFE), 0.5 ** (5 / HALF_LIFE)
        rows = (before + weights[:, 107:110].sum(1)) * half + weights[:, 110:].sum(1)
        for head in range(2):
            starts = range(layout.sinks, layout.tail, chunk)
            scores = [float(rows[head, at : at + chunk].sum()) for at in starts]
            best = sorted(sorted(range(len(scores)), key=lambda c: -scores[c])[: layout.chunks])
            listed = made.cache.slots[layer, head, layout.sinks : layout.sinks + layout.selected].tolist()
            assert listed == [layout.sinks + c * chunk + i for c in best for i in range(chunk)]
            found.add(tuple(best))
    assert len(found) > 1
    assert made.reasons() == ["first"]


def test_heavy_hitters_and_the_latest_tokens(lab: Lab) -> None:
    """As H2O has it: by all queries of prefill and verifications alike, whether anybody asked for them or not."""
    full, ids = FullCache(lab.target.shape, 400), lab.text(115)
    cache = retrieval_cache(lab.target, full, SMALL_BUDGET, "h2o", lambda _: None)
    assert isinstance(cache, InPlaceCache)
    for end in (70, 110, 115):
        lab.target.prefill(full.pending(torch.tensor(ids[:end])), full)
    assert cache.ready(1)
    layout = cache.layout
    tail = SMALL_BUDGET.tokens // 2
    assert (layout.chunk, layout.tail, layout.filled) == (1, 115 - tail, SMALL_BUDGET.tokens)
    for layer in range(2):
        got = paid(lab, ids, layer).unflatten(0, (2, 2)).sum((1, 2))  # [Hkv, n]
        for head in range(2):
            heavy = got[head, layout.sinks : layout.tail].topk(layout.chunks).indices.sort().values
            wanted = [*range(layout.sinks), *(layout.sinks + heavy).tolist(), *range(115 - tail, 115)]
            assert cache.slots[layer, head, : layout.filled].tolist() == wanted


def test_heavy_hitters_of_a_prefill_outlast_a_rewind(lab: Lab) -> None:
    made, ids = Made(lab, 1), lab.text(120)
    made.cache = InPlaceCache(made.full, made.budget, made.told.append, half_life=None, weighs_all=True)
    made.verify(ids, 5)
    assert made.cache.ready(1)
    for each in (made.full, made.cache):
        each.truncate(90)
    assert not made.cache.mass[..., 90:].any()
    assert made.cache.ready(1)
    assert made.cache.layout.total == 90
    check(made.cache)


def test_a_seed_counts_no_prefill(lab: Lab) -> None:
    """Documents that are recalled from the disk bring no attention."""
    full = FullCache(lab.target.shape, 400)
    cache = retrieval_cache(lab.target, full, SMALL_BUDGET, "h2o", lambda _: None, repeatable=True)
    lab.target.prefill(torch.tensor(lab.text(90)), full)
    assert isinstance(cache, InPlaceCache)
    assert not cache.mass.any()
    assert cache.ready(1)
    queries = SMALL_BUDGET.queries * lab.target.shape.query_heads * lab.target.shape.layers
    assert float(cache.mass.sum()) == pytest.approx(queries, rel=1e-4)


def test_attention_reads_the_listed_tokens_and_the_new_ones(lab: Lab) -> None:
    made, ids = Made(lab), lab.text(120)
    made.cache.ready(1)
    made.verify(ids, 2)
    assert made.cache.ready(3)
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, 3, 8, generator=generator) for heads in (4, 2, 2))
    view = made.cache.update(1, q, k, v)
    found = read_attention(q, view, 0.3)
    keys, values = buffer_of(made.full).keys[1], buffer_of(made.full).values[1]
    assert torch.equal(keys[:, 120:123], k[0])
    for head in range(4):
        places = made.cache.slots[1, head // 2, : made.cache._read(120)].long()
        mine, theirs = (
            torch.cat([part[head // 2, places], new[0, head // 2]]) for part, new in ((keys, k), (values, v))
        )
        for row in range(3):
            seen = len(places) + row + 1
            weights = torch.softmax(0.3 * mine[:seen] @ q[0, head, row], 0)
            torch.testing.assert_close(found[0, head, row], weights @ theirs[:seen], **CLOSE)


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_random_growth_and_rewinds(lab: Lab, chunk: int) -> None:
    random.seed(chunk)
    made, ids = Made(lab, chunk), list[int]()
    for _ in range(40):
        ids = [*ids, *lab.text(random.choice([1, 2, 5, 30]), seed=len(ids))][:340]
        made.cache.ready(3)
        made.verify(ids, 1)
        check(made.cache)
        assert made.cache.ready(3)
        check(made.cache)
        proposal = torch.tensor([*ids, 7, 8, 9])
        lab.target(made.cache.pending(proposal)[None], made.cache, 1)
        assert made.cache.length == len(ids) + 3
        check_source(lab, made.full, ids)
        keep = random.choice([len(ids)] * 5 + [len(ids) - 1, len(ids) // 2, 2])
        del ids[keep:]
        made.full.truncate(keep)
        made.cache.truncate(keep)
    assert set(made.reasons()) == {"first", "rewind"}


def test_what_was_verified_is_never_overwritten(lab: Lab) -> None:
    made, ids = Made(lab), lab.text(120)
    made.cache.ready(1)
    made.verify(ids, 2)
    made.cache.length = 119
    new = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ValueError, match="slot 119 of 120"):
        made.cache.update(0, new, new, new)


def test_keys_and_values_that_came_without_a_forward_are_read_too(lab: Lab) -> None:
    """Nothing of them is computed anew, which would overwrite them."""
    made, ids = Made(lab), lab.text(120)
    made.full.restored(3)
    assert not made.cache.ready(1)  # by no queries
    made.verify(ids, 2)
    assert made.cache.ready(1)
    made.full.restored(3)
    assert made.cache.ready(1)
    assert len(made.cache.pending(torch.zeros(124))) == 1


def test_only_what_is_wanted_is_weighed(lab: Lab) -> None:
    made, ids = Made(lab), lab.text(200)
    made.verify(ids[:100], 2)  # nobody asked
    assert not made.cache.mass.any()
    assert made.cache.ready(1)
    found = made.cache.mass.clone()
    lab.target.prefill(torch.tensor(ids[100 : 101 + MOST_ROWS]), made.full)  # as many as no verification has
    assert torch.equal(made.cache.mass, found)
    made.verify(ids[:190], 3)
    assert not torch.equal(made.cache.mass, found)
    found = made.cache.mass.clone()
    made.verify(ids, MOST_ROWS // 8)  # nobody asked again
    assert torch.equal(made.cache.mass, found)
    assert made.cache.ready(1)
    assert not made.cache.ready(SMALL_BUDGET.capacity)  # there is no room for so many
    assert not made.cache.ready(201)


def test_a_rewind_between_a_verification_and_its_selection(lab: Lab) -> None:
    made, ids = Made(lab), lab.text(120)
    made.cache.ready(1)
    made.verify(ids, 6)
    for each in (made.full, made.cache):
        each.truncate(115)  # one of the six was accepted
    assert made.cache.ready(1)
    assert made.cache.layout.total == 115
    made.cache.ready(1)
    made.verify(ids, 5)
    for each in (made.full, made.cache):
        each.truncate(60)  # before everything that was verified
    assert made.cache.ready(1)
    assert made.cache.layout.total == 60
    check(made.cache)
    assert made.reasons() == ["first", "rewind"]


def weighed(query: Tensor, view: KVView, chunk: int) -> Tensor:
    mass = ChunkMass(torch.zeros(2, 40), chunk)
    out = read_attention(query, view._replace(masses=(mass,)), 0.3)
    assert torch.equal(out, read_attention(query, view, 0.3))
    return mass.total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by oneDNN, and by torch's own attention
@pytest.mark.parametrize("chunk", [3, 8])
def test_every_attention_on_a_cpu_weighs_alike(dtype: torch.dtype, chunk: int) -> None:
    torch.manual_seed(1)
    keys, values = torch.randn(2, 1, 2, 128, 8, dtype=dtype)
    query = torch.randn(1, 4, 5, 8, dtype=dtype)
    found = weighed(query, KVView(keys, values, 70), chunk)
    wanted = chunk_mass(query[0], keys[0, :, :70], chunk, 0.3).sum((1, 2))
    torch.testing.assert_close(found[:, : wanted.shape[1]], wanted, atol=1e-5, rtol=1e-5)
    assert not found[:, wanted.shape[1] :].any()
    assert wanted.sum() == pytest.approx(4 * 5)


# In an engine


def engine_of(lab: Lab, stack: str = "triforce", policy: str = "attention", **options: Any) -> Engine:
    return lab.engine(stack, policy=policy, **options)


@pytest.mark.parametrize("stack", ["triforce", "retrieval", "auto"])
@pytest.mark.parametrize(("policy", "chunk"), [("attention", 1), ("attention", 4), ("h2o", 4)])
def test_turns_with_rewinds_stay_greedy(lab: Lab, stack: str, policy: str, chunk: int) -> None:
    engine = engine_of(lab, stack, policy, budget=replace(SMALL_BUDGET, chunk=chunk))
    assert caches(engine, InPlaceCache)
    assert not caches(engine, RetrievalCache)
    prompt = lab.text(80)
    for turn, cut in enumerate((0, 9, 40, 0)):
        answer = answer_of(engine, prompt)
        assert answer == lab.greedy(prompt, 16)
        check_source(lab, engine.full, [*prompt, *answer])
        for cache in caches(engine, InPlaceCache):
            check(cache)
        prompt = [*prompt, *answer][: len(prompt) + 16 - cut] + lab.text(4, seed=turn)


@pytest.mark.parametrize("policy", ["attention", "h2o"])
def test_keys_in_16_bits_are_weighed_in_fp32(lab: Lab, policy: str) -> None:
    """Also by queries from before the first verification that is weighed."""
    half = Lab(lab.stock, Runner(copy.deepcopy(lab.stock), kv=torch.float16), lab.draft)
    engine, prompt = engine_of(half, policy=policy), half.text(80)
    assert answer_of(engine, prompt) == tokens_of(engine, Request(prompt, 16), plain=True)
    assert caches(engine, InPlaceCache)


def test_an_answer_with_a_seed_depends_on_no_earlier_one(lab: Lab) -> None:
    prompt = lab.text(80)
    warm = Sampling(temperature=1.0, seed=5)

    def told(engine: Engine) -> list[int]:
        events = engine.answer(Request(prompt, 24, warm))
        return [token for event in events if isinstance(event, Text) for token in event.token_ids]

    used = engine_of(lab, gamma=4, draft_gamma=2)
    answer_of(used, lab.text(120, seed=4))
    assert told(used) == told(engine_of(lab, gamma=4, draft_gamma=2))


STEPS = (
    "_begin",
    "_weigh_latest",
    "_add_plainly",
    "on_layer",
    "on_forward",
    "_select",
    "_fill",
    "truncate",
    "update",
)


@pytest.mark.parametrize("method", STEPS)
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_at_any_step(lab: Lab, method: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a verification and its selection too; the next answer is right, and nothing verified was lost."""
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 16)
    engine, prompt = engine_of(lab, context=700), lab.text(90)
    for call in (1, 2, 3):
        with monkeypatch.context() as patch:
            interrupt(patch, [(InPlaceCache, method)], call, late)
            told, broke = told_until_interrupt(engine, Request(prompt, 30))
        assert broke or method in ("_weigh_latest", "_add_plainly")  # which a later answer does without
        check_source(lab, engine.full, engine.cached)
        prompt = [*told, 3]
        assert answer_of(engine, prompt, 9) == lab.greedy(prompt, 9)
        check_source(lab, engine.full, engine.cached)
        for cache in caches(engine, InPlaceCache):
            check(cache)
        engine.top.rollback(50)
        del engine.cached[50:]
