"""Graphs are captured while a document is read, and nothing else changes by that.

Without a GPU graphs are emulated; then every chunk of a prefill is followed by a fixed number of captures, as where
several ranks share a model.
"""

from __future__ import annotations

import gc
import time
import weakref
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.caches import buffer_of
from support.emulated_graphs import captured_pair, emulate, prefill_in_chunks
from support.labs import SMALL_BUDGET, random_model, spell

from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.retrieval import State
from triforce_chat.engine.cuda_graph import captures_on
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.graphs import ForwardGraph
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE
from triforce_chat.engine.prefill_queue import PER_CHUNK, PrefillQueue
from triforce_chat.engine.sampling.executor import GraphExecutor, StaticVerification
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.draft_model import DraftGraph
from triforce_chat.engine.speculation.stacks import StackOptions

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
STACKS = ("auto", "triforce", "retrieval", "streaming", "naive", "lookup", "autoregressive")
WARM = Sampling(0.8, top_p=0.9, repetition_penalty=1.1, seed=3)
PROMPT = [int(token) for token in torch.randint(1, 48, (300,), generator=torch.Generator().manual_seed(3))]
CHUNK = 16


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        emulate(monkeypatch)
    prefill_in_chunks(CHUNK, monkeypatch)
    return str(request.param)


@pytest.fixture
def pair(device: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    return captured_pair(device, monkeypatch)


def engine_of(pair: Any, stack: str, planned: bool = False) -> Engine:
    gamma, draft_gamma = (None, None) if planned else (5, 2)
    options = StackOptions(stack, gamma, draft_gamma, budget=SMALL_BUDGET)
    made = Engine(pair[0], 500, TextCodec(spell), pair[1], options)
    made.executor = GraphExecutor()
    return made


def read(engine: Engine, prompt: list[int], sampling: Sampling | None) -> list[int]:
    """Read a prompt; returns how many graphs had been captured at each event."""
    before = captures_on(engine.target.device).count
    return [
        captures_on(engine.target.device).count - before
        for event in engine.prefill(prompt, (), sampling)
        if isinstance(event, Prefilled)
    ]


def law(stack: str) -> Sampling:
    """Settings under which a stack's tokens depend on nothing but the seed; what "auto" drafts depends on the clock."""
    return Sampling() if stack == "auto" else WARM


def kv(engine: Engine, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the first n tokens."""
    buffer = buffer_of(engine.full)
    return buffer.keys[:, :, :n].clone(), buffer.values[:, :, :n].clone()


@pytest.mark.parametrize("stack", STACKS)
def test_neither_the_documents_kv_nor_the_answer_changes(pair: Any, stack: str) -> None:
    found = []
    for sampling in (None, WARM):
        engine = engine_of(pair, stack)
        read(engine, PROMPT, sampling)
        stored = kv(engine, len(PROMPT))
        answers = [tokens_of(engine, Request([*PROMPT, 5], 40, each)) for each in (Sampling(), law(stack))]
        found.append((stored, answers))
    (plain, said), (prepared, again) = found
    assert all(torch.equal(one, other) for one, other in zip(plain, prepared, strict=True))
    assert said == again


@pytest.mark.parametrize("stack", STACKS)
def test_what_the_caches_hold_survives_preparations(pair: Any, stack: str) -> None:
    """In a second turn the retrieval cache and the draft's are in use; other settings need other graphs."""
    said = []
    for hot in (False, True):
        engine = engine_of(pair, stack)
        first = tokens_of(engine, Request(PROMPT[:200], 40, law(stack)))
        if hot:
            engine.prepare(Request([*engine.cached, 5], 1, Sampling(1.3, top_k=20)))
            engine.prepare(Request([*engine.cached, 5], 1, Sampling(1.3, repetition_penalty=1.2)))
        said.append(tokens_of(engine, Request([*PROMPT[:200], *first, *PROMPT[:30]], 40, law(stack))))
    assert said[0] == said[1]


def test_preparations_write_only_behind_what_is_kept(pair: Any) -> None:
    engine = engine_of(pair, "triforce")
    tokens_of(engine, Request(PROMPT[:200], 40, WARM))
    middle: Any = engine.top.planner.arms[0].drafter
    draft = middle.planner.arms[0].drafter
    assert middle.cache.state is State.READY
    ends = [middle.cache._slot(middle.cache.verified_length), draft.cache.position]

    def held() -> list[torch.Tensor]:
        parts = zip((middle.cache.storage, draft.cache.storage), ends, strict=True)
        return [part[:, :, :end].clone() for buffer, end in parts for part in (buffer.keys, buffer.values)]

    before = held()
    assert min(ends) > 10
    engine.target.graphs.forget()
    engine.target.quantized.graphs.forget()
    engine.draft.graphs.forget()  # type: ignore[union-attr]
    count = captures_on(engine.target.device).count
    engine.prepare(Request([*engine.cached, 5], 1, Sampling(1.3, top_k=20)))
    assert captures_on(engine.target.device).count > count + 4
    assert all(torch.equal(one, other) for one, other in zip(before, held(), strict=True))


def test_plain_decoding_is_prepared_first_and_then_the_first_rounds(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    for kind, size in ((ForwardGraph, 1), (StaticVerification, 1), (DraftGraph, 1)):
        begin = kind.__init__

        def noted(
            self: Any, *given: Any, begin: Any = begin, name: str = kind.__name__, at: int = size
        ) -> None:
            made.append((name, given[at]))
            begin(self, *given)

        monkeypatch.setattr(kind, "__init__", noted)
    engine = engine_of(pair, "auto", planned=True)
    read(engine, PROMPT[:40], None)
    engine.prepare(Request([*PROMPT[:40], 5], 1, WARM))
    assert made[:2] == [("ForwardGraph", 1), ("StaticVerification", 1)]
    # Then a trial of the middle level over the draft model.
    assert {name for name, _ in made[2:8]} == {"ForwardGraph", "StaticVerification", "DraftGraph"}


def test_nothing_is_prepared_without_settings(pair: Any) -> None:
    assert set(read(engine_of(pair, "auto", planned=True), PROMPT, None)) == {0}


@pytest.mark.parametrize("stack", STACKS)
def test_an_answer_after_a_long_document_captures_nothing(pair: Any, stack: str) -> None:
    engine = engine_of(pair, stack, planned=True)
    captures = captures_on(engine.target.device)
    counts = read(engine, PROMPT, Sampling())
    if engine.target.device.type == "cpu":
        assert counts[-1] > 0
        assert all(after - before <= PER_CHUNK for before, after in pairwise(counts))
    engine.prepare(Request([*engine.cached, 5], 1))  # what a GPU that is this quick left no time for
    before = captures.count
    tokens_of(engine, Request([*PROMPT, 5], 100))
    assert captures.count == before


def test_preparations_touch_no_length_and_draw_nothing(pair: Any) -> None:
    engine = engine_of(pair, "triforce", planned=True)
    read(engine, PROMPT[:50], None)
    middle: Any = engine.top.planner.arms[0].drafter
    draft = middle.planner.arms[0].drafter
    torch.manual_seed(9)
    state, device = torch.get_rng_state(), engine.target.device
    before = engine.full.length, middle.cache.length, draft.cache.length, engine.cached
    engine.prepare(Request([*engine.cached, 5], 1, WARM))
    assert captures_on(device).count > 10
    assert before == (engine.full.length, middle.cache.length, draft.cache.length, engine.cached)
    assert torch.equal(state, torch.get_rng_state())


def test_a_full_context_has_no_room_for_preparations(pair: Any) -> None:
    engine = Engine(pair[0], 60, TextCodec(spell), pair[1], StackOptions("auto", budget=SMALL_BUDGET))
    engine.executor = GraphExecutor()
    buffer_of(engine.full).capacity = 60
    read(engine, PROMPT[:58], None)
    engine.prepare(Request([*engine.cached, 5], 1))
    sizes = engine.target.graphs.made[buffer_of(engine.full)]
    assert max(sizes) <= 2


def test_a_prefill_may_be_closed_between_captures(pair: Any) -> None:
    engine = engine_of(pair, "triforce")
    expected = tokens_of(engine_of(pair, "triforce"), Request(PROMPT, 30, WARM))
    for chunks in (1, 2, 3):
        events = engine.prefill(PROMPT, (), WARM)
        for _ in range(chunks):
            next(events)
        events.close()
    assert tokens_of(engine, Request(PROMPT, 30, WARM)) == expected


def test_the_first_build_is_rehearsed_once_and_leaves_no_trace(pair: Any) -> None:
    engine = engine_of(pair, "triforce")
    middle: Any = engine.top.planner.arms[0].drafter
    cache = middle.cache
    read(engine, PROMPT, None)
    [rehearse] = cache.preparations()
    rehearse()
    assert cache.storage.keys.any()  # chunks were copied
    assert (cache.state, cache.length) == (State.STALE, 0)
    assert cache.preparations() == []
    asked = Request([*PROMPT, 5], 30, WARM)
    assert tokens_of(engine, asked) == tokens_of(engine_of(pair, "triforce"), asked)
    cache.rehearsed = False
    before = cache.storage.keys.clone()
    rehearse()  # the cache is in use
    assert torch.equal(before, cache.storage.keys)


def test_the_rehearsal_comes_before_all_captures_and_needs_no_document(pair: Any) -> None:
    engine = engine_of(pair, "auto", planned=True)
    middle: Any = engine.top.planner.arms[0].drafter
    sampler, captures = engine.sampler(Request([5], 1, WARM)), captures_on(engine.target.device)
    before = captures.count
    next(iter(engine.top.preparations(1000, sampler)))()
    assert middle.cache.rehearsed
    assert captures.count == before


def test_captures_take_their_share_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is never done, and captures of 10 ms between chunks that are 100 ms apart."""
    now = 0.0

    def clock() -> float:
        return now

    def capture() -> None:
        nonlocal now
        now += 0.01

    class Running:
        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            nonlocal now
            now += 0.1 - now % 0.1

    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(PrefillQueue, "_mark", lambda self: Running())  # noqa: ARG005
    left = [capture] * 100
    queue = PrefillQueue(torch.device("cuda"), SINGLE, (left.pop() for _ in range(100)))
    made = []
    for _ in range(4):
        queue.launched()
        made.append(100 - len(left))
    assert made[0] == 0  # how long a chunk takes is not known yet
    assert [after - before for before, after in pairwise(made[1:])] == [5, 5]
    queue.drain()
    assert not left


def test_a_replaced_stack_goes_at_once(pair: Any) -> None:
    """Its retrieval cache would go on building, and its caches and graphs would hold memory."""
    engine = engine_of(pair, "auto", planned=True)
    tokens_of(engine, Request(PROMPT, 60))
    drafters = [weakref.ref(arm.drafter) for arm in engine.top.planner.arms]
    gc.disable()
    try:
        engine.restack(StackOptions("lookup"))
        assert not engine.full.observers
        assert [each() for each in drafters] == [None, None]
    finally:
        gc.enable()


def test_captures_between_chunks_leave_the_documents_kv_alone(pair: Any) -> None:
    prompt, stored, said = PROMPT[:100], [], []
    for prepared in (False, True):
        engine = engine_of(pair, "triforce")
        for _ in engine.prefill(prompt):
            if prepared:
                engine.target.graphs.forget()
                engine.prepare(Request([*engine.cached, 5], 1, WARM))
        stored.append(kv(engine, len(prompt)))
        said.append(tokens_of(engine, Request([*prompt, 5], 40, WARM)))
    assert all(torch.equal(one, other) for one, other in zip(*stored, strict=True))
    assert said[0] == said[1]


@pytest.mark.gpu
def test_a_prefill_that_takes_its_time_hides_the_captures() -> None:
    """A billion weights and 49,152 tokens; then the first token waits for no capture."""
    with torch.device("cuda"):
        sizes: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 8192, "head_dim": 128}
        heads: dict[str, Any] = {"num_attention_heads": 16, "num_key_value_heads": 16}
        depth: dict[str, Any] = {"num_hidden_layers": 16, "max_position_embeddings": 65_536}
        model = random_model(**sizes, **heads, **depth).bfloat16()
    options = StackOptions("auto", budget=Budget(tokens=512))
    engine = Engine(Runner(model), 60_000, TextCodec(spell), None, options)
    captures = captures_on(engine.target.device)
    prompt = torch.randint(1, 48, (6 * 8192,), generator=torch.Generator().manual_seed(3)).tolist()
    for turn in range(2):  # in the first one kernels are compiled
        engine.settle([0])
        engine.restack(options)
        engine.target.graphs.forget()
        start = captures.count
        hidden = read(engine, prompt, Sampling())[-1]
        drained = captures.count - start
        texts = [
            captures.count - start - drained
            for event in engine.answer(Request([*prompt, 5], 64))
            if isinstance(event, Text)
        ]
        if turn:
            assert hidden >= 10
            assert texts[0] == 0
            assert texts[-1] <= 20
