"""A server of several answers captures their graphs before the first request; without a GPU graphs are emulated."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from support import emulated_graphs
from support.labs import SMALL_BUDGET, spell

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cuda_graph import captures_on
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.events import Event, Text
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.gathered import Ended
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.loading.garbage import no_garbage_collection
from triforce_chat.serve.engines import ForkedEngines

BOOK = [int(token) for token in torch.randint(1, 48, (150,), generator=torch.Generator().manual_seed(3))]
SPANS = (DocumentSpan(len(BOOK), "a book"),)
WARM = Sampling(0.8, top_p=0.9)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(prefix_cache, "PREFILL_CHUNK", 64)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        emulated_graphs.emulate(monkeypatch)
    return emulated_graphs.captured_pair(device, monkeypatch)


def engine_of(captured: Any, stack: str) -> Engine:
    return Engine(captured[0], 700, TextCodec(spell), captured[1], StackOptions(stack, budget=SMALL_BUDGET))


def answered(engines: ForkedEngines, requests: list[Request]) -> list[list[int]]:
    """The tokens of answers that are given at once, as the server's thread gives them."""
    said: list[list[int]] = [[] for _ in requests]

    def work(request: Request) -> Any:
        stack, tokens = engines.origin.forked_options, len(request.prompt) + request.max_tokens
        with engines.lent(request.prompt, tokens, stack) as engine:
            yield from engine.answer(request)

    for number, request in enumerate(requests):
        engines.gathered.add(number, partial(work, request))
    while engines.gathered.members:
        for number, made in engines.gathered.step():
            event: Event | Ended = made
            if isinstance(event, Ended) and event.error:
                raise event.error
            said[number] += event.token_ids if isinstance(event, Text) else ()
    return said


@pytest.mark.parametrize("stack", ["auto", "naive", "triforce"])
@pytest.mark.parametrize("documents", [True, False])
def test_graphs_are_captured_before_the_first_request(captured: Any, stack: str, documents: bool) -> None:
    book, spans = (BOOK, SPANS) if documents else ([], ())
    asked = [
        Request([*book, *range(5, 10 + i)], 30, sampling) for i, sampling in enumerate((Sampling(), WARM))
    ]
    alone = [tokens_of(engine_of(captured, stack), request) for request in asked[:1]]
    captures = captures_on(captured[0].device)
    engines = ForkedEngines(engine_of(captured, stack), 3, book, spans)
    before = captures.count
    done = [event.done for event in engines.read(book, spans, [Sampling(), WARM])]
    assert (max(done, default=0), captures.count > before) == (len(book), documents)
    engines.prepare()
    ready = captures.count
    assert ready > before + 10
    made = answered(engines, asked)
    assert made[:1] == alone
    assert captures.count - ready <= 4  # lengths of drafts that only two or one are left for
    engines.prepare()  # nothing is left
    assert captures.count - ready <= 4


@pytest.mark.parametrize("documents", [True, False])
def test_what_only_the_first_engine_would_need_takes_no_memory(captured: Any, documents: bool) -> None:
    book, spans = (BOOK, SPANS) if documents else ([], ())
    origin = engine_of(captured, "triforce")
    kept = origin.full.storage.slot(0).storage.keys  # type: ignore[union-attr]
    engines = ForkedEngines(origin, 2, book, spans)
    list(engines.read(book, spans, [Sampling()]))
    assert origin.top.planner.arms == []
    assert (origin.full._storage is not None) is documents
    assert engines.origin.forked_options.name == "triforce"
    made = answered(engines, [Request([*book, 5, 6, 7], 30)] * 2)
    assert made[0] == made[1] == tokens_of(engine_of(captured, "triforce"), Request([*book, 5, 6, 7], 30))
    assert (origin.full._storage is not None) is documents
    if documents:
        assert origin.full.storage.slot(0).storage.keys is kept  # type: ignore[union-attr]


def test_copies_of_the_weights_are_given_back_that_loading_made(captured: Any) -> None:
    with no_garbage_collection():  # which later looks through nothing that was made meanwhile
        options = StackOptions("triforce", budget=SMALL_BUDGET, middle="int8")
        engine = Engine(captured[0], 700, TextCodec(spell), captured[1], options)
        copies = weakref.ref(captured[0].quantized)
    try:
        engine.give_way(0)
        assert copies() is None
    finally:
        gc.unfreeze()


def test_a_released_cache_reads_again(captured: Any) -> None:
    engine, request = engine_of(captured, "lookup"), Request([*BOOK, 5], 30)
    expected = tokens_of(engine, request)
    engine.give_way(0)
    assert engine.cached == []
    assert engine.options.name == "autoregressive"
    engine.restack(engine.forked_options)
    assert tokens_of(engine, request) == expected
    assert engine.full.storage.slot(0).storage.capacity == 700 + SLACK  # type: ignore[union-attr]
