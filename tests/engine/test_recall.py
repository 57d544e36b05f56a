"""While another thread loads keys and values graphs are captured, and nothing else changes by that."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

import pytest
import torch
from support.caches import buffer_of
from support.emulated_graphs import captured_pair, emulate, prefill_in_chunks
from support.labs import SMALL_BUDGET, spell
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cuda_graph import captures_on
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.prefill_queue import PrefillQueue
from triforce_chat.engine.prefix_store import Chunk, NullStore
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PROMPT = [int(token) for token in torch.randint(1, 48, (300,), generator=torch.Generator().manual_seed(3))]
CHUNK = 16
WHOLE = len(PROMPT) // CHUNK * CHUNK  # tokens in complete chunks
SLOW = 4  # the first chunks, whose loading takes a while
PATIENCE = 60  # seconds


@pytest.fixture(params=DEVICES)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "cpu":
        emulate(monkeypatch)
    prefill_in_chunks(CHUNK, monkeypatch)
    return captured_pair(str(request.param), monkeypatch)


class Shelf(NullStore):
    """Remembers the slots of chunks. Loading one of the first lasts until so many graphs ``more`` are captured.

    Loading ends before the chunk with number ``lost``.
    """

    def __init__(self) -> None:
        self.held: dict[bytes, tuple[Tensor, Tensor]] = {}
        self.more, self.lost = 0, -1

    def known(self, plan: Sequence[Chunk]) -> int:
        return sum(chunk.prefix_hash in self.held for chunk in plan)

    def keep(self, chunk: Chunk, cache: FullCache) -> None:
        self.held[chunk.prefix_hash] = kv(cache, chunk.start, chunk.end)

    def recall(self, chunks: Sequence[Chunk], cache: FullCache) -> Generator[Chunk, None, None]:
        captures, latest = captures_on(cache.shape.device), time.monotonic() + PATIENCE
        buffer = buffer_of(cache)
        for number, chunk in enumerate(chunks):
            wanted = captures.count + (self.more if number < SLOW else 0)
            while captures.count < wanted and time.monotonic() < latest:
                time.sleep(1e-3)
            if number == self.lost:
                return
            for mine, kept in zip((buffer.keys, buffer.values), self.held[chunk.prefix_hash], strict=True):
                mine[:, :, chunk.start : chunk.end] = kept
            yield chunk


def kv(cache: FullCache, start: int, end: int) -> tuple[Tensor, Tensor]:
    buffer = buffer_of(cache)
    return buffer.keys[:, :, start:end].clone(), buffer.values[:, :, start:end].clone()


def engine_of(pair: Any, store: Shelf, stack: str = "triforce") -> Engine:
    options = StackOptions(stack, None, None, budget=SMALL_BUDGET)
    made = Engine(pair[0], 500, TextCodec(spell), pair[1], options, store)
    made.executor = GraphExecutor()
    return made


@pytest.fixture
def shelf(pair: Any) -> Shelf:
    """With all of the prompt's chunks, the first of which take as long as a graph."""
    made = Shelf()
    for _ in engine_of(pair, made).prefill(PROMPT):
        pass
    made.more = 1
    return made


def check(pair: Any, shelf: Shelf, cached: int, stack: str = "triforce") -> None:
    """Keys, values and an answer are those of an engine without a store."""
    plain, engine = engine_of(pair, Shelf(), stack), engine_of(pair, shelf, stack)
    captures = captures_on(engine.target.device)
    before = captures.count
    events = [(event.cached, captures.count - before) for event in engine.prefill(PROMPT, (), Sampling())]
    assert events[0][0] == CHUNK
    assert events[0][1] > 0
    assert events[-1][0] == cached
    for _ in plain.prefill(PROMPT):
        pass
    mine, theirs = (kv(each.full, 0, len(PROMPT)) for each in (engine, plain))
    assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
    answer = Request([*PROMPT, 5], 40, Sampling())
    assert tokens_of(engine, answer) == tokens_of(plain, answer)


@pytest.mark.parametrize("stack", ["auto", "triforce", "retrieval", "lookup"])
def test_what_is_captured_meanwhile_writes_behind_it(pair: Any, shelf: Shelf, stack: str) -> None:
    check(pair, shelf, WHOLE, stack)


def test_what_is_lost_is_computed(pair: Any, shelf: Shelf) -> None:
    shelf.lost = 3
    check(pair, shelf, 3 * CHUNK)


def test_an_end_in_the_middle_keeps_what_was_loaded(pair: Any, shelf: Shelf) -> None:
    engine = engine_of(pair, shelf)
    events = engine.prefill(PROMPT, (), Sampling())
    while next(events).done < 2 * CHUNK:
        pass
    events.close()
    assert engine.full.length == len(engine.cached) == 2 * CHUNK
    shelf.held.clear()
    answer = Request([*PROMPT, 5], 40, Sampling())
    assert tokens_of(engine, answer) == tokens_of(engine_of(pair, Shelf()), answer)


def test_ranks_prepare_nothing_meanwhile(pair: Any, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share one order of captures, but not what they wait for."""
    monkeypatch.setattr(PrefillQueue, "alone", property(lambda _: False, lambda *_: None), False)
    shelf.more, engine = 0, engine_of(pair, shelf)
    captured = captures_on(engine.target.device).count
    events = engine.prefill(PROMPT, (), Sampling())
    while next(events).done < WHOLE:
        pass
    assert captures_on(engine.target.device).count == captured
