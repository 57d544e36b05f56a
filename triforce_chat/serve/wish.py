"""What a client asks for: the body of a request to /v1/chat/completions, checked field by field.

A field that would change the answer and cannot be honoured is refused by name; it is never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from triforce_chat.serve.refusal import Refusal, wrong
from triforce_chat.settings.settings import request_parameters

MOST_STOPS = 16
MOST_STOP_LENGTH = 1000  # characters
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # the values with which these change nothing
    "n": (1,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
}
HARMLESS = frozenset(  # they tell the provider something, and the model nothing
    {
        *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        *("safety_identifier", "service_tier", "store"),
    }
)
OWN = frozenset(
    {
        *("model", "messages", "stream", "stream_options", "stop", "user", "max_tokens"),
        "max_completion_tokens",
    }
)


@dataclass(frozen=True, slots=True)
class Wish:
    """One answer that a client wants."""

    turns: tuple[tuple[str, str], ...]  # questions that were answered, and the answers
    question: str
    system: str | None = None
    settings: tuple[tuple[str, float], ...] = ()  # names of ``Settings`` and their values
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False  # at the end of a stream
    user: str = ""


def read_wish(body: bytes, names: Collection[str]) -> Wish:
    """Check a request's body; ``names`` are those of the model. Raises Refusal."""
    fields = _fields(body)
    _check_names(fields)
    _check_model(fields, names)
    system, turns, question = read_messages(fields.get("messages"))
    stream = typed(fields, "stream", bool) or False
    return Wish(
        turns=turns,
        question=question,
        system=system,
        settings=_settings(fields),
        max_tokens=_max_tokens(fields),
        stop=_stop(fields.get("stop")),
        stream=stream,
        include_usage=_include_usage(fields, stream),
        user=typed(fields, "user", str) or "",
    )


def _fields(body: bytes) -> dict[str, Any]:
    """The fields that were given; null is as good as not given."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(read, dict):
        raise Refusal(400, "the body must be a JSON object")
    return {name: value for name, value in read.items() if value is not None}


def _check_names(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name in NEUTRAL:
            if not any(type(value) is type(calm) and value == calm for calm in NEUTRAL[name]):
                raise wrong(name, "not supported here, leave it out", "unsupported_parameter")
        elif name not in OWN | HARMLESS | NUMBERS.keys():
            raise wrong(name[:80], "no such field", "unknown_parameter")


def _check_model(fields: Mapping[str, Any], names: Collection[str]) -> None:
    model = typed(fields, "model", str)
    if model is None:
        raise wrong("model", "missing; it may be 'default'")
    if model not in names:
        raise no_model(model)


def no_model(name: str) -> Refusal:
    message = f"no model '{name[:200]}' here; GET /v1/models names the one there is, or ask for 'default'"
    return Refusal(404, message, "model_not_found", "model")


def typed(fields: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise wrong(name, f"must be {_KINDS[kind]}")
    return value


_KINDS: Mapping[type[Any], str] = {
    bool: "true or false",
    str: "a string",
    dict: "an object",
    list: "a list",
}


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, "must be an integer")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, "must be a number")
    return value


NUMBERS: Mapping[str, Callable[[str, Any], float]] = {
    name: _integer if kind is int else _number for name, kind in request_parameters().items()
}


def _settings(fields: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    return tuple((name, check(name, fields[name])) for name, check in NUMBERS.items() if name in fields)


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in fields]
    values = [_integer(name, fields[name]) for name in names]
    for name, value in zip(names, values, strict=True):
        if value < 1:
            raise wrong(name, "must be at least 1")
    if len(set(values)) > 1:
        raise wrong("max_tokens", "differs from max_completion_tokens")
    return values[0] if values else None


def _stop(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise wrong("stop", "must be a string or a list of strings, none of them empty")
    if len(stops) > MOST_STOPS or any(len(stop) > MOST_STOP_LENGTH for stop in stops):
        raise wrong("stop", f"at most {MOST_STOPS} strings of {MOST_STOP_LENGTH} characters")
    return tuple(stops)


def _include_usage(fields: Mapping[str, Any], stream: bool) -> bool:
    options = typed(fields, "stream_options", dict) or {}
    if options and not stream:
        raise wrong("stream_options", "goes with stream")
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise wrong(f"stream_options.{name[:80]}", "no such field", "unknown_parameter")
    return typed(options, "include_usage", bool) or False


def read_messages(given: Any) -> tuple[str | None, tuple[tuple[str, str], ...], str]:
    """(system text, answered turns, question) of a list of messages.

    A conversation is a system message or none, then user and assistant in turn, and a user's at the end.
    """
    if not isinstance(given, list) or not given:
        raise wrong("messages", "must be a list of messages")
    said = [_message(at, message) for at, message in enumerate(given)]
    system = said.pop(0)[1] if said[0][0] == "system" else None
    for at, (role, text) in enumerate(said, len(given) - len(said)):
        expected = "assistant" if (at - len(given) + len(said)) % 2 else "user"
        if role != expected:
            raise wrong(f"messages[{at}].role", f"'{role}' where '{expected}' should follow")
        if role == "user" and not text.strip():
            raise wrong(f"messages[{at}].content", "is empty")
    if len(said) % 2 == 0:
        raise wrong("messages", "the last one must be the user's")
    texts = [text for _, text in said]
    return system, tuple(zip(texts[0:-1:2], texts[1::2], strict=True)), texts[-1]


def _message(at: int, given: Any) -> tuple[str, str]:
    """(role, text) of one message."""
    place = f"messages[{at}]"
    if not isinstance(given, dict):
        raise wrong(place, "must be an object")
    role = given.get("role")
    if role not in ("system", "user", "assistant"):
        raise wrong(f"{place}.role", "must be system, user or assistant")
    for name, value in given.items():
        if name not in ("role", "content") and value:  # clients send back the empty fields of answers
            raise wrong(f"{place}.{name[:80]}", "not supported here", "unsupported_parameter")
    return role, _content(f"{place}.content", given.get("content"))


def _content(place: str, given: Any) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise wrong(place, "must be a string or a list of text parts")
    for part in given:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise wrong(place, "only parts of type text are supported")
    return "".join(part["text"] for part in given)
