"""Endless conversations: the target's own cache forgets, and speculation is exact relative to what is left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from support.clocked import set_clocks
from support.labs import SMALL_BUDGET, Lab, spell
from torch import Tensor

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.evicting import EvictingCache, turned
from triforce_chat.engine.cache.eviction import ENDLESS, EVICTIONS, Eviction
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Forgot, Text, Verified
from triforce_chat.engine.exactness import judge
from triforce_chat.engine.forward.attention import RotaryEmbedding
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.errors import UsageError

KEEP, STEP, SINKS = 64, 16, 4
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in STACKS if name != "autoregressive"},
    "attention": {"policy": "attention"},
    "tree": {"name": "naive", "tree": TreeOptions("sequoia", 8, 3)},
    "planned": {"name": "auto", "gamma": None, "draft_gamma": None},
}


@dataclass
class Output:
    """An answer, its rounds and what was forgotten by its end."""

    ids: list[int] = field(default_factory=list)
    rounds: int = 0
    forgot: Forgot | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, Text):
            self.ids.extend(event.token_ids)
        elif isinstance(event, Verified):
            self.rounds += event.level == "target"
        elif isinstance(event, Forgot):
            self.forgot = event


def endless(lab: Lab, policy: str, /, keep: int = KEEP, **options: Any) -> Engine:
    settings: dict[str, Any] = {"gamma": 4, "draft_gamma": 2, "budget": SMALL_BUDGET, **options}
    stack = StackOptions(**{"name": "triforce", **settings})
    rule = Eviction(policy, keep, STEP, SINKS)
    return Engine(lab.target, ENDLESS, TextCodec(spell, frozenset()), lab.draft, stack, eviction=rule)


def say(engine: Engine, prompt: list[int], n: int, plain: bool = False) -> Output:
    output = Output()
    for event in engine.answer(Request(prompt, n), plain):
        output.add(event)
    return output


def cache_of(engine: Engine) -> EvictingCache:
    assert isinstance(engine.full, EvictingCache)
    return engine.full


def paid_by_stock(lab: Lab, ids: list[int]) -> Tensor:
    """The attention that each token gets by all of them, from stock weights: [layers, Hkv, n]."""
    stock = copy.deepcopy(lab.stock)
    stock.set_attn_implementation("eager")
    with torch.no_grad():
        found = stock(torch.tensor([ids]), output_attentions=True).attentions
    return torch.stack([each[0].unflatten(0, (2, 2)).sum((1, 2)) for each in found])


# The same as plain decoding over such a cache


@pytest.fixture(scope="module")
def plain_turns(lab: Lab) -> Callable[[str], list[list[int]]]:
    """Four answers of plain decoding, once for all variants."""

    @cache
    def turns(policy: str) -> list[list[int]]:
        engine, history, said = endless(lab, policy, name="autoregressive"), lab.text(50), []
        for turn in range(4):
            said.append(say(engine, history, 40).ids)
            history = [*history, *said[-1], *lab.text(24, seed=turn)]
        return said

    return turns


@pytest.mark.parametrize("policy", EVICTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_stack_says_what_plain_decoding_says(
    lab: Lab, policy: str, variant: str, plain_turns: Callable[[str], list[list[int]]]
) -> None:
    """Four turns, in each of which the cache forgets several times."""
    engine = endless(lab, policy, **VARIANTS[variant])
    if variant == "auto":
        set_clocks(engine, seed=1)  # a real one may find that no draft pays
    history, rounds = lab.text(50), 0
    for turn, expected in enumerate(plain_turns(policy)):
        output = say(engine, history, 40)
        assert output.ids == expected
        assert output.forgot is not None
        assert output.forgot.tokens >= 16 * (4 * turn + 2)
        rounds += output.rounds
        history = [*history, *output.ids, *lab.text(24, seed=turn)]
    assert rounds < 160 or variant == "planned"  # which may go by a clock that drafts do not please


@pytest.mark.parametrize("policy", EVICTIONS)
def test_a_cache_that_never_fills_is_the_full_cache(lab: Lab, policy: str) -> None:
    prompt = lab.text(70)
    output = say(endless(lab, policy, keep=400), prompt, 40)
    assert output.ids == lab.greedy(prompt, 40)
    assert output.forgot is None


@pytest.mark.parametrize("policy", EVICTIONS)
def test_forgetting_changes_the_answer(lab: Lab, policy: str) -> None:
    prompt = lab.text(200)
    assert say(endless(lab, policy), prompt, 40).ids != lab.greedy(prompt, 40)


@pytest.mark.parametrize("policy", EVICTIONS)
def test_the_pieces_of_a_prefill_do_not_matter(
    lab: Lab, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = lab.text(150)
    whole = endless(lab, policy)
    expected = say(whole, prompt, 30).ids
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 7)
    pieces = endless(lab, policy)
    for length in (33, 90, 150):  # as three turns without answers
        for progress in pieces.prefill(prompt[:length]):
            assert cache_of(pieces).held <= KEEP, progress
    assert say(pieces, prompt, 30).ids == expected
    torch.testing.assert_close(cache_of(pieces).paid, cache_of(whole).paid, rtol=1e-4, atol=1e-4)


# What stays


def test_the_tokens_with_the_most_attention_stay(lab: Lab) -> None:
    engine, ids = endless(lab, "h2o"), lab.text(KEEP + 1)
    cache = cache_of(engine)
    for _ in engine.prefill(ids[:KEEP]):
        pass
    before = [cache.slots(layer)[0][:, :KEEP].clone() for layer in range(2)]
    paid = paid_by_stock(lab, ids[:KEEP])
    for _ in engine.prefill(ids):
        pass
    left = KEEP - STEP
    assert cache.held == left + 1
    assert cache.position == KEEP + 1  # of the next token
    for layer in range(2):
        for head in range(2):
            early = paid[layer, head, : KEEP - left // 2].topk(left // 2).indices.sort().values
            slots = torch.cat([early, torch.arange(KEEP - left // 2, KEEP)])
            torch.testing.assert_close(cache.slots(layer)[0][head, :left], before[layer][head, slots])


def test_a_streaming_cache_is_sinks_and_the_latest_renumbered(lab: Lab) -> None:
    engine, ids = endless(lab, "streaming"), lab.text(KEEP + 1)
    cache = cache_of(engine)
    for _ in engine.prefill(ids[:KEEP]):
        pass
    keys, values = (part[:, :KEEP].clone() for part in cache.slots(1))
    for _ in engine.prefill(ids):
        pass
    left = KEEP - STEP
    assert cache.position == cache.held == left + 1
    slots = [*range(SINKS), *range(STEP + SINKS, KEEP)]
    torch.testing.assert_close(cache.slots(1)[1][:, :left], values[:, slots])
    found = cache.slots(1)[0][:, :left]
    torch.testing.assert_close(found[:, :SINKS], keys[:, :SINKS])
    moved = torch.full((1, left - SINKS), -STEP)
    torch.testing.assert_close(
        found[:, SINKS:], turned(keys[:, slots[SINKS:]], moved, lab.target.frequencies)
    )


def test_turning_a_key_on_is_rotating_it_there(lab: Lab) -> None:
    rotary = lab.target.model.base_model.rotary_emb
    keys = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    places, moved = torch.tensor([3, 40, 41, 300, 7]), torch.tensor([0, -17, 5, -300, 1000])
    here, there = (RotaryEmbedding(rotary, at).rotate(keys, keys)[1] for at in (places, places + moved))
    found = turned(here.transpose(0, 1), moved.expand(2, -1), lab.target.frequencies)
    torch.testing.assert_close(found.transpose(0, 1), there, rtol=1e-4, atol=1e-4)


# Rolling back


@pytest.mark.parametrize("policy", EVICTIONS)
def test_a_new_conversation_and_a_cut_one(lab: Lab, policy: str) -> None:
    """What was forgotten does not come back, so that a cut behind it reads everything again."""
    engine, history = endless(lab, policy), lab.text(150)
    first = say(engine, history, 20).ids
    assert cache_of(engine).forgotten
    for prompt in (lab.text(30, seed=5), history[:90], history, history[:149]):
        assert say(engine, prompt, 20).ids == say(endless(lab, policy), prompt, 20).ids
    assert say(engine, history, 20).ids == first
    engine.prefix.rollback(0)
    cache = cache_of(engine)
    assert (cache.length, cache.held, cache.settled, cache.forgotten) == (0, 0, 0, 0)
    assert not cache.paid.any()


@pytest.mark.parametrize("policy", EVICTIONS)
def test_an_answer_that_is_closed_goes_on(lab: Lab, policy: str) -> None:
    expected = say(endless(lab, policy), lab.text(60), 60).ids
    engine, output = endless(lab, policy), list[int]()
    while len(output) < 60:
        answer = engine.answer(Request(lab.text(60), 60 - len(output), generated=tuple(output)))
        for event in answer:
            if isinstance(event, Text):
                output += event.token_ids
                break
        answer.close()
        held = cache_of(engine).length
        assert engine.cached == [*lab.text(60), *output][:held]
        assert held >= 60 + len(output) - 1  # nothing is read again
    assert output == expected


@pytest.mark.parametrize(
    ("policy", "inside"),
    [("streaming", "_staying"), ("streaming", "_forget"), ("h2o", "_weigh"), ("streaming-h2o", "_staying")],
)
def test_an_interrupt_while_it_forgets(
    lab: Lab, policy: str, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, prompt = endless(lab, policy), lab.text(100)
    expected = say(endless(lab, policy), prompt, 20).ids
    original, calls = getattr(EvictingCache, inside), 0

    def interrupted(self: EvictingCache, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        made = original(self, *arguments)
        if calls == 2:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(EvictingCache, inside, interrupted)
    with pytest.raises(KeyboardInterrupt):
        say(engine, prompt, 20)
    assert say(engine, prompt, 20).ids == expected


def test_a_forward_across_a_border_is_a_bug(lab: Lab) -> None:
    cache = cache_of(endless(lab, "streaming"))
    with pytest.raises(ValueError, match="crosses token 16"):
        lab.target.prefill(torch.arange(17), cache)


def test_answers_are_compared_with_plain_decoding(lab: Lab) -> None:
    engine, request = endless(lab, "h2o"), Request(lab.text(100), 40)
    fast, plain = say(engine, lab.text(100), 40).ids, say(engine, lab.text(100), 40, plain=True).ids
    verdict = judge(engine, request, fast, plain)
    assert verdict.identical
    assert verdict.mismatches == 0
    wrong = [*plain[:20], (plain[20] + 1) % 48, *plain[21:]]
    assert judge(engine, request, wrong, plain).mismatches > 0


# Sizes


def test_a_cache_that_is_too_small_is_refused() -> None:
    with pytest.raises(
        UsageError, match="--keep 280 is too small: 16 sinks, a window of 240 and a step of 35"
    ):
        Eviction.of("streaming", 280)
    rule = Eviction.of("h2o", 8192)
    assert (rule.step, rule.left, rule.recent) == (1024, 7168, 3584)


def test_what_is_forgotten_is_shared_with_nobody(lab: Lab) -> None:
    assert endless(lab, "h2o").forkable is None
