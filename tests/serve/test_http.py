"""The server over a scripted engine: access control, queueing, errors and disconnects."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from support.fakes import answer_events
from support.serving import PATIENCE, Running, serving, until

from triforce_chat.chat.events import ChatEvent
from triforce_chat.engine.events import Text
from triforce_chat.errors import ModelError, OutOfMemory, UsageError
from triforce_chat.serve import app as app_module
from triforce_chat.serve.app import ServedModel
from triforce_chat.serve.chat_request import ChatCompletionRequest
from triforce_chat.serve.worker import MAX_QUEUED, MAX_QUEUED_PER_CLIENT

TOKEN = "open-sesame"
SERVED = ServedModel("tiny", 1000)


class Scripted:
    """Answers "You said: ..." once it may, or raises the error that a test set for the question."""

    def __init__(self) -> None:
        self.may, self.goes_on = threading.Event(), threading.Event()
        self.may.set()
        self.goes_on.set()  # after each piece of its text
        self.asked: list[str] = []
        self.closed: list[str] = []
        self.errors: dict[str, Exception] = {}

    def answer(self, request: ChatCompletionRequest) -> Generator[ChatEvent, None, None]:
        self.asked.append(request.question)
        events = answer_events(f"You said: {request.question}", prompt=100, cached=10)
        try:
            yield events[0]
            while not self.may.wait(0.005):
                yield events[0]
            if request.question in self.errors:
                raise self.errors[request.question]
            for event in events[1:]:
                yield event
                if isinstance(event, Text):
                    self.goes_on.wait(PATIENCE)
        finally:
            self.closed.append(request.question)


@pytest.fixture
def script() -> Scripted:
    return Scripted()


@pytest.fixture
def server(script: Scripted) -> Iterator[Running]:
    with serving(script.answer, SERVED) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with serving(Scripted().answer, SERVED, TOKEN) as running:
        yield running


@pytest.fixture(scope="module")
def open_() -> Iterator[Running]:
    with serving(Scripted().answer, SERVED) as running:
        yield running


def ask(client: openai.OpenAI, question: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    return client.chat.completions.create(model="default", messages=messages, **options)


def post(server: Running, **more: Any) -> Any:
    return server.http.post("chat/completions", **more)


def health(server: Running, **more: Any) -> Any:
    return server.http.get("../health", **more)


def ends(server: Running) -> dict[str, str]:
    """How many answers have ended in each way, by ``/metrics``."""
    lines = server.http.get("../metrics").text.splitlines()
    found = (re.fullmatch(r'triforce_chat_requests_total\{end="(\w+)"\} (\d+)', line) for line in lines)
    return {match[1]: match[2] for match in found if match}


WANTED = {"model": "default", "messages": [{"role": "user", "content": "Why?"}]}


# Queueing


@contextmanager
def held(script: Scripted, server: Running) -> Iterator[ThreadPoolExecutor]:
    """Keep the engine busy with a first question for the duration of the block."""
    script.may.clear()
    with ThreadPoolExecutor(MAX_QUEUED + 8) as pool:
        first = pool.submit(ask, server.client("first"), "first")
        until(lambda: script.asked == ["first"])
        try:
            yield pool
        finally:
            script.may.set()
        assert first.result(PATIENCE).choices[0].message.content == "You said: first"


def queued(
    pool: ThreadPoolExecutor, server: Running, client: openai.OpenAI, question: str, **options: Any
) -> Future[Any]:
    """Ask, and wait until the question is queued."""
    before = len(server.worker.queue)
    waits = pool.submit(ask, client, question, **options)
    until(lambda: len(server.worker.queue) == before + 1)
    return waits


def test_two_clients_take_turns(script: Scripted, server: Running) -> None:
    many, few = server.client("many"), server.client("few")
    with held(script, server) as pool:
        for question in ("m1", "m2", "m3", "m4"):
            queued(pool, server, many, question)
        for question in ("f1", "f2"):
            queued(pool, server, few, question)
    assert script.asked == ["first", "m1", "f1", "m2", "f2", "m3", "m4"]
    assert [job.request.question for job in server.jobs] == script.asked


def test_users_of_one_client_take_turns(script: Scripted, server: Running) -> None:
    client = server.client()
    with held(script, server) as pool:
        for question in ("m1", "m2", "f1"):
            queued(pool, server, client, question, user=question[0])
    assert script.asked == ["first", "m1", "f1", "m2"]


def test_one_at_a_time(script: Scripted, server: Running) -> None:
    with held(script, server) as pool:
        waiting = queued(pool, server, server.client(), "second")
        response = health(server).json()
        assert response == {"status": "ok", "busy": True, "running": 1, "waiting": 1}
        assert script.asked == ["first"]
    assert waiting.result(PATIENCE).usage.model_dump()["timing"]["queued_s"] > 0
    assert script.closed == ["first", "second"]
    assert health(server).json()["busy"] is False


def test_a_full_queue(script: Scripted, server: Running) -> None:
    with held(script, server) as pool:
        for n in range(MAX_QUEUED):
            queued(pool, server, server.client(f"key {n // MAX_QUEUED_PER_CLIENT}"), f"question {n}")
        with pytest.raises(openai.RateLimitError) as refused:
            ask(server.client("late"), "too late")
        assert refused.value.code == "queue_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1
    assert "too late" not in script.asked
    assert len(script.asked) == 1 + MAX_QUEUED


def test_one_client_cannot_fill_the_queue(script: Scripted, server: Running) -> None:
    greedy = server.client("greedy")
    with held(script, server) as pool:
        for n in range(MAX_QUEUED_PER_CLIENT):
            queued(pool, server, greedy, f"question {n}")
        with pytest.raises(openai.RateLimitError):
            ask(greedy, "one more")
        queued(pool, server, server.client("modest"), "modest")
    assert script.asked[:3] == ["first", "question 0", "modest"]


# Disconnects


def test_a_client_that_disconnects_while_queued_is_not_answered(script: Scripted, server: Running) -> None:
    with held(script, server) as pool:
        connection = server.send_question("never mind")
        until(lambda: len(server.worker.queue) == 1)
        connection.close()
        until(lambda: len(server.worker.queue) == 0)
        queued(pool, server, server.client(), "next")
    assert script.asked == ["first", "next"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_during_its_answer_frees_the_engine(
    script: Scripted, server: Running, stream: bool
) -> None:
    script.may.clear()
    if stream:
        begun = ask(server.client(), "never mind", stream=True)
        assert next(begun).choices[0].delta.role == "assistant"
        begun.close()
    else:
        connection = server.send_question("never mind")
        until(lambda: server.serves("never mind"))
        connection.close()
    until(lambda: script.closed == ["never mind"])
    script.may.set()
    assert ask(server.client(), "next").choices[0].message.content == "You said: next"
    assert server.jobs[0].cancelled
    assert server.jobs[0].tally.finished is None
    until(lambda: ends(server) == {"stopped": "1", "stop": "1"})


# Errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (UsageError("top-p must be above 0"), openai.BadRequestError, "top-p must be above 0"),
        (ModelError("the template cannot render this"), openai.BadRequestError, "cannot render"),
        (MemoryError(), openai.InternalServerError, "out of memory"),
        (
            OutOfMemory("out of memory; choose a smaller --context"),
            openai.InternalServerError,
            "out of memory$",
        ),
    ],
)
def test_errors_of_the_engine(
    script: Scripted, server: Running, error: Exception, kind: type[Exception], message: str, stream: bool
) -> None:
    script.errors["bad"] = error
    with pytest.raises(openai.APIError, match=message) as failed:
        list(ask(server.client(), "bad", stream=stream))
    assert stream or isinstance(failed.value, kind)  # a stream has begun: its status cannot change
    assert ask(server.client(), "good").choices[0].finish_reason == "stop"


def test_the_traceback_of_a_bug_stays_on_the_server(
    script: Scripted, server: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    script.errors["bad"] = ZeroDivisionError("something private")
    with pytest.raises(openai.InternalServerError) as failed:
        ask(server.client(), "bad")
    assert "private" not in failed.value.message
    assert "something private" in capfd.readouterr().err
    assert ask(server.client(), "good").choices[0].finish_reason == "stop"
    until(lambda: ends(server) == {"error": "1", "stop": "1"})


def test_closing_rejects_waiting_clients(script: Scripted, server: Running) -> None:
    with held(script, server) as pool:
        waiting = queued(pool, server, server.client(), "second")
        server.worker.close()
        with pytest.raises(openai.InternalServerError, match="shutting down") as refused:
            waiting.result(PATIENCE)
        assert refused.value.status_code == 503
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            ask(server.client(), "third")
    assert script.asked == ["first"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stopped_answer_ends_with_an_error(script: Scripted, server: Running, stream: bool) -> None:
    script.may.clear()
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(lambda: list(ask(server.client(), "first", stream=stream)))
        until(lambda: script.asked)
        server.worker.close()
        server.worker.stop()
        with pytest.raises(openai.APIError, match="shutting down"):
            waits.result(PATIENCE)


def test_a_stream_is_not_behind_its_answer(script: Scripted, server: Running) -> None:
    script.goes_on.clear()
    chunks = ask(server.client(), "Why?", stream=True)
    assert next(chunks).choices[0].delta.role == "assistant"
    assert "You said: Why?".startswith(next(chunks).choices[0].delta.content)
    assert script.closed == []
    script.goes_on.set()
    assert list(chunks)[-1].choices[0].finish_reason == "stop"


# Access control


@pytest.mark.parametrize("path", ["../health", "models", "chat/completions", "../nowhere"])
def test_every_path_requires_the_token(guarded: Running, path: str) -> None:
    for given in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer"},
    ):
        response = guarded.http.get(path, headers=given)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_the_page_is_shown_without_the_token_for_which_it_asks(guarded: Running) -> None:
    response = guarded.http.get("..")
    assert response.status_code == 200
    assert "<html" in response.text


def test_the_token_admits_clients(guarded: Running) -> None:
    assert ask(guarded.client(TOKEN), "Why?").choices[0].message.content == "You said: Why?"
    with pytest.raises(openai.AuthenticationError):
        ask(guarded.client("wröng".encode().decode("latin-1")[:2]), "Why?")
    given = {"Authorization": f"bearer {TOKEN}", "Host": "chat.example.org"}  # behind a proxy
    assert health(guarded, headers=given).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]"]
)
def test_local_hosts_are_admitted(open_: Running, host: str) -> None:
    assert health(open_, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::2]"],
)
@pytest.mark.parametrize("path", ["models", ".."])
def test_other_hosts_are_rejected(open_: Running, host: str, path: str) -> None:
    response = open_.http.get(path, headers={"Host": host})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"


def test_web_pages_cannot_send_requests(open_: Running) -> None:
    origin = {"Origin": "https://evil.example"}
    response = post(open_, content=b"{}", headers={**origin, "Content-Type": "text/plain"})
    assert response.status_code == 415
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    answers = [
        response,
        open_.http.options("chat/completions", headers=preflight),
        post(open_, json=WANTED, headers=origin),
    ]
    assert [answer.status_code for answer in answers[1:]] == [405, 200]
    assert not [name for answer in answers for name in answer.headers if name.startswith("access-control")]


def test_all_errors_have_the_same_form(open_: Running) -> None:
    answers = {
        404: open_.http.get("nowhere"),
        405: open_.http.get("chat/completions"),
        400: post(open_, json={**WANTED, "n": 2}),
        415: post(open_, data={"a": "b"}),
    }
    for status, response in answers.items():
        assert response.status_code == status
        assert set(response.json()) == {"error"}
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert answers[400].json()["error"]["param"] == "n"


def test_the_size_of_a_request_is_limited(open_: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_BODY_BYTES", 1000)
    head = {"Content-Type": "application/json"}
    assert post(open_, content=b" " * 1001, headers=head).status_code == 413
    pieces = iter([b" " * 600, b" " * 600])
    assert post(open_, content=pieces, headers=head).status_code == 413
    assert post(open_, json=WANTED).status_code == 200


def test_a_lone_surrogate_in_a_name(open_: Running) -> None:
    response = post(
        open_,
        content=b'{"model": "\\ud800", "messages": []}',
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
