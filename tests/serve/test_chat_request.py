"""Request fields: each is supported, ignored because it has no effect, or an error that names it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforce_chat.serve.api_error import ApiError
from triforce_chat.serve.chat_request import IGNORED, NEUTRAL, ChatCompletionRequest, parse_request

USER = {"role": "user", "content": "Why?"}
MODEL = {"model": "default", "messages": [USER]}


def parsed(**fields: Any) -> ChatCompletionRequest:
    return parse_request(json.dumps({**MODEL, **fields}).encode(), ("tiny", "default"))


def error_of(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        parsed(**fields)
    return raised.value


def messages_of(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]


def test_questions_in_a_row_are_one() -> None:
    got = parsed(messages=messages_of("system", "user", "user", "assistant", "user", "user", "user"))
    assert got.turns == (("user 1\n\nuser 2", "assistant 3"),)
    assert got.question == "user 4\n\nuser 5\n\nuser 6"


def test_the_smallest_request() -> None:
    assert parsed() == ChatCompletionRequest(turns=(), question="Why?")


def test_all_supported_fields() -> None:
    got = parsed(
        messages=messages_of("system", "user", "assistant", "user", "assistant", "user"),
        temperature=0.5,
        top_p=1,
        seed=3,
        top_k=4,
        min_p=0.1,
        repetition_penalty=1.2,
        max_tokens=9,
        max_completion_tokens=9,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        user="somebody",
    )
    numbers = {"temperature": 0.5, "top_p": 1, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 3}
    assert got == ChatCompletionRequest(
        turns=(("user 1", "assistant 2"), ("user 3", "assistant 4")),
        question="user 5",
        system="system 0",
        settings=tuple(numbers.items()),
        max_tokens=9,
        stop=("a", "b"),
        stream=True,
        include_usage=True,
        user="somebody",
    )


def test_null_fields_count_as_missing() -> None:
    names = (
        "temperature",
        "seed",
        "max_tokens",
        "stop",
        "stream",
        "stream_options",
        "tools",
        "n",
        "logprobs",
    )
    assert parsed(**dict.fromkeys(names)) == parsed()


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_fields_without_effect_are_ignored(name: str) -> None:
    assert parsed(**{name: {"anything": 1}}) == parsed()


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_unsupported_values_are_errors(name: str) -> None:
    meaning = {"chat_template_kwargs": {"enable_thinking": False}} if name == "reasoning_effort" else {}
    for value in NEUTRAL[name]:
        assert parsed(**{name: value}) == parsed(**meaning)
    for value in (2, True, "required", {"type": "json_object"}, [{"type": "function"}], 0.5):
        if value not in NEUTRAL[name]:
            error = error_of(**{name: value})
            assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
            assert name in error.message


def test_an_unknown_field_is_an_error() -> None:
    error = error_of(temprature=0.5)
    assert (error.status, error.param, error.code) == (400, "temprature", "unknown_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 1001}, "stop"),
        ({"user": 5}, "user"),
        ({"n": 2}, "n"),
    ],
)
def test_invalid_values(fields: dict[str, Any], param: str) -> None:
    error = error_of(**fields)
    assert (error.status, error.param) == (400, param)
    assert error.message.startswith(param)


def test_an_unknown_model() -> None:
    error = error_of(model="gpt-4")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert parsed(model="tiny") == parsed()


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Why?", "messages"),
        (["Why?"], "messages[0]"),
        ([{"content": "Why?"}], "messages[0].role"),
        ([{"role": "tool", "content": "Why?"}], "messages[0].role"),
        ([{"role": ["user"], "content": "Why?"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": ""}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content"),
        ([{**USER, "name": "Bob"}], "messages[0].name"),
        ([{**USER, "tool_calls": [{}]}], "messages[0].tool_calls"),
        (messages_of("system"), "messages"),
        (messages_of("assistant", "user"), "messages[0].role"),
        (messages_of("user", "assistant", "assistant", "user"), "messages[2].role"),
        (messages_of("user", "assistant"), "messages"),
        (messages_of("system", "user", "system", "user"), "messages[2].role"),
        (messages_of("system", "system", "user"), "messages[1].role"),
    ],
)
def test_invalid_messages(messages: Any, param: str) -> None:
    error = error_of(messages=messages)
    assert (error.status, error.param) == (400, param)


def test_text_parts_and_empty_fields() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    answer: Any = {
        "role": "assistant",
        "content": "c",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    got = parsed(messages=[{"role": "user", "content": parts}, answer, USER])
    assert (got.turns, got.question) == ((("a b", "c"),), "Why?")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"3", b"1" * 5000, b'{"n": Nan}']
)
def test_invalid_bodies(body: bytes) -> None:
    with pytest.raises(ApiError) as raised:
        parse_request(body, ())
    assert raised.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["messages", "stop", "stream", "stream_options", "seed", "max_tokens", "user", "n"])


@given(st.dictionaries(FIELDS | st.text(), JSON, max_size=4))
def test_arbitrary_fields_never_crash(fields: dict[str, Any]) -> None:
    result: ChatCompletionRequest | ApiError
    try:
        result = parsed(**fields)
    except ApiError as error:
        result = error
    assert isinstance(result, ChatCompletionRequest) or (
        result.status in (400, 404) and json.dumps(result.body)
    )
