"""Rounds of the middle level that nobody waits for: their law, what they propose, and what is heard of them."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch
from engine.speculation.test_law import EXACT, PLAIN, WARPS, model
from support.emulated_graphs import captured_pair, emulate
from support.labs import SMALL_BUDGET, spell
from support.no_sync import no_waits
from support.toys import Stack, ToyModel, exact_law, fixed_law, law_of, relayed, three_levels, variation
from torch import Tensor

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Rebuilt, Text, Verified
from triforce_chat.engine.exactness import sampling_test, tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling import executor
from triforce_chat.engine.sampling.executor import Replays
from triforce_chat.engine.sampling.sampler import Nucleus, Sampler, Sampling
from triforce_chat.engine.speculation.chain import KEPT, Chain
from triforce_chat.engine.speculation.lookup import ORDERS, found, longest_match
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.relay import MARGIN, Plan, Relay, Told
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.lab.bench.marks import marked

LONGER = (0, 1, 1, 0)  # a draft is no longer than what it follows


@pytest.mark.parametrize("gammas", [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)])
def test_the_law_of_an_answer(gammas: tuple[int, int]) -> None:
    target, middle, draft = model(1), model(2), model(3)
    law = law_of(relayed(target, middle, draft, gammas), PLAIN, 3)
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    assert variation(law, exact_law(target, PLAIN, 3)) <= EXACT


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("least", [None, 1, 2])
def test_the_law_under_every_warp(warp: str, least: int | None) -> None:
    target, middle, draft = model(4), model(5), model(6)
    stack = relayed(target, middle, draft, (1, 3), lookup=least is not None, least=least)
    assert variation(law_of(stack, WARPS[warp], 3), exact_law(target, WARPS[warp], 3)) <= EXACT


@pytest.mark.parametrize("lookup", [False, True])
def test_the_law_without_a_draft_model(lookup: bool) -> None:
    target, middle = model(7), model(8)
    stack = relayed(target, middle, None, (1, 3), lookup=lookup)
    assert variation(law_of(stack, PLAIN, 3), exact_law(target, PLAIN, 3)) <= EXACT


def heard(stack: Stack) -> list[Event]:
    """What the middle level says of its rounds."""
    events: list[Event] = []
    stack.top.drafter.emit = events.append  # type: ignore[attr-defined]
    return events


def answer(stack: Stack, n: int, sampling: Sampling) -> list[int]:
    sampler = Sampler(sampling, len(LONGER))
    made = stack.top.rounds(torch.tensor(LONGER), sampler, n)
    return [token for ids in made for token in ids][:n]


@pytest.mark.parametrize("gammas", list(itertools.product((1, 2, 3), (3, 6))))
@pytest.mark.parametrize("seed", range(3))
def test_rounds_propose_what_rounds_that_are_waited_for_propose(gammas: tuple[int, int], seed: int) -> None:
    """Greedily both propose the middle's own words; of each round the host hears the same."""
    target, middle, draft = (model(seed + i, 5) for i in (0, 10, 20))
    greedy = Sampling(temperature=0)
    stack = relayed(target, middle, draft, gammas)
    events = heard(stack)
    tokens = torch.tensor(LONGER)
    for _ in range(8):
        sampler = Sampler(greedy, len(LONGER))
        before, known = stack.save(), len(events)
        proposed = stack.top.drafter.propose(tokens, gammas[1], sampler)
        assert proposed.count is not None
        count = int(proposed.count)
        twin = three_levels(target, middle, draft, gammas)
        expected = twin.top.drafter.propose(tokens, 2 * gammas[1] + 4, sampler)
        assert proposed.tokens[:count].tolist() == expected.tokens[:count].tolist()
        assert torch.equal(proposed.probs[:count].double(), expected.probs[:count].double())
        stack.load(before)
        verdict = stack.top.step(tokens, sampler, gammas[1])
        rounds = [event for event in events[known:] if isinstance(event, Verified)]
        made = sum(event.accepted + 1 for event in rounds)
        assert {event.proposed for event in rounds} == {gammas[0]}
        assert verdict.drafted == min(made, len(proposed))
        tokens = torch.cat([tokens, verdict.tokens])


@pytest.mark.parametrize("least", [None, 1, 3])
def test_a_draft_that_knows_the_middle_is_always_right(least: int | None) -> None:
    """Whatever lookup put in its place, and however that fared: its cache holds the history."""
    target, middle = model(1, 4), model(2, 4)
    stack = relayed(target, middle, middle, (3, 8), lookup=least is not None, least=least)
    relay, told = stack.top.drafter, []
    assert isinstance(relay, Relay)
    learn = relay._learn
    relay._learn = lambda each, *marks: (told.append(each), learn(each, *marks))[1]  # type: ignore[method-assign, func-returns-value]
    answer(stack, 80, Sampling(temperature=0))
    drafted = [each for each in told if least is None or each.match < least]
    assert len(drafted) > 3
    assert all(each.accepted == 3 for each in drafted)
    if least is not None:
        looked_up = [each for each in told if each.match >= least]
        assert {each.accepted for each in looked_up} > {3}
        assert all(each.foretold >= each.accepted for each in looked_up)


def test_a_repeated_text_is_looked_up_at_once() -> None:
    """A model that goes in circles: every word of it stands where it stood before."""
    circle = [2, 3, 4, 5, 6, 7]

    def law(context: tuple[int, ...]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(circle[len(context) % 6]), 8).double()

    going = ToyModel(8, law)
    stack = relayed(going, going, None, (4, 12), lookup=True)
    events = heard(stack)
    said = answer(stack, 60, Sampling(temperature=0))
    assert said == [circle[(len(LONGER) + i) % 6] for i in range(60)]
    rounds = [event for event in events if isinstance(event, Verified)]
    assert {event.accepted for event in rounds[6:]} == {4}


@pytest.mark.parametrize("seed", range(30))
def test_the_device_finds_what_the_host_finds(seed: int) -> None:
    rng = random.Random(seed)
    history = [rng.randrange(rng.choice((2, 3, 9))) for _ in range(rng.randint(1, 60))]
    end = rng.randint(1, len(history))
    place, match = longest_match(torch.tensor(history[:end]).numpy(), ORDERS)
    told = found(torch.tensor(history), torch.tensor(end), 7)
    assert int(told.match) == match
    if match:
        gone_on = history[:end]
        while len(gone_on) < end + 7:
            gone_on.append(gone_on[place + len(gone_on) - end])
        assert told.tokens.tolist() == gone_on[end:]


def test_it_waits_for_a_cache_that_is_to_be_built() -> None:
    stack = relayed(model(1), model(2), model(3), (2, 4))
    stack.parts[1].ready = lambda _: False
    relay = stack.top.drafter
    assert len(relay.propose(torch.tensor(LONGER), 4, Sampler(Sampling(temperature=0)))) == 0
    relay.judged(0, 0)
    assert answer(stack, 5, Sampling(temperature=0)) == answer(
        relayed(model(1), model(2), model(3), (2, 4)), 5, Sampling(temperature=0)
    )


def test_rounds_and_their_drafts_follow_what_was_accepted() -> None:
    good = relayed(model(2, 4), model(2, 4), model(2, 4), (7, 12)).top.drafter
    bad = relayed(model(1, 4), model(2, 4), ToyModel(4, fixed_law(1.0, 0.0, 0.0, 0.0)), (7, 12)).top.drafter
    plans = []
    for relay in (good, bad):
        assert isinstance(relay, Relay)
        fresh = copy.copy(relay)
        fresh.planned = True
        for _ in range(40):
            fresh.survival.learn(3, 3 if relay is good else 0)
            fresh.times.add(4, 0.003)
            fresh.drafting.add(0.0002)
        plans.append(fresh._planned(12, 100))
    assert plans[0].n > plans[1].n == 1
    assert plans[0].rounds < plans[1].rounds
    assert all(plan.rounds * (plan.n + 1) >= 12 for plan in plans)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TEXT = [int(token) for token in torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3))]


@pytest.fixture(params=DEVICES)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Runner]:
    """A target and a draft whose forwards are captured."""
    if request.param == "cpu":
        emulate(monkeypatch)
    return captured_pair(request.param, monkeypatch)


def engine_of(pair: tuple[Runner, Runner], name: str, planned: bool = False, draft: bool = True) -> Engine:
    gammas = (None, None) if planned else (5, 2)
    options = StackOptions(name, *gammas, budget=SMALL_BUDGET)
    engine = Engine(pair[0], 400, TextCodec(spell), pair[1] if draft else None, options)
    engine.desks = Replays()
    return engine


@pytest.mark.parametrize("name", ["triforce", "retrieval", "streaming"])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_captured_rounds_say_what_plain_decoding_says(
    pair: tuple[Runner, Runner], name: str, planned: bool, penalty: float
) -> None:
    engine = engine_of(pair, name, planned)
    assert isinstance(engine.top.drafter, Planner if planned else Relay)
    request = Request(TEXT, 150, Sampling(repetition_penalty=penalty))
    events: list[Event] = list(engine.answer(request))
    plain = tokens_of(engine_of(pair, "autoregressive"), request)
    assert [token for event in events if isinstance(event, Text) for token in event.token_ids] == plain
    rounds = [event for event in events if isinstance(event, Verified) and event.level == "retrieval"]
    assert len(rounds) > 10
    assert any(isinstance(event, Rebuilt) for event in events)


@pytest.mark.parametrize("gammas", [(5, 2), (20, 6), (None, None)])
@pytest.mark.parametrize("name", ["triforce", "retrieval"])
def test_levels_that_know_the_target_are_always_right(
    pair: tuple[Runner, Runner], name: str, gammas: tuple[int | None, int | None]
) -> None:
    """Where all caches hold all that was said: every slot, position and verdict is where it belongs.

    Six drafted tokens are judged at a desk for seven.
    """
    options = StackOptions(name, *gammas, budget=Budget(tokens=512))
    engine = Engine(pair[0], 400, TextCodec(spell), pair[0], options)
    engine.desks = Replays()
    if gammas == (None, None):  # else lookup speaks, too
        engine.top.drafter.arms[0].level._least = lambda _: ORDERS + 1  # type: ignore[attr-defined]
    events = [event for event in engine.answer(Request(TEXT, 150)) if isinstance(event, Verified)]
    assert len({event.level for event in events}) == 2
    assert all(event.accepted == event.proposed for event in events)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lengths and rooms of all chains that are made."""
    made: list[tuple[int, int]] = []
    begin = Chain.__init__

    def noted(self: Chain, feeder: Any, n: int, draw: Any, room: int, *others: Any) -> None:
        made.append((n, room))
        begin(self, feeder, n, draw, room, *others)

    monkeypatch.setattr(Chain, "__init__", noted)
    return made


def test_an_answer_outgrows_its_room_between_proposals(
    pair: tuple[Runner, Runner], captured: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is captured in midst of one would write over what it has drafted, and again for the next."""
    monkeypatch.setattr(executor, "LEAST_ROOM", 32)
    options = StackOptions("triforce", 20, 4, budget=Budget(tokens=512))
    engine = Engine(pair[0], 400, TextCodec(spell), pair[0], options)
    engine.desks = Replays()
    request = Request(TEXT, 200, Sampling(repetition_penalty=1.05))
    events = [event for event in engine.answer(request) if isinstance(event, Verified)]
    assert all(event.accepted == event.proposed for event in events)
    assert len({room for _, room in captured}) > 2
    assert len(captured) == len(set(captured))


def test_chains_are_kept_for_some_laws(
    pair: tuple[Runner, Runner], captured: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nuclei that are wider than thought ask for no others."""
    monkeypatch.setattr(Nucleus.__init__, "__defaults__", (4,))
    engine = engine_of(pair, "triforce", planned=True)
    counts = []
    for temperature in (1.0, 0.5, 1.0, 0.5):
        tokens_of(engine, Request(TEXT, 20, Sampling(temperature=temperature, top_p=0.9)))
        counts.append(len(captured))
    assert counts[1] == 2 * counts[0] > 0
    assert counts[1:] == [counts[1]] * 3
    for step in range(KEPT):
        tokens_of(engine, Request(TEXT, 5, Sampling(temperature=2.0 + step)))
    assert len(captured) == (2 + KEPT) * counts[0]


@pytest.mark.parametrize("draft", [False, True])
def test_captured_rounds_follow_the_law(pair: tuple[Runner, Runner], draft: bool) -> None:
    engine = engine_of(pair, "triforce", planned=True, draft=draft)
    sampling = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2)
    assert sampling_test(engine, Request(TEXT, 80, sampling), range(4)).p_value > 1e-4


@pytest.mark.gpu
def test_the_host_waits_for_none_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(captured_pair("cuda", monkeypatch), "triforce", planned=True)
    request = Request(TEXT, 60, Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1))
    waits: list[bool] = []
    propose = Relay.propose

    def unwaited(self: Relay, tokens: Tensor, n: int, sampler: Sampler) -> Draft:
        waits.append(True)
        if len(waits) < 6:  # captures wait
            return propose(self, tokens, n, sampler)
        with no_waits():
            return propose(self, tokens, n, sampler)

    monkeypatch.setattr(Relay, "propose", unwaited)
    assert len(tokens_of(engine, request)) == 60
    assert len(waits) > 8


def test_the_same_seed_says_the_same_whatever_was_learnt(pair: tuple[Runner, Runner]) -> None:
    engine = engine_of(pair, "triforce")
    said = []
    for _ in range(4):
        said.append(tokens_of(engine, Request(TEXT, 30, Sampling(temperature=1.0, seed=5))))
        engine.settle([])
    assert all(each == said[0] for each in said)


@pytest.mark.parametrize("planned", [False, True])
def test_the_window_of_the_draft_begins_again(pair: tuple[Runner, Runner], planned: bool) -> None:
    """Behind more tokens than it holds, with the slots of all rounds inside of it."""
    gammas = (None, None) if planned else (9, 3)
    options = StackOptions("triforce", *gammas, budget=Budget(tokens=1024))
    engine = Engine(pair[0], 900, TextCodec(spell), pair[0], options)
    engine.desks = Replays()
    relay: Any = engine.top.drafter
    relay = relay.arms[0].level if planned else relay
    assert isinstance(relay, Relay)
    assert relay.draft is not None
    starts = set()
    events: list[Event] = []
    for event in engine.answer(Request(TEXT, 700)):
        starts.add(relay.draft[1].start)
        events.append(event)
    said = [token for event in events if isinstance(event, Text) for token in event.token_ids]
    assert said == tokens_of(engine_of(pair, "autoregressive"), Request(TEXT, 310)) + said[310:]
    assert len(starts) > 3
    rounds = [event for event in events if isinstance(event, Verified)]
    assert all(event.accepted == event.proposed for event in rounds if event.level == "target")


def test_what_a_round_taught() -> None:
    relay = relayed(model(1), model(2), model(3), (4, 4), lookup=True).top.drafter
    assert isinstance(relay, Relay)
    relay.plan = Plan(1, 4, 3)
    before = list(relay.trust.rates)
    relay._learn(Told(accepted=2, match=2, foretold=4), 0.0, 0.2, 1.0)
    # Two came, and what stood in place of the third, which was foretold as well.
    assert [new > old for new, old in zip(relay.trust.rates, before, strict=True)] == [
        order in (2, 3, 4) for order in range(len(before))
    ]
    assert relay.times(5) == pytest.approx(0.8)
    assert relay.drafting.mean == pytest.approx(0.05)
    relay._learn(Told(accepted=4, match=3, foretold=4), 0.0, 8.0, 9.0)
    assert relay.drafting.mean == pytest.approx(0.15, rel=1e-3)  # something was prepared
    assert relay.survival.chances(4)[3] > relay.alone.chances(4)[3]  # that was lookup


@pytest.mark.parametrize("missing", range(2))
def test_rounds_end_where_the_cache_does(missing: int) -> None:
    """They are made where all their slots, padding included, are free."""
    asked: list[int] = []
    stack = relayed(model(1), model(2), model(3), (3, 8))
    relay = stack.top.drafter
    assert isinstance(relay, Relay)
    relay.cache.ready = lambda more: asked.append(more) or missing == 0  # type: ignore[assignment, func-returns-value]
    made = relay.propose(torch.tensor(LONGER), 8, Sampler(Sampling(temperature=0)))
    assert asked == [relay._planned(8, len(LONGER)).rounds * 4 + MARGIN]
    assert (len(made) == 0) == (missing > 0)


@pytest.mark.parametrize("gammas", [(5, 3), (None, None)])
def test_a_profiler_sees_the_rounds(
    pair: tuple[Runner, Runner], gammas: tuple[int | None, int | None]
) -> None:
    request, planned = Request(TEXT, 40), gammas[0] is None
    options = StackOptions("triforce", *gammas, budget=SMALL_BUDGET)
    engine = Engine(pair[0], 400, TextCodec(spell), pair[1], options)
    engine.desks = Replays()
    with marked(engine.top) as forwards:
        said = tokens_of(engine, request)
    assert forwards["target"] > 0
    assert forwards["draft"] >= forwards["retrieval"] > 0
    if not planned:
        assert forwards["draft"] == 3 * forwards["retrieval"]
    assert said == tokens_of(engine_of(pair, "triforce", planned), request)
