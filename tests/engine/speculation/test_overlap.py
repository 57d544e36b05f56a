"""Decoding one token ahead of the host gives, draws and leaves behind what waiting for each token does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from support.caches import layer_of
from support.clocked import Costly, FakeClock, clocked
from support.host_reads import WARPS
from support.labs import Lab, spell
from support.toys import CPU, ToyCache

from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Finished, Prefilled, Text, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.sampling import sampler as sampler_module
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.exploration import TRY_AFTER
from triforce_chat.engine.speculation.lookup import ORDERS, LookedUp, Match, NgramLookup, Tokens
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.errors import DoesNotFit


def engines(lab: Lab, eos: frozenset[int] = frozenset(), context: int = 300) -> tuple[Engine, Engine]:
    """Token by token, and one ahead."""
    steady, ahead = (lab.engine("autoregressive", context, eos_ids=eos) for _ in range(2))
    ahead.top.overlap = True
    return steady, ahead


def lasting(events: Iterator[Event]) -> list[Event]:
    """All but those that tell the time."""
    return [event for event in events if not isinstance(event, (Prefilled, Finished))]


def same_state(one: Engine, other: Engine) -> None:
    assert one.cached == other.cached
    assert one.full.length == other.full.length == len(one.cached)
    for layer in range(one.target.shape.layers):
        for mine, theirs in zip(
            layer_of(one.full.storage, layer), layer_of(other.full.storage, layer), strict=True
        ):
            assert torch.equal(mine[:, : one.full.length], theirs[:, : one.full.length])
        latest = (each.full.queries.latest(layer, each.full.length, 16) for each in (one, other))
        assert torch.equal(*latest)


def ids(event: Event) -> tuple[int, ...]:
    return event.token_ids if isinstance(event, Text) else ()


@pytest.mark.parametrize("warp", WARPS)
def test_three_turns_are_equal(lab: Lab, warp: str) -> None:
    both = engines(lab)
    for turn in range(3):
        request = Request([*both[0].cached, *lab.text(20, seed=turn)], 30, WARPS[warp])
        steady, ahead = (lasting(engine.answer(request)) for engine in both)
        assert ahead == steady
        same_state(*both)


@pytest.mark.parametrize("warp", ["greedy", "top-p"])
def test_every_end_is_equal(lab: Lab, warp: str) -> None:
    """An end token, a stop string, the limit of the answer and of the context, each at many places."""
    prompt = lab.text(40, seed=4)
    made = [i for event in engines(lab)[0].answer(Request(prompt, 24, WARPS[warp])) for i in ids(event)]
    ends = [(frozenset({token}), Request(prompt, 40, WARPS[warp]), 300) for token in set(made)]
    ends += [(frozenset(), Request(prompt, most, WARPS[warp]), 300) for most in range(-1, 6)]
    ends += [(frozenset(), Request(prompt, 40, WARPS[warp]), 40 + room) for room in range(4)]
    ends += [(frozenset(), Request(prompt, 40, WARPS[warp], (spell(made[i : i + 2]),)), 300) for i in (0, 7)]
    ends += [(frozenset(), Request(prompt, 9, WARPS[warp], generated=made[:5]), 300)]
    for eos, request, context in ends:
        both = engines(lab, eos, context)
        steady, ahead = (lasting(engine.answer(request)) for engine in both)
        assert ahead == steady
        same_state(*both)
        follow = Request([*prompt, 3, 4, *made], 5, WARPS[warp])
        if len(follow.prompt) > context:
            for engine in both:
                with pytest.raises(DoesNotFit):
                    list(engine.answer(follow))
            continue
        steady, ahead = ([*engine.answer(follow)][1:-1] for engine in both)
        assert lasting(iter(ahead)) == lasting(iter(steady))


@pytest.mark.parametrize("at", range(2, 9))
def test_closed_at_any_event(lab: Lab, at: int) -> None:
    both = engines(lab)
    for engine in both:
        answer: Any = engine.answer(Request(lab.text(40), 30, WARPS["warm"]))
        list(islice(answer, at))
        answer.close()
    same_state(*both)
    assert both[0].cached[:39] == lab.text(40)[:39]


@pytest.mark.parametrize("at", range(6, 21))
def test_an_interrupt_inside_a_forward_leaves_a_prefix(
    lab: Lab, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, request, calls = engines(lab)[1], Request(lab.text(40), 30), 0
    for name in ("pending", "update", "advance"):
        original = getattr(engine.full, name)

        def interrupting(*given: Any, original: Any = original) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return original(*given)

        monkeypatch.setattr(engine.full, name, interrupting)
    shown: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        shown.extend(i for event in engine.answer(request) for i in ids(event))
    assert engine.cached == [*request.prompt, *shown][: len(engine.cached)]
    assert engine.full.length == len(engine.cached) >= 39
    assert [i for event in engine.answer(request) for i in ids(event)] == lab.greedy(request.prompt, 30)


@pytest.mark.parametrize("seed", range(8))
def test_a_nucleus_that_was_too_narrow(lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a distribution that was cut short, and the random numbers behind the first, were drawn in vain."""
    monkeypatch.setattr(sampler_module, "CANDIDATES", 1)
    monkeypatch.setattr(sampler_module, "WIDER", 2)
    widened: list[int] = []
    widen = Sampler.widen

    def noting(sampler: Sampler) -> None:
        widened.append(sampler.op.candidates)
        widen(sampler)

    monkeypatch.setattr(Sampler, "widen", noting)
    both = engines(lab)
    request = Request(lab.text(30), 25, Sampling(temperature=1.5, top_p=0.95, seed=seed))
    steady = lasting(both[0].answer(request))
    times = widened.copy()
    assert lasting(both[1].answer(request)) == steady
    assert widened == 2 * times
    assert len(times) > 2
    same_state(*both)


def moody(lab: Lab, seed: int) -> Engine:
    """Its planner wants a draft, or none, at random."""
    engine, luck = lab.engine("auto", 300), random.Random(seed)
    planner = engine.top.planner
    arms = [None, *planner.arms]

    def choose(length: int, n: int, match: int, needed: int = 0) -> Plan:  # noqa: ARG001
        arm = luck.choice(arms)
        if luck.random() < 0.6 or (arm is None and not match):
            return Plan(0)
        return Plan(luck.randrange(n + 1), arm, rate=1.0)

    planner._choose = choose  # type: ignore[method-assign]
    engine.top.overlap = True
    return engine


@pytest.mark.parametrize("seed", range(6))
def test_tokens_ahead_and_rounds_in_turn_are_the_target_s(lab: Lab, seed: int) -> None:
    steady, engine = engines(lab)[0], moody(lab, seed)
    for turn in range(3):
        request = Request([*steady.cached, *lab.text(20, seed=turn)], 40, Sampling())
        made, events = tokens_of(steady, request), lasting(engine.answer(request))
        assert [i for event in events for i in ids(event)] == made
        drafted = [each.proposed for each in events if isinstance(each, Verified) and each.level == "target"]
        assert 0 in drafted
        assert max(drafted) > 1
        assert engine.cached == steady.cached
        assert engine.full.length == len(engine.cached)


@pytest.mark.parametrize("at", range(2, 30, 3))
def test_turns_are_closed_at_any_event(lab: Lab, at: int) -> None:
    engine, prompt = moody(lab, at), lab.text(40)
    answer: Any = engine.answer(Request(prompt, 30, Sampling()))
    shown = [i for event in islice(answer, at) for i in ids(event)]
    answer.close()
    assert engine.full.length == len(engine.cached)
    assert engine.cached == [*prompt, *shown][: len(engine.cached)]
    assert tokens_of(engine, Request(prompt, 30, Sampling())) == lab.greedy(prompt, 30)


@pytest.mark.parametrize(("right", "share"), [(0.05, 1.1), (0.5, 1.1), (0.97, 0.6)])
def test_drafts_are_tried_ahead_and_kept_where_they_pay(right: float, share: float) -> None:
    clock = FakeClock()
    draft = DraftModel(Costly(clock, 0.01, right=right), ToyCache())  # type: ignore[arg-type]
    planner = Planner([Arm(draft)], most=8)
    top = clocked("target", Costly(clock, 0.1, 0.004), planner, overlap=True)
    seq = TokenBuffer.of([1], 2000, CPU)
    made = [i for ids in top.decode(seq, Sampler(Sampling(1.0, seed=0)), 600) for i in ids]
    assert planner.arms[0].asked  # a trial that is only planned is none
    assert planner.rounds > TRY_AFTER
    assert clock.seconds / len(made) < 0.1 * share
    expected = planner.expected
    assert expected.seconds / expected.tokens == pytest.approx(clock.seconds / len(made), rel=0.1)


def test_the_record_of_lookup_is_forgotten_ahead() -> None:
    planner = Planner([], NgramLookup(), most=8)
    planner.lookup_accepted = 0.1 * planner.lookup_expected
    for _ in range(1500):
        planner.learn_plain(0.1)
    assert planner.record > 0.9


class Searched(NgramLookup):
    """Notes what the host knows whenever it searches; the device is never asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[list[int]] = []

    def match(self, known: Tokens) -> Match:
        self.known.append(known.tolist())
        return super().match(known)

    def find(self, seq: TokenBuffer, n: int) -> LookedUp:
        raise AssertionError(f"{n} tokens after {seq.known} were looked up on the device")


@pytest.mark.parametrize("overlap", [False, True])
def test_the_host_looks_up_what_it_has_read(overlap: bool) -> None:
    """After each round, in memory of its own, while the device computes the next token."""
    clock, lookup, prompt = FakeClock(), Searched(), [0, 1, 2, 0, 1]
    model = Costly(clock, 0.1, 0.001, right=0.5, vocabulary=3)
    top = clocked("target", model, Planner([], lookup, most=8), overlap=overlap)
    ids = torch.tensor([prompt + 300 * [0]])
    seq = TokenBuffer(ids, torch.tensor([len(prompt)]), len(prompt), ids.clone())
    made = list(top.decode(seq, Sampler(Sampling(1.0, seed=0)), 200))
    flat = [*prompt, *(i for ids in made for i in ids)]
    assert {len(ids) for ids in made} > {1, 2}
    assert lookup.known == [flat[: len(known)] for known in lookup.known]
    assert [len(known) for known in lookup.known] == sorted({len(known) for known in lookup.known})
    assert len(lookup.known) >= len(made)
    assert seq.host[: seq.known].tolist() == seq.tokens.tolist() == flat
    assert lookup.rates[1] == pytest.approx(0.45, abs=0.25)
    assert lookup.tests[ORDERS] > 0
