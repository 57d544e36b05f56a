"""Rounds of the middle level that nobody waits for: their proposals, and the lessons read from them later."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from support.clocked import set_clocks
from support.emulated_graphs import captured_pair, emulate
from support.judging import sampling_test
from support.labs import SMALL_BUDGET, spell
from support.no_sync import no_waits
from support.toys import CPU, LONGER, ROOM, Stack, ToyModel, three_levels, toy, unwaited

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import MARGIN, USUAL
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Rebuilt, Text, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling import executor, sampler
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import KEPT, DraftGraph, DraftModel
from triforce_chat.engine.speculation.lookup import ORDERS, NgramLookup, longest_match
from triforce_chat.engine.speculation.plan import NEVER, Plan
from triforce_chat.engine.speculation.rounds_ahead import several
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stacks import StackOptions

GREEDY = Sampling(temperature=0)


def heard(stack: Stack) -> list[Event]:
    """The events of the middle level's rounds."""
    events: list[Event] = []
    stack.middle.emit = events.append
    return events


def answer(stack: Stack, n: int) -> list[int]:
    seq = TokenBuffer.of(LONGER, ROOM + n, CPU)
    made = stack.top.decode(seq, Sampler(GREEDY, len(LONGER)), n)
    return [token for ids in made for token in ids][:n]


@pytest.mark.parametrize("gammas", list(itertools.product((1, 2, 3), (3, 6))))
@pytest.mark.parametrize("seed", range(3))
def test_rounds_propose_what_waited_rounds_propose(gammas: tuple[int, int], seed: int) -> None:
    """Greedily both propose the middle's own tokens; of each round the host hears the same."""
    target, middle, draft = (toy(seed + i, 5) for i in (0, 10, 20))
    stack = unwaited(target, middle, draft, gammas)
    events, seq = heard(stack), TokenBuffer.of(LONGER, ROOM, CPU)
    for _ in range(8):
        sampler, before, known = Sampler(GREEDY, len(LONGER)), stack.save(), len(events)
        proposed = stack.middle.propose(seq, gammas[1], sampler)
        assert proposed.count is not None
        count = int(proposed.count)
        assert not proposed.tokens[0, count:].any()
        twin = three_levels(target, middle, draft, gammas)
        expected = twin.middle.propose(seq.fork(), 2 * gammas[1] + 4, sampler)
        assert proposed.tokens[0, :count].tolist() == expected.tokens[0, :count].tolist()
        assert torch.equal(proposed.probs[:, :count].double(), expected.probs[:, :count].double())
        stack.load(before)
        outcome = stack.top.step(seq, sampler, gammas[1])[1]
        rounds = [event for event in events[known:] if isinstance(event, Verified)]
        made = sum(event.accepted + 1 for event in rounds)
        assert {event.proposed for event in rounds} == {gammas[0]}
        assert outcome.drafted == min(made, len(proposed))


@pytest.mark.parametrize("threshold", [None, 1, 3])
def test_a_draft_that_knows_the_middle_is_always_right(threshold: int | None) -> None:
    """Whatever lookup put in its place, and however that fared: its cache holds the history."""
    target, middle = toy(1, 4), toy(2, 4)
    stack = unwaited(target, middle, middle, (3, 8), threshold is not None, threshold)
    lessons: list[tuple[int, int]] = []
    planner = stack.middle.planner
    learn = planner.learn_unwaited

    def noted(plan: Plan, match: int, accepted: int, *seconds: Any) -> None:
        lessons.append((match, accepted))
        learn(plan, match, accepted, *seconds)

    planner.learn_unwaited = noted  # type: ignore[method-assign,assignment]
    answer(stack, 80)
    least = NEVER if threshold is None else threshold
    drafted = [accepted for match, accepted in lessons if match < least]
    assert len(drafted) > 3
    assert set(drafted) == {3}
    if threshold is not None:
        assert {accepted for match, accepted in lessons if match >= least} > {3}


def test_a_repeated_text_is_looked_up_at_once() -> None:
    """A model that goes in circles: all of it occurred before."""
    circle = [2, 3, 4, 5, 6, 7]

    def table(context: tuple[int, ...]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(circle[len(context) % 6]), 8).double()

    going = ToyModel(8, table)
    stack = unwaited(going, going, None, (4, 12), lookup=True)
    events = heard(stack)
    assert answer(stack, 60) == [circle[(len(LONGER) + i) % 6] for i in range(60)]
    rounds = [event for event in events if isinstance(event, Verified)]
    assert {event.accepted for event in rounds[6:]} == {4}


@pytest.mark.parametrize("seed", range(30))
def test_a_match_is_continued(seed: int) -> None:
    rng = random.Random(seed)
    history = [rng.randrange(rng.choice((2, 3, 9))) for _ in range(rng.randint(1, 60))]
    end = rng.randint(1, len(history))
    place, length = longest_match(np.array(history[:end]))
    seq = TokenBuffer(torch.tensor([[*history, *[0] * 9]]), torch.tensor([end]), end)
    found, match = NgramLookup().find(seq, 7), NgramLookup().match(seq.host[:end])
    assert found.length is not None
    assert found.length.tolist() == [match.length] == [length]
    if length:
        gone_on = history[:end]
        while len(gone_on) < end + 7:
            gone_on.append(gone_on[place + len(gone_on) - end])
        assert found.tokens[0].tolist() == match.continued(seq.ids, 7)[0].tolist() == gone_on[end:]


def test_it_waits_for_a_cache_that_is_to_be_built() -> None:
    stack = unwaited(toy(1), toy(2), toy(3), (2, 4))
    stack.parts[1].ready = lambda _: False
    seq = TokenBuffer.of(LONGER, ROOM, CPU)
    assert len(stack.middle.propose(seq, 4, Sampler(GREEDY))) == 0
    stack.middle.judged(0, 0)
    assert answer(stack, 5) == answer(unwaited(toy(1), toy(2), toy(3), (2, 4)), 5)


@pytest.mark.parametrize("missing", range(2))
def test_rounds_end_where_the_cache_does(missing: int) -> None:
    """They are made where all their slots, padding included, are free."""
    asked: list[int] = []
    stack = unwaited(toy(1), toy(2), toy(3), (3, 8))

    def ready(more: int) -> bool:
        asked.append(more)
        return missing == 0

    stack.parts[1].ready = ready
    made = stack.middle.propose(TokenBuffer.of(LONGER, ROOM, CPU), 8, Sampler(GREEDY))
    assert asked == [several(stack.middle.planner, 8, len(LONGER)).rounds * 4 + MARGIN]
    assert (len(made) == 0) == (missing > 0)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TEXT = [int(token) for token in torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3))]


@pytest.fixture(params=DEVICES)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, Runner]:
    """A target and a draft whose forwards are captured."""
    if request.param == "cpu":
        emulate(monkeypatch)
    return captured_pair(request.param, monkeypatch)


def engine_of(pair: tuple[Runner, Runner], name: str, planned: bool = False, draft: bool = True) -> Engine:
    gammas: tuple[int | None, int | None] = (None, None) if planned else (5, 2)
    options = StackOptions(name, *gammas, budget=SMALL_BUDGET)
    engine = Engine(pair[0], 400, TextCodec(spell), pair[1] if draft else None, options)
    engine.executor = GraphExecutor()
    return engine


def middle_of(engine: Engine) -> Speculative:
    level = engine.top.planner.arms[0].drafter
    assert isinstance(level, Speculative)
    assert level.unwaited
    return level


@pytest.mark.parametrize("name", ["triforce", "retrieval", "streaming"])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_captured_rounds_decode_what_plain_decoding_does(
    pair: tuple[Runner, Runner], name: str, planned: bool, penalty: float
) -> None:
    engine = engine_of(pair, name, planned)
    middle_of(engine)
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
    """Where all caches hold the whole history: every slot, position and verdict is where it belongs.

    Six drafted tokens are judged by a graph of seven.
    """
    options = StackOptions(name, *gammas, budget=Budget(tokens=512))
    engine = Engine(pair[0], 400, TextCodec(spell), pair[0], options)
    engine.executor = GraphExecutor()
    middle_of(engine).planner.threshold = lambda n: ORDERS + 1  # type: ignore[method-assign]  # noqa: ARG005
    events = [event for event in engine.answer(Request(TEXT, 150)) if isinstance(event, Verified)]
    assert len({event.level for event in events}) == 2
    assert all(event.accepted == event.proposed for event in events)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lengths and rooms of all draft graphs that are made."""
    made: list[tuple[int, int]] = []
    begin = DraftGraph.__init__

    def noted(self: DraftGraph, forward: Any, nothing: Any, n: int, op: Any, room: int, pool: Any) -> None:
        made.append((n, room))
        begin(self, forward, nothing, n, op, room, pool)

    monkeypatch.setattr(DraftGraph, "__init__", noted)
    return made


def test_an_answer_outgrows_its_room_between_proposals(
    pair: tuple[Runner, Runner], captured: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph captured inside of one would write over its drafts, and again for the next."""
    monkeypatch.setattr(executor, "LEAST_ROOM", 32)
    options = StackOptions("triforce", 20, 4, budget=Budget(tokens=512))
    engine = Engine(pair[0], 400, TextCodec(spell), pair[0], options)
    engine.executor = GraphExecutor()
    request = Request(TEXT, 200, Sampling(repetition_penalty=1.05))
    events = [event for event in engine.answer(request) if isinstance(event, Verified)]
    assert all(event.accepted == event.proposed for event in events)
    assert len({room for _, room in captured}) > 2
    assert len(captured) == len(set(captured))


def test_draft_graphs_are_kept_for_some_settings(
    pair: tuple[Runner, Runner], captured: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(pair, "triforce", planned=False)
    counts = []
    for temperature in (1.0, 0.5, 1.0, 0.5):
        tokens_of(engine, Request(TEXT, 20, Sampling(temperature=temperature)))
        counts.append(len(captured))
    assert counts[1] == 2 * counts[0] > 0
    assert counts[1:] == [counts[1]] * 3
    for step in range(KEPT):
        tokens_of(engine, Request(TEXT, 5, Sampling(temperature=2.0 + step)))
    assert len(captured) == (2 + KEPT) * counts[0]
    assert len(middle_of(engine).planner.arms[0].drafter.graphs.made) == KEPT  # type: ignore[attr-defined]
    monkeypatch.setattr(sampler, "CANDIDATES", 4)
    answers = [tokens_of(engine, Request(TEXT, 20, Sampling(1.0, top_p=0.9, seed=i))) for i in range(2)]
    assert answers[0] != answers[1]


@pytest.mark.parametrize("draft", [False, True])
def test_captured_rounds_follow_the_distribution(pair: tuple[Runner, Runner], draft: bool) -> None:
    engine = engine_of(pair, "triforce", planned=True, draft=draft)
    set_clocks(engine, 3)
    sampling = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2)
    assert sampling_test(engine, Request(TEXT, 80, sampling), range(4)).p_value > 1e-4


@pytest.mark.gpu
def test_the_host_waits_for_none_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(captured_pair("cuda", monkeypatch), "triforce", planned=True)
    request = Request(TEXT, 60, Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1))
    waits: list[bool] = []
    propose = Speculative.propose

    def watched(self: Speculative, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        waits.append(True)
        if len(waits) < 6:  # captures wait
            return propose(self, seq, n, sampler)
        with no_waits():
            return propose(self, seq, n, sampler)

    monkeypatch.setattr(Speculative, "propose", watched)
    assert len(tokens_of(engine, request)) == 60
    assert len(waits) > 8


def test_the_same_seed_gives_the_same_tokens_whatever_was_learnt(pair: tuple[Runner, Runner]) -> None:
    engine = engine_of(pair, "triforce")
    made = []
    for _ in range(4):
        made.append(tokens_of(engine, Request(TEXT, 30, Sampling(temperature=1.0, seed=5))))
        engine.settle([])
    assert all(each == made[0] for each in made)


@pytest.mark.parametrize("planned", [False, True])
def test_the_window_of_the_draft_begins_again(pair: tuple[Runner, Runner], planned: bool) -> None:
    """Behind more tokens than it holds, with the slots of all rounds inside of it."""
    gammas: tuple[int | None, int | None] = (None, None) if planned else (9, 3)
    options = StackOptions("triforce", *gammas, budget=Budget(tokens=1024))
    engine = Engine(pair[0], 900, TextCodec(spell), pair[0], options)
    engine.executor = GraphExecutor()
    cache = middle_of(engine).planner.arms[0].drafter.cache  # type: ignore[attr-defined]
    starts = set()
    events: list[Event] = []
    for event in engine.answer(Request(TEXT, 700)):
        starts.add(cache.start)
        events.append(event)
    made = [token for event in events if isinstance(event, Text) for token in event.token_ids]
    assert made == tokens_of(engine_of(pair, "autoregressive"), Request(TEXT, 310)) + made[310:]
    assert len(starts) > 3
    rounds = [event for event in events if isinstance(event, Verified)]
    assert all(event.accepted == event.proposed for event in rounds if event.level == "target")


@pytest.mark.parametrize(
    ("policy", "draft_gamma", "rounds"), [("mean", 1, 36), ("attention", 3, 22), ("mean", 7, 16)]
)
def test_proposals_are_long_where_keys_and_values_stream(
    pair: tuple[Runner, Runner], policy: str, draft_gamma: int, rounds: int
) -> None:
    """The first one, too: neither the retrieval cache nor the draft's window lacks room for that many rounds."""
    options = StackOptions("triforce", 63, draft_gamma, policy, Budget(tokens=192), streams=True)
    engine = Engine(pair[0], 900, TextCodec(spell), pair[0], options, storage=OffloadedKV)
    engine.executor = GraphExecutor()
    text = (TEXT * 6)[:300]
    events = list(engine.answer(Request(text, 160)))
    made = [token for event in events if isinstance(event, Text) for token in event.token_ids]
    assert made[:90] == tokens_of(engine_of(pair, "autoregressive"), Request(text, 90))
    verified = [event for event in events if isinstance(event, Verified) and event.level == "target"]
    ends = itertools.accumulate(event.accepted + 1 for event in verified)
    drafted = [event.proposed for event, end in zip(verified, ends, strict=True) if end < 160 - 63]
    assert len(drafted) > 3
    assert rounds <= min(drafted) <= max(drafted) <= 63


@pytest.mark.parametrize("n", [1, 3, 7, 9, 15])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_draft_of_several_graphs_is_that_of_one(
    pair: tuple[Runner, Runner], n: int, penalty: float
) -> None:
    drafts, model = [], pair[1]
    for lengths in ((), (1, 2, 4)):
        drafter = DraftModel(model, StreamingCache(model.shape), lengths)
        seq = TokenBuffer.of(TEXT, 64, model.device)
        sampler = Sampler(Sampling(temperature=0, repetition_penalty=penalty), len(TEXT) - 9)
        drafts.append(drafter.propose(seq, n, sampler))
        assert (seq.known, int(seq.length)) == (len(TEXT), len(TEXT))
    one, several = drafts
    assert several.tokens.tolist() == one.tokens.tolist()
    assert torch.equal(several.probs, one.probs)


def test_what_a_draft_model_lacks_is_fed_in_captured_sizes(
    pair: tuple[Runner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far lookup ran ahead, no forward has a size that was never run before."""
    fed: list[int] = []
    run = Runner.__call__

    def noted(self: Runner, ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        fed.append(ids.shape[1])
        return run(self, ids, *arguments)

    drafter = DraftModel(pair[1], StreamingCache(pair[1].shape), (1, 2, 4))
    seq = TokenBuffer.of(TEXT, 64, pair[1].device)
    monkeypatch.setattr(Runner, "__call__", noted)
    first = drafter.propose(seq, 4, Sampler(GREEDY)).tokens.tolist()
    assert sum(fed) == len(TEXT)
    assert max(fed) == USUAL
    fresh = DraftModel(pair[1], StreamingCache(pair[1].shape))
    assert fresh.propose(seq, 4, Sampler(GREEDY)).tokens.tolist() == first
