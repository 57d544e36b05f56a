"""The server answering several requests at once: each answer is the one that it gives alone, whatever others do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from support import soak
from support.serving import Running, save_chat_model, serving, until

from triforce_chat.chat.events import ChatEvent
from triforce_chat.chat.session import ChatSession
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Text
from triforce_chat.engine.prefix_cache import common
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.serve import engines as engines_module
from triforce_chat.serve import worker as worker_module
from triforce_chat.serve.adapter import SessionAdapter
from triforce_chat.serve.app import ServedModel
from triforce_chat.serve.engines import ForkedEngines
from triforce_chat.serve.server import lender
from triforce_chat.serve.worker import Job
from triforce_chat.settings.settings import STACKS, Settings

WIDTH = 3
BOOK = "The keeper lit the lamp and wrote of it. " * 20
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "n",
        "schema": {
            "type": "object",
            "properties": {"lit": {"type": "boolean"}},
            "required": ["lit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> ChatSession:
    folder = save_chat_model(tmp_path_factory.mktemp("model"))
    settings = Settings(model=str(folder), device="cpu", draft=str(folder), stack="lookup", max_tokens=12)
    engine, loaded = load_engine(EngineSpec(settings))
    made = ChatSession(engine, loaded, settings)
    made.add(Document("book", "book.txt", (Page(1, BOOK),)))
    list(made.prefill())
    return made


@pytest.fixture(scope="module")
def engines(session: ChatSession) -> ForkedEngines:
    made = lender(session, WIDTH)
    assert isinstance(made, ForkedEngines)
    return made


@pytest.fixture(scope="module")
def server(session: ChatSession, engines: ForkedEngines) -> Iterator[Running]:
    answer, served = SessionAdapter(session, engines).answer, ServedModel("tiny", session.context_limit)
    with serving(answer, served, engines=engines) as running:
        yield running


@pytest.fixture(scope="module")
def alone(session: ChatSession, server: Running) -> Iterator[openai.OpenAI]:  # noqa: ARG001
    """A client of a server that answers one request at a time, with an engine of its own."""
    engine, loaded = load_engine(EngineSpec(session.settings))
    single = ChatSession(engine, loaded, session.settings)
    single.add(session.documents[0])
    with serving(SessionAdapter(single).answer, ServedModel("tiny", single.context_limit)) as running:
        yield running.client()


def complete(client: openai.OpenAI, question: str, **options: Any) -> Any:
    before, system = options.pop("before", ()), options.pop("system", None)
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(before)]
    messages.append({"role": "user", "content": question})
    create: Any = client.chat.completions.create
    return create(model="default", messages=messages, **options)


def answer(client: openai.OpenAI, wanted: dict[str, Any]) -> tuple[str, str]:
    choice = complete(client, **wanted).choices[0]
    return choice.message.content, choice.finish_reason


def at_once(client: openai.OpenAI, wanted: list[dict[str, Any]]) -> list[tuple[str, str]]:
    with ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(partial(answer, client), wanted))


def test_answers_of_all_kinds_are_those_of_each_alone(server: Running, alone: openai.OpenAI) -> None:
    """More requests than places, with their own lengths, stops, sampling, stacks, forms and system prompts."""
    text, _ = answer(alone, {"question": "Who lit it?", "max_tokens": 40})
    wanted: list[dict[str, Any]] = [
        {"question": "Who lit it?", "max_tokens": 40},
        {"question": "Who lit it?", "max_tokens": 40, "stop": text[5]},
        {"question": "Why?", "max_tokens": 25, "temperature": 0.9, "seed": 3},
        {"question": "Why?", "max_tokens": 25, "temperature": 0.9, "seed": 4},
        {"question": "Is it lit?", "max_tokens": 60, "response_format": SCHEMA},
        {"question": "Where?", "max_tokens": 7, "system": "Be brief."},
        {"question": "And then?", "max_tokens": 30, "before": ("Who lit it?", "The keeper.")},
        *(
            {"question": f"With {stack}?", "extra_body": {"speculation": stack}}
            for stack in ("off", "retrieval")
        ),
    ]
    expected = [answer(alone, each) for each in wanted]
    assert at_once(server.client(), wanted) == expected
    assert len({content for content, _ in expected}) == len(wanted)


@pytest.mark.parametrize("stack", STACKS)
def test_joining_and_leaving_at_random(server: Running, alone: openai.OpenAI, stack: str) -> None:
    wanted = [
        {"question": f"Question {i}?", "max_tokens": 5 + 9 * (i % 4), "extra_body": {"speculation": stack}}
        for i in range(7)
    ]
    leaving = partial(leave, server.client(), stack)
    with ThreadPoolExecutor(3) as pool:
        left = [pool.submit(leaving, pieces) for pieces in (1, 2, 4)]
        made = at_once(server.client(), wanted)
        for each in left:
            each.result()
    assert made == [answer(alone, each) for each in wanted]
    until(lambda: not server.worker.running)


def leave(client: openai.OpenAI, stack: str, pieces: int) -> None:
    """Disconnect from a long answer after some pieces of it."""
    options = {"max_tokens": 2000, "stream": True, "extra_body": {"speculation": stack}}
    with complete(client, f"For {pieces} pieces?", **options) as stream:
        for _ in zip(range(pieces + 1), stream, strict=False):
            pass


def test_a_request_joins_those_that_run_and_leaves_before_them(server: Running) -> None:
    client = server.client()
    with complete(client, "Long?", max_tokens=3000, stream=True) as stream:
        next(stream)
        for _ in range(3):
            assert complete(client, "Short?", max_tokens=3).usage.completion_tokens == 3
        (long,) = [job for job in server.worker.running.values() if job.request.question == "Long?"]
        said = len(long.tally.token_ids)
        until(lambda: len(long.tally.token_ids) > said)
    until(lambda: not server.worker.running)
    assert long.cancelled
    assert long.tally.finished is None


def test_a_long_prompt_is_read_in_pieces_between_the_tokens_of_others(
    server: Running, alone: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that the other sequence gets while the prompt is read."""
    monkeypatch.setattr(engines_module, "piece_of", lambda *_: 16)
    client, said = server.client(), []
    question = "why " * 100
    with complete(client, "Long?", max_tokens=3000, stream=True, extra_body={"speculation": "off"}):
        until(lambda: server.serves("Long?"))
        (long,) = [job for job in server.worker.running.values() if job.request.question == "Long?"]
        post = Job.post

        def counted(job: Job, event: ChatEvent) -> None:
            if job.request.question == question:
                said.append(len(long.tally.token_ids))
            post(job, event)

        monkeypatch.setattr(Job, "post", counted)
        with complete(client, question, max_tokens=4, stream=True, system="Another beginning.") as reading:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in reading)
    assert text == answer(alone, {"question": question, "max_tokens": 4, "system": "Another beginning."})[0]
    assert len(said) > 20
    assert all(after - before <= 2 for before, after in itertools.pairwise(said))
    until(lambda: not server.worker.running)


def test_a_conversation_returns_to_the_place_that_holds_it(server: Running) -> None:
    client = server.client()
    first = complete(client, "Who lit the lamp in this place?", max_tokens=20)
    for other in ("What?", "Which one?"):
        complete(client, other)
    text, known = first.choices[0].message.content, first.usage.prompt_tokens
    second = complete(client, "And then?", before=("Who lit the lamp in this place?", text))
    assert second.usage.prompt_tokens_details.cached_tokens >= known + 19


def test_a_prompt_that_another_answer_began_with_is_not_read_again(
    server: Running, alone: openai.OpenAI
) -> None:
    client, question = server.client(), "Who reads all of this at the same time?"
    with complete(client, question, max_tokens=3000, stream=True) as stream:
        next(stream)
        until(lambda: any(job.tally.token_ids for job in [*server.worker.running.values()]))
        second = complete(client, question, max_tokens=20)
        third = complete(client, question + " And why?", max_tokens=20)
    usage = second.usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    assert third.usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens - 30
    assert second.choices[0].message.content == answer(alone, {"question": question, "max_tokens": 20})[0]
    expected = answer(alone, {"question": question + " And why?", "max_tokens": 20})[0]
    assert third.choices[0].message.content == expected
    until(lambda: not server.worker.running)


def test_the_documents_are_kept_once(server: Running, engines: ForkedEngines) -> None:
    at_once(server.client(), [{"question": f"{i}?"} for i in range(WIDTH)])
    shared = [seat.engine.full.storage.view(0, engines.shared) for seat in engines.seats if seat.shared]
    assert len(shared) == WIDTH
    assert engines.shared > len(BOOK) // 2
    origin = engines.origin.full.storage.view(0, 1).keys.data_ptr()
    assert {view.keys.data_ptr() for view in shared} == {origin}


def test_memory_that_runs_out_refuses_one_request_with_the_numbers(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.client()
    with complete(client, "Long?", max_tokens=3000, stream=True) as stream:
        next(stream)
        monkeypatch.setattr(engines_module, "free_bytes", lambda _device: 12)
        with pytest.raises(
            openai.InternalServerError, match=r"tokens of keys and values take .* 12 B are free"
        ) as no:
            complete(client, "Much?", max_tokens=3090)
        assert (no.value.status_code, no.value.code) == (503, "out_of_memory")
        assert "answers in progress: 1" in no.value.message
        monkeypatch.undo()
        (long,) = server.worker.running.values()
        said = len(long.tally.token_ids)
        until(lambda: len(long.tally.token_ids) > said)
        assert complete(client, "Much?", max_tokens=5).usage.completion_tokens == 5
    until(lambda: not server.worker.running)


def test_an_error_of_one_request_is_its_own(server: Running, engines: ForkedEngines) -> None:
    client = server.client()
    with complete(client, "Long?", max_tokens=3000, stream=True) as stream:
        next(stream)
        with pytest.raises(openai.BadRequestError, match="top-p"):
            complete(client, "Wrong?", top_p=0)
        with pytest.raises(openai.BadRequestError, match="too many"):
            complete(client, "why " * 5000)
        until(lambda: len(server.worker.running) == 1)
    until(lambda: not server.worker.running)
    assert not any(seat.busy for seat in engines.seats)


def test_two_seeds_of_one_prompt_draw_independently(server: Running) -> None:
    """Letters at the same place of two answers to one prompt agree no more often than by chance."""
    wanted = [
        {"question": "Say!", "max_tokens": 300, "temperature": 5.0, "seed": seed} for seed in range(WIDTH)
    ]
    first, second, third = (content for content, _ in at_once(server.client(), wanted))
    for one, other in ((first, second), (second, third), (first, third)):
        pairs = list(zip(one, other, strict=False))
        chance = sum(a == b for a in one for b in other) / (len(one) * len(other))
        assert sum(a == b for a, b in pairs) / len(pairs) < chance + 0.1


def test_what_cannot_be_forked_answers_one_at_a_time(session: ChatSession) -> None:
    assert lender(session, 1).width == 1
    whole: Any = SimpleNamespace(engine=SimpleNamespace(forkable=None), transcript=session.transcript)
    assert lender(whole, 4).width == 1


def test_the_event_loop_is_woken_once_for_all_answers(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken, texts = list[int](), list[Any]()

    def counted(items: list[Any]) -> None:
        if items:
            woken.append(len(items))
        texts.extend(each for _, item in items if isinstance(item, list) for each in item)
        hand_over(items)

    def together() -> bool:
        """After at most one step of the first, wait until all have asked."""
        until(lambda: met or len(worker.running) + len(worker.queue) == WIDTH)
        met.append(True)
        return admit()

    worker, hand_over, met = server.worker, worker_module.hand_over, list[bool]()
    admit = worker._admit
    monkeypatch.setattr(worker, "_admit", together)
    monkeypatch.setattr(worker_module, "hand_over", counted)
    at_once(server.client(), [{"question": f"{i}?", "max_tokens": 60} for i in range(WIDTH)])
    until(lambda: not server.worker.running)
    assert max(woken) == WIDTH
    assert len(woken) < 0.8 * sum(isinstance(each, Text) for each in texts)


def test_common_beginnings() -> None:
    numbers = list(range(1500))
    for length in (0, 1, 511, 512, 1024, 1400):
        assert common(numbers, [*numbers[:length], -1]) == length
    assert common(numbers, numbers[:1024]) == 1024
    assert common([], numbers) == 0


def test_clients_that_come_and_go_for_a_while(server: Running, alone: openai.OpenAI) -> None:
    """The soak test of ``support.soak``, briefly: nothing is lost, and every answer is the one that it is alone."""
    seen = soak.run(server.base_url, clients=4, seconds=3.0, longest=32, leaves=0.3)
    assert (seen.errors, seen.differing) == ([], [])
    assert seen.texts
    assert seen.left
    for (question, most), text in seen.texts.items():
        assert answer(alone, {"question": question, "max_tokens": most, "temperature": 0})[0] == text
    until(lambda: not server.worker.running)
    assert len(server.worker.queue) == 0
