"""The interfaces beside chat completions, through OpenAI's client: responses, completions, metrics, other origins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator
from typing import Any

import openai
import pytest
from support.fakes import answer_events
from support.serving import Running, serving

from triforce_chat.chat.events import ChatEvent, Citation, Source, Sourced
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.serve.adapter import turn_keys
from triforce_chat.serve.app import ServedModel
from triforce_chat.serve.chat_request import ChatCompletionRequest, parse_fields
from triforce_chat.serve.metrics import Metrics
from triforce_chat.serve.worker import Job

SOURCED = Sourced((Source("Book", "page", 7, 0.6, "A lamp."),), (Citation("page", 7, 7, None, True),), 0.1)
PROMPT, CACHED = 100, 10  # tokens
ORIGIN = "https://chat.example"
ASKED: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def answer(request: ChatCompletionRequest) -> Generator[ChatEvent, None, None]:
    yield from answer_events(f"{request.system}: {request.question}", prompt=PROMPT, cached=CACHED)
    if request.sources:
        yield SOURCED


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(answer, ServedModel("/home/me/models/tiny", 1000), origins=[ORIGIN]) as running:
        yield running


def test_a_response(server: Running) -> None:
    got = server.openai.responses.create(
        model="default", instructions="Be brief.", input="Why?", max_output_tokens=9
    )
    assert (got.output_text, got.status, got.model) == ("Be brief.: Why?", "completed", "tiny")
    assert got.usage
    assert (got.usage.input_tokens, got.usage.input_tokens_details.cached_tokens) == (100, 10)
    assert got.usage.total_tokens == 100 + got.usage.output_tokens
    assert got.model_dump()["sources"][0]["page"] == 7


def test_a_streamed_response(server: Running) -> None:
    with server.openai.responses.stream(model="default", input=ASKED) as stream:
        events = list(stream)
        whole = stream.get_final_response()
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == whole.output_text == "Be brief.: Why?"


def test_a_response_continues_a_conversation(server: Running) -> None:
    first = server.openai.responses.create(model="default", input="Who?")
    messages: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
        *(item.model_dump() for item in first.output),
        {"role": "user", "content": "Why?"},
    ]
    server.openai.responses.create(model="default", input=messages)
    assert server.jobs[-1].request.turns == (("Who?", "None: Who?"),)


def test_what_a_response_cannot_have(server: Running) -> None:
    fields: tuple[Any, ...] = (
        {"previous_response_id": "x"},
        {"tools": [{"type": "web_search"}]},
        {"truncation": "auto"},
    )
    inputs: tuple[Any, ...] = (
        [{"type": "function_call"}],
        [{"role": "user", "content": [{"type": "input_image"}]}],
        7,
    )
    for wrong in fields:
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            server.openai.responses.create(model="default", input="Why?", **wrong)
    for input_ in inputs:
        with pytest.raises(openai.BadRequestError, match="input"):
            server.openai.responses.create(model="default", input=input_)


def test_a_completion(server: Running) -> None:
    got = server.openai.completions.create(model="tiny", prompt="Why?", max_tokens=9)
    assert (got.choices[0].text, got.choices[0].finish_reason) == ("None: Why?", "stop")
    parts = server.openai.completions.create(
        model="tiny", prompt="Why?", stream=True, stream_options={"include_usage": True}
    )
    chunks = list(parts)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "None: Why?"
    assert chunks[-1].usage
    assert chunks[-1].usage.prompt_tokens == 100
    with pytest.raises(openai.BadRequestError, match="prompt"):
        server.openai.completions.create(model="tiny", prompt=["a", "b"])


def test_sources_of_an_answer_unless_they_are_not_wanted(server: Running) -> None:
    create = server.openai.chat.completions.create
    whole = create(model="default", messages=ASKED).model_dump()
    assert whole["sources"] == [
        {"document": "Book", "unit": "page", "page": 7, "share": 0.6, "sentence": "A lamp.", "where": ""}
    ]
    assert whole["citations"][0]["holds"] is True
    *_, last = create(model="default", messages=ASKED, stream=True)
    assert last.model_dump()["sources"] == whole["sources"]
    without = create(model="default", messages=ASKED, extra_body={"sources": False})
    assert "sources" not in without.model_dump()


def test_the_true_name_of_a_model_in_a_folder(server: Running) -> None:
    (model,) = server.openai.models.list()
    assert model.id == "tiny"
    for name in ("tiny", "default", "/home/me/models/tiny"):
        assert server.openai.chat.completions.create(model=name, messages=ASKED).model == "tiny"


def test_metrics(server: Running) -> None:
    url = server.base_url.removesuffix("v1") + "metrics"
    server.openai.completions.create(model="tiny", prompt="Why?")
    while server.worker.running:
        time.sleep(0.01)
    reply = server.http.get(url)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    requests = float(values['triforce_chat_requests_total{end="stop"}'])
    assert requests >= 1
    assert float(values["triforce_chat_prompt_tokens_total"]) == PROMPT * requests
    assert float(values["triforce_chat_cached_prompt_tokens_total"]) == CACHED * requests
    assert float(values["triforce_chat_completion_tokens_total"]) > 0
    assert values["triforce_chat_busy"] == "0"
    assert {line.split()[2] for line in lines if line.startswith("# TYPE")} == {
        name.split("{")[0] for name in values
    }


def test_metrics_count_the_time_of_stopped_answers_with_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    async def stopped() -> Job:
        job = Job("someone", ChatCompletionRequest((), "Why?"))
        job.post(Prefilled(90, 120, 40, 0.5))
        job.post(Prefilled(120, 120, 40, 0.7))
        for token in range(3):
            now[0] += 0.25
            job.post(Text((token,), "so "))
        now[0] += 9
        job.cancelled = True
        return job

    metrics = Metrics()
    metrics.ended(asyncio.run(stopped()))
    lines = [line for line in metrics.text(0, 0).splitlines() if not line.startswith("#")]
    values = dict(line.removeprefix("triforce_chat_").rsplit(" ", 1) for line in lines)
    assert values['requests_total{end="stopped"}'] == "1"
    assert values["completion_tokens_total"] == "3"
    assert values["decode_seconds_total"] == "0.75"
    assert values["prefill_seconds_total"] == "0.7"
    assert (values["prompt_tokens_total"], values["cached_prompt_tokens_total"]) == ("120", "40")


def test_pages_of_a_named_origin_may_call(server: Running) -> None:
    url = server.base_url + "/models"
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    asked = server.http.options(url, headers={"Origin": ORIGIN, **wanted})
    assert asked.headers["access-control-allow-origin"] == ORIGIN
    assert server.http.get(url, headers={"Origin": ORIGIN}).headers["access-control-allow-origin"] == ORIGIN
    refused = server.http.options(url, headers={"Origin": "https://evil.example", **wanted})
    assert "access-control-allow-origin" not in refused.headers


def test_without_a_named_origin_no_page_may_call() -> None:
    with serving(answer, ServedModel("tiny", 1000)) as alone:
        got = alone.http.get(alone.base_url + "/models", headers={"Origin": ORIGIN})
        assert "access-control-allow-origin" not in got.headers


def test_a_number_of_hundreds_of_digits_is_a_bad_request(server: Running) -> None:
    body = {"model": "tiny", "messages": ASKED, "temperature": 10**400}
    assert server.http.post(server.base_url + "/chat/completions", json=body).status_code == 400


@pytest.mark.parametrize(
    ("asked", "stack"), [("off", "autoregressive"), ("triforce", "triforce"), (None, None)]
)
def test_the_stack_of_a_request(asked: str | None, stack: str | None) -> None:
    request = parse_fields({"model": "tiny", "messages": ASKED, "speculation": asked}, ("tiny",))
    assert request.speculation == stack


def test_an_unknown_stack(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="speculation: must be one of off, auto, triforce"):
        server.openai.chat.completions.create(
            model="tiny", messages=ASKED, extra_body={"speculation": "fast"}
        )


def test_thousands_of_turns_are_hashed_in_linear_time() -> None:
    turns = tuple((f"question {n}", f"answer {n}") for n in range(10_000))
    began = time.process_time()
    keys = list(turn_keys(ChatCompletionRequest(turns, "And?"), "So."))
    assert time.process_time() - began < 2
    assert len(set(keys)) == 10_001
    assert list(turn_keys(ChatCompletionRequest(turns[:3], "x")))[:3] == keys[:3]
