"""Parses the body of a request to /v1/chat/completions, field by field.

A field that would change the answer and is not supported is an error that names the field; it is never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triforce_chat.chat.thinking import SWITCHES
from triforce_chat.serve.api_error import ApiError, invalid_field
from triforce_chat.settings.settings import STACKS, request_parameters

DEFAULT = "default"  # an alias of every served model
MAX_BODY_BYTES = 16 * 2**20  # a million tokens of text, and the overhead of JSON
SYSTEM_ROLES = ("system", "developer")  # two names for the same, of which the latter is the newer
OFF = "off"  # no speculation
# A thought that a client sends back with its answer: the server knows it by the answer, and templates leave it out.
THOUGHTS = ("reasoning_content", "reasoning")
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000  # characters
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # unsupported fields, and the values that change nothing
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
    "params": ({},),  # of Open WebUI, which unpacks them
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),  # of a model that thinks it switches thoughts off
    "verbosity": ("medium",),
    # What SGLang's router adds to every request.
    "no_stop_trim": (False,),
    "ignore_eos": (False,),
    "continue_final_message": (False,),
    "skip_special_tokens": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "return_hidden_states": (False,),
}
IGNORED = frozenset(  # addressed to the provider, without effect on the answer
    {
        *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        *("safety_identifier", "service_tier", "store"),
        # Open WebUI's own: it looks for files, calls tools and asks for titles itself, and sends what it knows along.
        *("chat_id", "session_id", "id", "parent_id", "parent_message", "model_item", "background_tasks"),
        *("features", "files", "filter_ids", "tool_ids", "tool_servers", "variables"),
    }
)
SUPPORTED = frozenset(  # besides the numbers in ``NUMBERS``
    {
        *("model", "messages", "stream", "stream_options", "stop", "user", "max_tokens"),
        *("max_completion_tokens", "response_format", "sources", "speculation", "chat_template_kwargs"),
    }
)


@dataclass(frozen=True, slots=True)
class ChatCompletionRequest:
    """A parsed request for one answer."""

    turns: tuple[tuple[str, str], ...]  # earlier questions and their answers
    question: str
    system: str | None = None
    settings: tuple[tuple[str, float], ...] = ()  # fields of ``Settings`` and their values
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False  # at the end of a stream
    user: str = ""
    sources: bool = True  # find the pages that the answer came from
    speculation: str | None = None  # the stack that answers; None for the server's own
    schema: str | None = None  # JSON Schema of the answer
    think: str | None = None  # "on" or "off"; None for the server's own


def read_json(body: bytes) -> object:
    """A request's body. Raises ApiError."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON") from None


def parse_request(body: bytes, names: Sequence[str]) -> ChatCompletionRequest:
    """Parse a request's body; ``names`` are those that the model answers to, its own first. Raises ApiError."""
    return parse_fields(read_json(body), names)


def parse_fields(body: object, names: Sequence[str]) -> ChatCompletionRequest:
    """``parse_request`` for a body that was read as JSON already."""
    fields = given_fields(body)
    _check_names(fields)
    _check_model(fields, names)
    system, turns, question = parse_messages(fields.get("messages"))
    stream = typed(fields, "stream", bool) or False
    return ChatCompletionRequest(
        turns=turns,
        question=question,
        system=system,
        settings=_settings(fields),
        max_tokens=_max_tokens(fields),
        stop=_stop(fields.get("stop")),
        stream=stream,
        include_usage=_include_usage(fields, stream),
        user=typed(fields, "user", str) or "",
        sources=typed(fields, "sources", bool) is not False,
        speculation=_speculation(typed(fields, "speculation", str)),
        schema=_schema(typed(fields, "response_format", dict)),
        think=_think(typed(fields, "chat_template_kwargs", dict) or {}, "reasoning_effort" in fields),
    )


def given_fields(body: object) -> dict[str, Any]:
    """The fields of the body, without those that are null. Raises ApiError."""
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return {name: value for name, value in body.items() if value is not None}


def fields_without(body: object, neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The fields without unsupported ones, each with the values that change nothing. Raises ApiError for others."""
    fields = given_fields(body)
    for name in neutral.keys() & fields.keys():
        _require_neutral(name, fields.pop(name), neutral[name])
    return fields


def _require_neutral(name: str, value: Any, same: tuple[Any, ...]) -> None:
    if not any(type(value) is type(each) and value == each for each in same):
        raise invalid_field(name, "not supported; leave it out", "unsupported_parameter")


def _check_names(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name in NEUTRAL:
            _require_neutral(name, value, NEUTRAL[name])
        elif name not in SUPPORTED | IGNORED | NUMBERS.keys():
            raise invalid_field(name[:80], "unknown field", "unknown_parameter")


def _check_model(fields: Mapping[str, Any], names: Sequence[str]) -> None:
    model = typed(fields, "model", str)
    if model is None:
        raise invalid_field("model", "missing; it may be 'default'")
    if model not in names:
        raise unknown_model(model, names)


def names_of(model: str) -> tuple[str, ...]:
    """The names that the model answers to, its own first; a model of a folder is called by the folder's name."""
    own = Path(model).name if Path(model).is_absolute() else model
    return tuple(dict.fromkeys((own, model, DEFAULT)))


def unknown_model(name: str, names: Sequence[str]) -> ApiError:
    message = f"no model '{name[:200]}'; the one here is '{names[0]}', or use '{DEFAULT}'"
    return ApiError(404, message, "model_not_found", "model")


def typed(fields: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """The value of a field, or None. Raises ApiError if it is of another type than ``kind``."""
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise invalid_field(name, f"must be {_KINDS[kind]}")
    return value


_KINDS: Mapping[type[Any], str] = {
    bool: "true or false",
    str: "a string",
    dict: "an object",
    list: "a list",
}


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_field(name, "must be an integer")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_field(name, "must be a number")
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise invalid_field(name, "is too large") from None


NUMBERS: Mapping[str, Callable[[str, Any], float]] = {
    name: _integer if kind is int else _number for name, kind in request_parameters().items()
}


def _settings(fields: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    return tuple((name, check(name, fields[name])) for name, check in NUMBERS.items() if name in fields)


def _speculation(name: str | None) -> str | None:
    """The name of the stack that a request asks for."""
    stack = "autoregressive" if name == OFF else name
    if stack is not None and stack not in STACKS:
        raise invalid_field("speculation", f"must be one of {', '.join((OFF, *STACKS))}")
    return stack


def _schema(given: Mapping[str, Any] | None) -> str | None:
    """The JSON Schema that a response format asks for."""
    kind = "text" if given is None else given.get("type")
    if kind == "text" or given is None:
        return None
    if kind == "json_object":
        return json.dumps({"type": "object"})
    named = given.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise invalid_field(
            "response_format", "must be of type text, json_object, or json_schema with a schema"
        )
    return json.dumps(schema)


def _think(given: Mapping[str, Any], without: bool) -> str | None:
    """Whether a request switches thoughts on or off, by the variable of chat templates that does.

    ``without``: it also asks for no effort, the only one that ``NEUTRAL`` admits.
    """
    for name in given:
        if name not in SWITCHES:
            raise invalid_field(f"chat_template_kwargs.{name[:80]}", "unknown field", "unknown_parameter")
    wanted = {typed(given, name, bool) for name in given} - {None} | ({False} if without else set())
    if len(wanted) > 1:
        raise invalid_field("chat_template_kwargs", "switches thoughts on and off at once")
    return ("on" if wanted.pop() else "off") if wanted else None


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in fields]
    values = [_integer(name, fields[name]) for name in names]
    for name, value in zip(names, values, strict=True):
        if value < 1:
            raise invalid_field(name, "must be at least 1")
    if len(set(values)) > 1:
        raise invalid_field("max_tokens", "differs from max_completion_tokens")
    return values[0] if values else None


def _stop(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise invalid_field("stop", "must be a string or a list of strings, none of them empty")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise invalid_field("stop", f"at most {MAX_STOPS} strings of {MAX_STOP_LENGTH} characters")
    return tuple(stops)


def _include_usage(fields: Mapping[str, Any], stream: bool) -> bool:
    options = typed(fields, "stream_options", dict) or {}
    if options and not stream:
        raise invalid_field("stream_options", "requires stream")
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise invalid_field(f"stream_options.{name[:80]}", "unknown field", "unknown_parameter")
    return typed(options, "include_usage", bool) or False


def parse_messages(given: Any) -> tuple[str | None, tuple[tuple[str, str], ...], str]:
    """Split a list of messages into (system prompt, answered turns, question).

    The messages are an optional system or developer message, then user and assistant in turn, ending with the user.
    Several of the user in a row are one question.
    Raises ApiError for any other order.
    """
    if not isinstance(given, list) or not given:
        raise invalid_field("messages", "must be a list of messages")
    messages = [_message(index, message) for index, message in enumerate(given)]
    system = messages.pop(0)[1] if messages[0][0] in SYSTEM_ROLES else None
    texts: list[str] = []  # questions and answers in turn
    for index, (role, text) in enumerate(messages, len(given) - len(messages)):
        if role == "user" and not text.strip():
            raise invalid_field(f"messages[{index}].content", "is empty")
        expected = "assistant" if len(texts) % 2 else "user"
        if role == "user" != expected:  # clients leave out answers that failed or were empty
            texts[-1] += f"\n\n{text}"
        elif role == expected:
            texts.append(text)
        else:
            raise invalid_field(f"messages[{index}].role", f"must be '{expected}', not '{role}'")
    if len(texts) % 2 == 0:
        raise invalid_field("messages", "the last one must be the user's")
    return system, tuple(zip(texts[0:-1:2], texts[1::2], strict=True)), texts[-1]


def _message(index: int, given: Any) -> tuple[str, str]:
    """(role, text) of one message."""
    path = f"messages[{index}]"
    if not isinstance(given, dict):
        raise invalid_field(path, "must be an object")
    role = given.get("role")
    if role not in (*SYSTEM_ROLES, "user", "assistant"):
        raise invalid_field(f"{path}.role", "must be system, developer, user or assistant")
    for name, value in given.items():
        if name in THOUGHTS and role == "assistant" and isinstance(value, str):
            continue
        if name not in ("role", "content") and value:  # clients send back answers with their empty fields
            raise invalid_field(f"{path}.{name[:80]}", "not supported", "unsupported_parameter")
    return role, _content(f"{path}.content", given.get("content"))


def _content(path: str, given: Any) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid_field(path, "must be a string or a list of text parts")
    for part in given:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid_field(path, "only parts of type text are supported")
    return "".join(part["text"] for part in given)
