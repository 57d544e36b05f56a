"""The server with a real engine and a document, used through OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from support.serving import CONTEXT, Running, save_chat_model, serving, until
from typer.testing import CliRunner

from triforce_chat.chat.events import ChatEvent
from triforce_chat.chat.session import ChatSession
from triforce_chat.cli.app import app
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Text
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.serve.adapter import SessionAdapter
from triforce_chat.serve.app import ServedModel
from triforce_chat.serve.chat_request import ChatCompletionRequest
from triforce_chat.settings.settings import Settings

SAYS = 12  # tokens of an answer
BOOK = "The keeper lit the lamp and wrote of it. " * 20
LEAVING = "Wait until I have left."  # a question whose answer pauses until its client has disconnected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = save_chat_model(tmp_path_factory.mktemp("model"))
    (made / "book.txt").write_text(BOOK)
    return made


@pytest.fixture(scope="module")
def settings(folder: Path) -> Settings:
    return Settings(model=str(folder), device="cpu", draft="none", stack="lookup", max_tokens=SAYS)


@pytest.fixture(scope="module")
def session(settings: Settings) -> ChatSession:
    engine, loaded = load_engine(EngineSpec(settings))
    made = ChatSession(engine, loaded, settings)
    made.add(Document("book", "book.txt", (Page(1, BOOK),)))
    return made


@pytest.fixture(scope="module")
def server(session: ChatSession) -> Iterator[Running]:
    adapter = SessionAdapter(session)

    def answer(request: ChatCompletionRequest) -> Generator[ChatEvent, None, None]:
        for event in adapter.answer(request):
            yield event
            if request.question == LEAVING and isinstance(event, Text):
                until(lambda: all(job.cancelled for job in running.worker.running.values()))

    with serving(answer, ServedModel("tiny", session.context_limit, ("book",))) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.client()


def asked(*texts: str, system: str | None = None) -> Any:
    """Messages that alternate between question and answer."""
    said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return [{"role": "system", "content": system}, *said] if system else said


def complete(client: openai.OpenAI, *texts: str, **options: Any) -> Any:
    model, system = options.pop("model", "default"), options.pop("system", None)
    return client.chat.completions.create(model=model, messages=asked(*texts, system=system), **options)


def command_line(folder: Path, question: str, *flags: object) -> dict[str, Any]:
    place = ("--model", folder, "--device", "cpu", "--draft", "none", "--stack", "lookup", "--no-cache")
    arguments = ("ask", folder / "book.txt", question, "--json", *place, *flags)
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


# Answers


def test_an_answer_is_that_of_the_command_line(client: openai.OpenAI, folder: Path) -> None:
    done = complete(client, "Who lit it?", system="Be brief.")
    printed = command_line(folder, "Who lit it?", "--system", "Be brief.", "--max-tokens", SAYS)
    choice = done.choices[0]
    assert (done.object, done.model, choice.index) == ("chat.completion", "tiny", 0)
    assert choice.message.role == "assistant"
    assert choice.message.content == printed["text"]
    assert choice.finish_reason == printed["finish_reason"] == "length"
    assert done.usage.prompt_tokens == printed["usage"]["prompt_tokens"]
    assert done.usage.completion_tokens == SAYS
    assert done.usage.total_tokens == done.usage.prompt_tokens + SAYS


def test_a_sampled_answer_is_that_of_the_command_line(client: openai.OpenAI, folder: Path) -> None:
    done = complete(client, "Who?", temperature=1.5, top_p=0.9, seed=7, extra_body={"top_k": 40})
    flags = ("--temperature", 1.5, "--top-p", 0.9, "--seed", 7, "--top-k", 40)
    printed = command_line(folder, "Who?", *flags, "--max-tokens", SAYS)
    assert done.choices[0].message.content == printed["text"]
    assert printed["text"] != complete(client, "Who?").choices[0].message.content


def test_a_seed_selects_a_stack_that_ignores_the_clock(session: ChatSession) -> None:
    engine, automatic = session.engine, replace(session.settings, stack="auto")
    adapter = SessionAdapter(ChatSession(engine, session.loaded, automatic))
    stacks = []
    for settings in ((), (("seed", 7),), (("temperature", 1.0),)):
        assert list(adapter.answer(ChatCompletionRequest((), "Who?", settings=settings)))
        stacks.append((engine.options.name, engine.options.repeatable))
    assert stacks == [("auto", False), ("auto", True), ("auto", False)]


def test_a_conversation_has_the_tokens_of_a_chat(client: openai.OpenAI, session: ChatSession) -> None:
    first = complete(client, "Who?").choices[0].message.content
    second = complete(client, "Who?", first, "And where?")
    transcript = session.transcript.without_turns()
    chat = ChatSession(session.engine, session.loaded, session.settings, transcript=transcript)
    for question in ("Who?", "And where?"):
        for _ in chat.ask(question):
            pass
    assert [turn.answer for turn in chat.turns] == [first, second.choices[0].message.content]
    last = chat.turns[-1].tally.finished
    assert last is not None
    assert second.usage.prompt_tokens == last.prompt_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= last.prompt_tokens - 40


def test_an_answer_of_another_origin_is_encoded_as_text(client: openai.OpenAI) -> None:
    mine, other = (complete(client, "Who?", said, "And where?") for said in ("The keeper.", "Nobody."))
    assert mine.usage.prompt_tokens - other.usage.prompt_tokens == len("The keeper.") - len("Nobody.")


def test_the_book_is_read_once(client: openai.OpenAI, session: ChatSession) -> None:
    complete(client, "Who?")
    done = complete(client, "When?")
    assert done.usage.prompt_tokens > len(BOOK)  # a token is a byte
    assert done.usage.prompt_tokens_details.cached_tokens > len(BOOK)
    assert len(session.transcript.exchanges) == 0
    assert complete(client, "When?", system="Other.").usage.prompt_tokens_details.cached_tokens < 200


def test_usage_includes_speculation_figures(client: openai.OpenAI) -> None:
    usage = complete(client, "Who lit it?").usage.model_dump()
    assert usage["speculation"]["rounds"] > 0
    assert usage["speculation"]["tokens_per_round"] == SAYS / usage["speculation"]["rounds"]
    assert [level["name"] for level in usage["speculation"]["levels"]] == ["target"]
    assert usage["speculation"]["rebuilds"] == []
    assert usage["timing"]["first_token_s"] > 0
    assert usage["timing"]["ms_per_token"] > 0
    assert usage["timing"]["queued_s"] >= 0


def test_parts_of_a_content_are_joined(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "Who "}, {"type": "text", "text": "lit it?"}]
    done = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])
    assert done.choices[0].message.content == complete(client, "Who lit it?").choices[0].message.content


def test_an_answers_own_object_can_be_sent_back(client: openai.OpenAI) -> None:
    message = complete(client, "Who?").choices[0].message
    again: Any = [*asked("Who?"), message.model_dump(), *asked("Where?")]
    usage = client.chat.completions.create(model="default", messages=again).usage
    assert usage is not None
    assert usage.completion_tokens == SAYS


# Streams


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    whole = complete(client, "Who lit it?")
    chunks = list(complete(client, "Who lit it?", stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert {(chunk.id, chunk.object) for chunk in chunks} == {(chunks[0].id, "chat.completion.chunk")}
    assert len(chunks) > 3
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_with_usage(client: openai.OpenAI) -> None:
    *chunks, last = complete(client, "Who?", stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == SAYS
    assert last.usage.model_dump()["speculation"]["rounds"] > 0


def test_progress_of_reading_is_a_comment(server: Running) -> None:
    wanted = {"model": "default", "messages": asked("Who?", system="A new one."), "stream": True}
    response = server.http.post("chat/completions", json=wanted)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert any(line.startswith(": read 512 of ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith((": read ", "data: ")) for line in lines)


# Limits


def test_stop_strings(client: openai.OpenAI) -> None:
    text = complete(client, "Who lit it?").choices[0].message.content
    at = next(n for n in range(3, len(text)) if text[n].isascii() and text.find(text[n]) == n)
    for stop in (text[at], ["never said here", text[at]]):
        done = complete(client, "Who lit it?", stop=stop)
        assert done.choices[0].message.content == text[:at]
        assert done.choices[0].finish_reason == "stop"
    assert complete(client, "Who lit it?").choices[0].message.content == text


def test_max_tokens(client: openai.OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        done = complete(client, "Who?", **{name: 5})
        assert (done.usage.completion_tokens, done.choices[0].finish_reason) == (5, "length")


def test_a_request_that_does_not_fit_is_an_error_with_the_numbers(client: openai.OpenAI) -> None:
    fits = complete(client, "Who?").usage.prompt_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, "Who?", max_tokens=CONTEXT - fits + 1)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    for number in (f"{CONTEXT:,} tokens", f"have {fits:,}", f"take {CONTEXT - fits + 1:,}", "is 1 too many"):
        assert number in refused.value.message
    with pytest.raises(openai.BadRequestError, match="too many"):
        list(complete(client, "why " * CONTEXT, stream=True))


def test_without_max_tokens_an_answer_takes_what_is_left(client: openai.OpenAI) -> None:
    empty = complete(client, "w").usage.prompt_tokens
    done = complete(client, "w" * (CONTEXT - empty - 4))
    assert done.usage.total_tokens == CONTEXT
    assert done.usage.completion_tokens == 5


def test_invalid_settings(client: openai.OpenAI) -> None:
    for wrong, message in (
        ({"top_p": 0}, "top-p"),
        ({"temperature": -1}, "temperature"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            complete(client, "Who?", **wrong)
    assert complete(client, "Who?").usage.completion_tokens == SAYS


# Disconnects


def test_a_client_that_disconnects_from_a_stream_frees_the_engine(
    server: Running, client: openai.OpenAI
) -> None:
    stream = complete(client, LEAVING, stream=True, max_tokens=2000)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    until(lambda: [job.request.question for job in server.jobs][-1:] == [LEAVING])
    assert server.jobs[-1].cancelled
    assert len(server.jobs[-1].tally.token_ids) < 100
    assert complete(client, "Who lit it?").usage.prompt_tokens_details.cached_tokens > len(BOOK)


def has_tokens(server: Running, question: str) -> bool:
    """True once the answer to this question has its first tokens."""
    jobs = server.worker.running.values()
    return any(job.request.question == question and job.tally.token_ids for job in [*jobs])


def test_a_client_that_disconnects_before_its_answer_frees_the_engine(
    server: Running, client: openai.OpenAI
) -> None:
    before = len(server.jobs)
    connection = server.send_question(LEAVING)
    until(lambda: has_tokens(server, LEAVING))
    connection.close()
    until(lambda: len(server.jobs) > before)
    assert server.jobs[-1].cancelled
    assert len(server.jobs[-1].tally.token_ids) < 100
    assert complete(client, "Who?").usage.completion_tokens == SAYS


# Models


def test_the_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "triforce-chat")
    assert model.model_dump()["documents"] == ["book"]
    assert model.model_dump()["context"] == CONTEXT
    assert client.models.retrieve("default").id == client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt/4")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        complete(client, "Who?", model="gpt-4")
