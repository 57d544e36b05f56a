"""Thoughts over HTTP: in fields of their own, switched on and off, and sent back by clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseOutputMessage, ResponseReasoningItem
from support.serving import Running, save_chat_model, serving
from support.thinking_models import ANSWER, THOUGHT, save_thinking_model

from triforce_chat.chat.session import ChatSession
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.serve.adapter import SessionAdapter
from triforce_chat.serve.app import ServedModel
from triforce_chat.settings.settings import Settings

ASKED: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "Where?"}]}


def running(folder: Path) -> Iterator[Running]:
    settings = Settings(model=str(folder), device="cpu", draft="none", max_tokens=40)
    session = ChatSession(*load_engine(EngineSpec(settings)), settings)
    with serving(SessionAdapter(session).answer, ServedModel("tiny", session.context_limit)) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from running(save_thinking_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def thoughtless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from running(save_chat_model(tmp_path_factory.mktemp("model")))


def switched(**switches: bool) -> dict[str, Any]:
    return {"extra_body": {"chat_template_kwargs": switches}}


def test_a_thought_has_a_field_of_its_own(server: Running) -> None:
    made = server.openai.chat.completions.create(**ASKED)
    message = made.choices[0].message
    assert (message.content, getattr(message, "reasoning_content", None)) == (ANSWER, THOUGHT)
    assert made.usage
    assert made.usage.completion_tokens_details
    assert made.usage.completion_tokens_details.reasoning_tokens == len(THOUGHT) + 2


def test_a_stream_has_the_thought_before_the_answer(server: Running) -> None:
    deltas = [chunk.choices[0].delta for chunk in server.openai.chat.completions.create(**ASKED, stream=True)]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert ("".join(thoughts), "".join(delta.content or "" for delta in deltas)) == (THOUGHT, ANSWER)
    first = next(n for n, delta in enumerate(deltas) if delta.content)
    assert not any(thoughts[first:])


def test_a_request_switches_thoughts_off(server: Running) -> None:
    message = (
        server.openai.chat.completions.create(**ASKED, **switched(enable_thinking=False)).choices[0].message
    )
    assert message.content == ANSWER
    assert "reasoning_content" not in message.model_dump()
    again = (
        server.openai.chat.completions.create(**ASKED, **switched(enable_thinking=True)).choices[0].message
    )
    assert again.model_dump()["reasoning_content"] == THOUGHT


def test_a_client_may_send_a_thought_back(server: Running) -> None:
    said = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT}
    messages = [*ASKED["messages"], said, {"role": "user", "content": "And then?"}]
    prompts = [
        server.openai.chat.completions.create(model="default", messages=given).usage
        for given in (messages, [messages[0], {**said, "reasoning_content": None}, messages[2]])
    ]
    assert prompts[0]
    assert prompts[1]
    assert prompts[0].prompt_tokens == prompts[1].prompt_tokens


def test_the_responses_interface_counts_the_thought(server: Running) -> None:
    made = server.openai.responses.create(model="default", input="Where?")
    assert made.output_text == ANSWER
    assert made.usage
    assert made.usage.output_tokens_details.reasoning_tokens == len(THOUGHT) + 2


def test_a_response_has_the_thought_as_an_item_before_the_message(server: Running) -> None:
    thought, message = server.openai.responses.create(model="default", input="Where?").output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content
    assert [(part.type, part.text) for part in thought.content] == [("reasoning_text", THOUGHT)]
    assert (thought.id[:3], thought.summary, thought.status) == ("rs_", [], "completed")
    assert isinstance(message, ResponseOutputMessage)
    assert message.id[:4] == "msg_"


def test_a_streamed_response_ends_the_thought_before_the_message_begins(server: Running) -> None:
    with server.openai.responses.stream(model="default", input="Where?") as stream:
        events = list(stream)
        whole = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [(event.type, getattr(event, "output_index", None)) for event in events]
    assert [kind for kind in dict.fromkeys(kinds) if kind[1] is not None] == [
        ("response.output_item.added", 0),
        ("response.content_part.added", 0),
        ("response.reasoning_text.delta", 0),
        ("response.reasoning_text.done", 0),
        ("response.content_part.done", 0),
        ("response.output_item.done", 0),
        ("response.output_item.added", 1),
        ("response.content_part.added", 1),
        ("response.output_text.delta", 1),
        ("response.output_text.done", 1),
        ("response.content_part.done", 1),
        ("response.output_item.done", 1),
    ]
    assert (
        "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == THOUGHT
    )
    ended: list[Any] = [event.item for event in events if event.type == "response.output_item.done"]
    made: list[Any] = list(whole.output)
    assert [item.id for item in ended] == [item.id for item in made]
    assert isinstance(ended[0], ResponseReasoningItem)
    assert ended[0].content
    assert ended[0].content[0].text == THOUGHT


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_cut_in_its_thought_has_no_message(server: Running, stream: bool) -> None:
    asked: Any = {"model": "default", "input": "Where?", "max_output_tokens": 4}
    if stream:
        with server.openai.responses.stream(**asked) as parts:
            last = [event for event in parts if event.type == "response.incomplete"][-1]
        made = last.response
    else:
        made = server.openai.responses.create(**asked)
    (thought,) = made.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content
    assert THOUGHT.startswith(thought.content[0].text)
    assert (made.status, thought.status) == ("incomplete", "incomplete")


def test_a_client_may_send_the_items_of_a_response_back(server: Running) -> None:
    first = server.openai.responses.create(model="default", input="Where?")
    ask: Any = {"role": "user", "content": "Where?"}
    items: Any = [ask, *(item.model_dump() for item in first.output), {**ask, "content": "And then?"}]
    assert server.openai.responses.create(model="default", input=items).output_text == ANSWER
    assert server.jobs[-1].request.turns == (("Where?", ANSWER),)


def test_no_effort_is_no_thought(server: Running) -> None:
    made = server.openai.responses.create(model="default", input="Where?", reasoning={"effort": "none"})
    assert [item.type for item in made.output] == ["message"]
    chat = server.openai.chat.completions.create(**ASKED, reasoning_effort="none")
    assert "reasoning_content" not in chat.choices[0].message.model_dump()
    with pytest.raises(openai.BadRequestError, match="reasoning"):
        server.openai.responses.create(model="default", input="Where?", reasoning={"effort": "high"})
    with pytest.raises(openai.BadRequestError, match="on and off at once"):
        server.openai.chat.completions.create(
            **ASKED, reasoning_effort="none", **switched(enable_thinking=True)
        )


def test_a_model_without_thoughts_cannot_be_asked_for_them(thoughtless: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="does not think"):
        thoughtless.openai.chat.completions.create(**ASKED, **switched(enable_thinking=True))
    assert thoughtless.openai.chat.completions.create(**ASKED, **switched(enable_thinking=False)).choices


@pytest.mark.parametrize(
    "given", [{"enable_thinking": 1}, {"other": True}, {"enable_thinking": True, "thinking": False}]
)
def test_a_switch_is_true_or_false(server: Running, given: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match=r"chat_template_kwargs|enable_thinking"):
        server.openai.chat.completions.create(**ASKED, extra_body={"chat_template_kwargs": given})
