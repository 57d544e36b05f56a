"""Decoding ahead of the host says, draws and leaves behind what decoding step by step does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from engine.speculation.test_planner import WARM, Costly, FakeClock
from engine.speculation.test_reads import WARPS, Blind, Reads
from support.emulated_graphs import captured_pair
from support.labs import Lab, random_model, spell
from support.no_sync import no_waits
from support.toys import ToyCache, nothing
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.draft import Verdict
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Finished, Prefilled, Text, Verified
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SingleRank
from triforce_chat.engine.host_copy import Message
from triforce_chat.engine.sampling import sampler as sampling
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.async_decoder import Adaptive, Ahead
from triforce_chat.engine.speculation.level import Autoregressive, Silent, Speculative
from triforce_chat.engine.speculation.lookup import Forecast, NgramLookup, NoLookup
from triforce_chat.engine.speculation.planner import Arm, Choice, Planner
from triforce_chat.engine.speculation.stacks import Builder, StackOptions
from triforce_chat.engine.speculation.step_times import StepTimes

GPU = [pytest.param("cuda", marks=pytest.mark.gpu)]


def engines(lab: Lab, eos: frozenset[int] = frozenset(), context: int = 300) -> tuple[Engine, Engine]:
    """Step by step, and ahead."""
    steady, ahead = (lab.engine("autoregressive", context, eos_ids=eos) for _ in range(2))
    assert isinstance(steady.top, Speculative)
    ahead.top = Ahead("target", ahead.target, ahead.full, ahead.pending.append)
    return steady, ahead


def lasting(events: Iterator[Event]) -> list[Event]:
    """All but what the clock has a say in."""
    return [event for event in events if not isinstance(event, (Prefilled, Finished))]


def same_state(one: Engine, other: Engine) -> None:
    assert one.cached == other.cached
    assert one.full.length == other.full.length == len(one.cached)
    for layer in range(one.target.shape.layers):
        for mine, theirs in zip(one.full.storage.layer(layer), other.full.storage.layer(layer), strict=True):
            assert torch.equal(mine[:, : one.full.length], theirs[:, : one.full.length])
        latest = (each.full.queries.latest(layer, each.full.length, 16) for each in (one, other))
        assert torch.equal(*latest)


@pytest.mark.parametrize("warp", WARPS)
def test_three_turns_are_the_same(lab: Lab, warp: str) -> None:
    both = engines(lab)
    for turn in range(3):
        request = Request([*both[0].cached, *lab.text(20, seed=turn)], 30, WARPS[warp])
        steady, ahead = (lasting(engine.answer(request)) for engine in both)
        assert ahead == steady
        same_state(*both)


@pytest.mark.parametrize("warp", ["greedy", "top-p"])
def test_every_end_is_the_same(lab: Lab, warp: str) -> None:
    """An end token, a stop string, the limit of the answer and of the context, each at many places."""
    prompt = lab.text(40, seed=4)
    made = [i for event in engines(lab)[0].answer(Request(prompt, 24, WARPS[warp])) for i in ids(event)]
    ends = [(frozenset({token}), Request(prompt, 40, WARPS[warp]), 300) for token in set(made)]
    ends += [(frozenset(), Request(prompt, most, WARPS[warp]), 300) for most in range(-1, 6)]
    ends += [(frozenset(), Request(prompt, 40, WARPS[warp]), 40 + room) for room in range(4)]
    ends += [(frozenset(), Request(prompt, 40, WARPS[warp], (spell(made[i : i + 2]),)), 300) for i in (0, 7)]
    ends += [(frozenset(), Request(prompt, 9, WARPS[warp], said=made[:5]), 300)]
    for eos, request, context in ends:
        both = engines(lab, eos, context)
        steady, ahead = (lasting(engine.answer(request)) for engine in both)
        assert ahead == steady
        same_state(*both)
        follow = Request([*prompt, 3, 4, *made], 5, WARPS[warp])
        steady, ahead = ([*engine.answer(follow)][1:-1] for engine in both)
        assert lasting(iter(ahead)) == lasting(iter(steady))


def ids(event: Event) -> tuple[int, ...]:
    return event.token_ids if isinstance(event, Text) else ()


@pytest.mark.parametrize("at", range(2, 9))
def test_closed_at_any_event(lab: Lab, at: int) -> None:
    both = engines(lab)
    for engine in both:
        answer: Any = engine.answer(Request(lab.text(40), 30, WARPS["warm"]))
        list(islice(answer, at))
        answer.close()
    same_state(*both)
    assert both[0].cached[:39] == lab.text(40)[:39]


class Interrupting(FullCache):
    """Ctrl-C at one of its calls, before or behind the work."""

    calls, at = 0, -1

    def _interrupt(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt

    def pending(self, tokens: Tensor) -> Tensor:
        self._interrupt()
        return super().pending(tokens)

    def update(self, *given: Any) -> Any:
        self._interrupt()
        return super().update(*given)

    def advance(self, n: int) -> None:
        self._interrupt()
        super().advance(n)
        self._interrupt()


@pytest.mark.parametrize("at", range(6, 21))
def test_an_interrupt_inside_a_forward_leaves_a_prefix(lab: Lab, at: int) -> None:
    engine, request = lab.engine("autoregressive"), Request(lab.text(40), 30)
    full = Interrupting(engine.target.shape, 400)
    full.at = at
    engine.full = full
    engine.top = Ahead("target", engine.target, full, engine.pending.append)
    shown: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        shown.extend(i for event in engine.answer(request) for i in ids(event))
    assert engine.cached == [*request.prompt, *shown][: len(engine.cached)]
    assert engine.full.length == len(engine.cached) >= 39
    made = [i for event in engine.answer(request) for i in ids(event)]
    assert made == lab.greedy(request.prompt, 30)


@pytest.mark.parametrize("seed", range(8))
def test_a_nucleus_that_was_too_narrow(lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of a cut nucleus, and the random numbers behind the first one, were drawn in vain."""
    monkeypatch.setattr(sampling.Nucleus.__init__, "__defaults__", (1,))
    monkeypatch.setattr(sampling, "WIDER", 2)
    widened: list[int] = []
    widen = sampling.Nucleus.widen
    monkeypatch.setattr(sampling.Nucleus, "widen", lambda self: (widened.append(self.width), widen(self))[1])
    both = engines(lab)
    request = Request(lab.text(30), 25, Sampling(temperature=1.5, top_p=0.95, seed=seed))
    steady = lasting(both[0].answer(request))
    times = widened.copy()
    assert lasting(both[1].answer(request)) == steady
    assert widened == 2 * times
    assert len(times) > 2
    same_state(*both)


def test_what_follows_a_cache_forgets_with_it(lab: Lab) -> None:
    """A plain answer takes tokens back in a cache that a retrieval cache of another stack follows."""
    engine = lab.engine("triforce")
    lasting(engine.answer(Request(lab.text(60), 8, Sampling())))
    observers = list(engine.full.observers)
    assert observers
    length = engine.full.length - 3
    engine.full.truncate(length)
    assert all(each.verified_length <= length for each in observers)


@pytest.mark.parametrize("warp", WARPS)
def test_the_next_forward_is_queued_before_a_token_is_read(
    warp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Told(Blind):
        def __call__(self, ids: Tensor, cache: ToyCache, rows: int) -> Tensor:
            happened.append("forward")
            return super().__call__(ids, cache, rows)  # type: ignore[no-any-return]

    class Read(Message):
        def read(self) -> list[int]:
            happened.append("read")
            return super().read()

    monkeypatch.setattr(sampling, "Message", Read)
    level = Ahead("x", Told(), ToyCache(), nothing)  # type: ignore[arg-type]
    with Reads() as reads:
        made = list(level.rounds(torch.tensor([3, 4]), Sampler(WARPS[warp], 2), 5))
    assert happened == ["forward", *["forward", "read"] * 4, "read"]
    assert reads.count == len(made) == 5


def test_nothing_is_fed_behind_the_last_token() -> None:
    cache = ToyCache()
    list(Ahead("x", Blind(), cache, nothing).rounds(torch.tensor([3, 4]), Sampler(Sampling()), 5))
    assert cache.length == 2 + 5 - 1


@pytest.mark.parametrize("most", range(1, 5))
def test_nothing_is_begun_that_nobody_wants(most: int) -> None:
    """The token on its way is the last one."""
    cache, asked = ToyCache(), iter([*[True] * (most - 1), False])
    level = Ahead("x", Blind(), cache, nothing)
    made = list(level.rounds(torch.tensor([3, 4]), Sampler(Sampling()), 9, lambda: next(asked)))
    assert len(made) == most
    assert cache.length == 2 + most - 1
    assert level.history[2 : 2 + most].tolist() == [token for ids in made for token in ids]


def moody(lab: Lab, seed: int) -> Engine:
    """Its planner wants a draft, or none, as it likes."""
    engine = lab.engine("auto", 300)
    fast, luck = engine.top, random.Random(seed)
    assert isinstance(fast, Speculative)
    planner: Any = fast.drafter
    arms = [None, *planner.arms]

    def choose(forecast: Forecast, length: int, n: int) -> Choice:  # noqa: ARG001
        arm = luck.choice(arms)
        sizes = n + 1 if arm else len(forecast.survival) + 1
        return Choice(1.0, 0 if luck.random() < 0.6 else luck.randrange(sizes), arm)

    planner._choose = choose
    plain = Ahead("target", engine.target, engine.full, engine.pending.append)
    engine.top = Adaptive(plain, fast, planner)
    return engine


@pytest.mark.parametrize("seed", range(6))
def test_turns_ahead_and_by_rounds_make_the_target_s_tokens(lab: Lab, seed: int) -> None:
    steady, engine = engines(lab)[0], moody(lab, seed)
    for turn in range(3):
        request = Request([*steady.cached, *lab.text(20, seed=turn)], 40, Sampling())
        made, events = tokens_of(steady, request), lasting(engine.answer(request))
        assert [i for event in events for i in ids(event)] == made
        drafted = [
            event.proposed for event in events if isinstance(event, Verified) and event.level == "target"
        ]
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


@pytest.mark.parametrize(("right", "share"), [(0.05, 1.06), (0.5, 1.1), (0.97, 0.6)])
def test_rounds_have_to_beat_what_runs_ahead(right: float, share: float) -> None:
    """Each costs the host as much again as the device."""
    clock = FakeClock()
    target, draft = Costly(clock, 0.1, 0.004), Autoregressive(Costly(clock, 0.01, right=right), ToyCache())
    planner, cache = Planner(StepTimes(), NoLookup(2), [Arm(draft)], clock=clock), ToyCache()

    class Slow(Speculative):
        def step(self, tokens: Tensor, sampler: Sampler, most: int) -> Verdict:
            clock.seconds += 0.1
            return super().step(tokens, sampler, most)

    top = Adaptive(
        Ahead("target", target, cache, nothing),
        Slow("target", target, cache, planner, 8, nothing),
        planner,
    )
    made = [i for ids in top.rounds(torch.tensor([1]), Sampler(Sampling(1.0, seed=0)), 600) for i in ids]
    assert clock.seconds / len(made) < 0.1 * share
    expected = planner.expected
    assert expected.seconds / expected.tokens == pytest.approx(clock.seconds / len(made), rel=0.1)


@pytest.mark.parametrize("first", [0.1, 0.5, 3.0])
def test_a_first_round_that_prepares_much_is_forgiven(first: float) -> None:
    """It is all that rounds are known by when running ahead begins."""
    clock = FakeClock()
    target, cache = Costly(clock, 0.1, 0.004), ToyCache()
    planner = Planner(StepTimes(), NgramLookup(2), [], clock=clock)
    top = Adaptive(
        Ahead("target", target, cache, nothing),
        Speculative("target", target, cache, planner, 8, nothing),
        planner,
    )
    planner.times.add(1, first)
    rounds = top.rounds(torch.tensor([1]), Sampler(Sampling()), 400)
    assert sum(len(ids) > 1 for ids in rounds) > 20
    assert clock.seconds < 400 * 0.1 * 0.6


def test_now_and_then_a_round_tells_what_one_costs() -> None:
    """And in between rounds are thought to grow dearer, or cheaper, with what is made ahead."""
    clock = FakeClock()
    planner, tokens, ran = Planner(StepTimes(), NgramLookup(9), [], clock=clock), torch.tensor([1, 2, 3]), 0
    runs, known = [], []
    for cost in (0.1, 0.1, 0.1, 0.02):
        planner.propose(tokens, 0, Sampler(WARM))
        clock.seconds += cost + 0.05
        planner.judged(0, 0)
        while planner.runs:
            planner.ran(cost)
            ran += 1
        runs.append(ran)
        known.append(planner.times(1))
    assert runs == [8, 8 + 128, 8 + 2 * 128, 8 + 3 * 128]
    assert known[:3] == pytest.approx([0.1, 0.15, 0.15])
    assert 0.02 < known[3] < 0.075


def test_what_lookup_once_said_is_forgotten_ahead() -> None:
    planner = Planner(StepTimes(), NgramLookup(2), [], clock=FakeClock())
    planner.came = 0.1 * planner.hoped
    for _ in range(1500):
        planner.ran(0.1)
    assert planner._record > 0.9


@pytest.mark.parametrize("warp", WARPS)
def test_ahead_of_the_host_only_messages_are_read(warp: str) -> None:
    """Whatever the planner has to know was heard."""
    planner, cache = Planner(StepTimes(), NgramLookup(9), []), ToyCache()
    one = ("x", Blind(), cache)
    top = Adaptive(Ahead(*one, nothing), Speculative(*one, planner, 4, nothing), planner)  # type: ignore[arg-type]
    planner._choose = lambda *_: Choice(1.0, 0)  # type: ignore[method-assign]
    tokens, sampler = torch.tensor([3, 4, 3, 5]), Sampler(WARPS[warp], 2)
    list(top.rounds(tokens, sampler, 1))  # now the history was heard, and what a round takes
    top.rollback(4)
    with Reads() as reads:
        made = list(top.rounds(tokens, sampler, 9))
    assert reads.count == len(made) == 9


class Two(SingleRank):
    size = 2


@pytest.mark.parametrize(
    ("device", "ahead"), [("cpu", False), pytest.param("cuda", True, marks=pytest.mark.gpu)]
)
def test_who_runs_ahead(device: str, ahead: bool) -> None:
    """Whoever has a device to wait for, and all keys and values on it."""
    target = Runner(random_model().to(device))
    near, far = (FullCache(target.shape, 64, storage=store) for store in (KVBuffer, OffloadedKV))

    def plain(full: FullCache, group: Any) -> Any:
        return Builder(target, full, None, StackOptions("autoregressive"), nothing, group).build()

    for group in (SingleRank(), Two()):
        assert isinstance(plain(near, group), Ahead) == ahead
        for name in ("auto", "lookup"):
            top = Builder(target, near, None, StackOptions(name), nothing, group).build()
            assert isinstance(top, Adaptive) == (ahead and group.size == 1)
        top = plain(far, group)
        assert isinstance(top, Speculative)
        assert isinstance(top.drafter, Silent)


def test_rank_0_says_what_comes_next() -> None:
    """Also to the forward that runs ahead."""

    class Other(SingleRank):
        def broadcast(self, own: Tensor) -> Tensor:
            return own.new_tensor([5, 1])  # the token, and that its nucleus was whole

    cache = ToyCache()
    level = Ahead("x", Blind(), cache, nothing, Other())
    assert list(level.rounds(torch.tensor([3, 4]), Sampler(Sampling()), 4)) == [[5]] * 4


@pytest.mark.parametrize("device", ["cpu", *GPU])
@pytest.mark.parametrize("warp", WARPS)
def test_captured_forwards_feed_each_other(device: str, warp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a replay overwrites, inputs and logits, was used by then."""
    target, draft = captured_pair(device, monkeypatch)
    said = []
    for ahead in (False, True):
        engine = Engine(target, 256, TextCodec(spell), draft, StackOptions("autoregressive"))
        one, emit = ("target", target, engine.full), engine.pending.append
        engine.top = Ahead(*one, emit) if ahead else Speculative(*one, Silent(target), 1, emit)
        said.append(lasting(engine.answer(Request(list(range(1, 40)), 60, WARPS[warp]))))
    assert said[0] == said[1]


@pytest.mark.gpu
def test_a_message_waits_for_nothing_that_was_queued_later() -> None:
    work = torch.ones(8192, 8192, device="cuda")
    work @ work
    torch.cuda.synchronize()
    message = Message(torch.arange(3, device="cuda"))
    for _ in range(20):
        work @ work
    last = torch.cuda.current_stream().record_event()
    assert message.numbers.is_pinned()
    assert message.read() == [0, 1, 2]
    assert not last.query()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("warp", WARPS)
def test_running_ahead_on_a_gpu_waits_for_messages_only(warp: str) -> None:
    level, sampler = Ahead("x", Blind(device="cuda"), ToyCache(), nothing), Sampler(WARPS[warp], 2)
    tokens = torch.tensor([3, 4, 3, 5], device="cuda")
    list(level.rounds(tokens, sampler, 2))  # whatever is set up once
    level.rollback(0)
    with no_waits():
        made = list(level.rounds(tokens, sampler, 6))
    assert len(made) == 6
