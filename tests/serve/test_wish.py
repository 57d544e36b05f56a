"""What a request may ask for: every field is honoured, known to be harmless, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforce_chat.serve.refusal import Refusal
from triforce_chat.serve.wish import HARMLESS, NEUTRAL, Wish, read_wish

USER = {"role": "user", "content": "Why?"}
MODEL = {"model": "default", "messages": [USER]}


def wish(**fields: Any) -> Wish:
    return read_wish(json.dumps({**MODEL, **fields}).encode(), ("tiny", "default"))


def refusal(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        wish(**fields)
    return refused.value


def said(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]


def test_the_least_there_can_be() -> None:
    assert wish() == Wish(turns=(), question="Why?")


def test_everything_at_once() -> None:
    got = wish(
        messages=said("system", "user", "assistant", "user", "assistant", "user"),
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
    assert got == Wish(
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


def test_null_is_as_good_as_nothing() -> None:
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
    assert wish(**dict.fromkeys(names)) == wish()


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_is_harmless_is_ignored(name: str) -> None:
    assert wish(**{name: {"anything": 1}}) == wish()


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_what_would_change_the_answer_is_refused(name: str) -> None:
    for value in NEUTRAL[name]:
        assert wish(**{name: value}) == wish()
    for value in (2, True, "required", {"type": "json_object"}, [{"type": "function"}], 0.5):
        if value not in NEUTRAL[name]:
            told = refusal(**{name: value})
            assert (told.status, told.param, told.code) == (400, name, "unsupported_parameter")
            assert name in told.message


def test_a_misspelt_field_is_refused() -> None:
    told = refusal(temprature=0.5)
    assert (told.status, told.param, told.code) == (400, "temprature", "unknown_parameter")


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
def test_fields_of_the_wrong_kind(fields: dict[str, Any], param: str) -> None:
    told = refusal(**fields)
    assert (told.status, told.param) == (400, param)
    assert told.message.startswith(param)


def test_another_model() -> None:
    told = refusal(model="gpt-4")
    assert (told.status, told.code, told.param) == (404, "model_not_found", "model")
    assert wish(model="tiny") == wish()


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
        (said("system"), "messages"),
        (said("assistant", "user"), "messages[0].role"),
        (said("user", "user"), "messages[1].role"),
        (said("user", "assistant"), "messages"),
        (said("system", "user", "system", "user"), "messages[2].role"),
        (said("system", "system", "user"), "messages[1].role"),
    ],
)
def test_messages_that_are_no_conversation(messages: Any, param: str) -> None:
    told = refusal(messages=messages)
    assert (told.status, told.param) == (400, param)


def test_text_parts_and_empty_fields() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    answer: Any = {
        "role": "assistant",
        "content": "c",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    got = wish(messages=[{"role": "user", "content": parts}, answer, USER])
    assert (got.turns, got.question) == ((("a b", "c"),), "Why?")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"3", b"1" * 5000, b'{"n": Nan}']
)
def test_bodies_that_are_no_request(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        read_wish(body, ())
    assert refused.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["messages", "stop", "stream", "stream_options", "seed", "max_tokens", "user", "n"])


@given(st.dictionaries(FIELDS | st.text(), JSON, max_size=4))
def test_anything_else_is_refused_and_never_a_crash(fields: dict[str, Any]) -> None:
    told: Wish | Refusal
    try:
        told = wish(**fields)
    except Refusal as reason:
        told = reason
    assert isinstance(told, Wish) or (told.status in (400, 404) and json.dumps(told.body))
