"""OpenAI's Responses interface: its requests as chat requests, and answers as its objects and events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from triforce_chat.chat.events import ChatEvent
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.serve.api_error import invalid_field
from triforce_chat.serve.chat_request import ChatCompletionRequest, fields_without, parse_fields
from triforce_chat.serve.completion import Answering, CompletionEncoder, json_bytes, sources_of

PARTS = ("input_text", "output_text", "text")
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # not supported, with the values that change nothing
    "truncation": ("disabled",),
    "background": (False,),
    "include": ([],),
    "max_tool_calls": (),
    "conversation": (),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({}, {"effort": "none"}),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
}


def parse_responses(body: object, names: Sequence[str]) -> ChatCompletionRequest:
    """A request to /v1/responses. Raises ApiError."""
    fields = fields_without(body, NEUTRAL)
    if "max_output_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_output_tokens")
    if (form := _format(fields.pop("text", None))) is not None:
        fields["response_format"] = form
    messages = _messages(fields.pop("input", None))
    if (system := fields.pop("instructions", None)) is not None:
        messages.insert(0, {"role": "system", "content": system})
    return parse_fields({**fields, "messages": messages}, names)


def _format(text: Any) -> dict[str, Any] | None:
    """The format of the answer as a chat request has it."""
    if not isinstance(text, dict | None) or (text and text.keys() - {"format", "verbosity"}):
        raise invalid_field("text", "must be an object with a format")
    form = (text or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": form}
    return form


def _messages(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid_field("input", "must be a string or a list of messages")
    return [_message(n, item) for n, item in enumerate(given)]


def _message(number: int, item: Any) -> dict[str, Any]:
    """A message as a chat request has it; ids and states of earlier answers are left out."""
    path = f"input[{number}]"
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        raise invalid_field(path, "only messages are supported")
    content = item.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") not in PARTS:
                raise invalid_field(f"{path}.content", "only parts of text are supported")
        content = [{"type": "text", "text": part.get("text")} for part in content]
    return {"role": item.get("role"), "content": content}


class ResponsesEncoder(CompletionEncoder):
    """Encodes one answer as a response, or as the events of its making."""

    def __init__(self, job: Answering, model: str) -> None:
        super().__init__(job, model)
        self.id, self.item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self.created, self.number = int(time.time()), 0
        self.at = {"item_id": self.item_id, "output_index": 0, "content_index": 0}

    def completion(self) -> dict[str, Any]:
        cut = self._finish_reason == "length"
        values = dict(self.job.request.settings)
        return {
            **self._head("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item("completed", [self._part()])],
            "temperature": values.get("temperature"),
            "top_p": values.get("top_p"),
            "usage": self._responses_usage(),
            **sources_of(self.job.tally),
        }

    def first_chunk(self) -> bytes:
        begun = {**self._head("in_progress"), "output": [], "usage": None}
        part = {"type": "output_text", "text": "", "annotations": []}
        return b"".join(
            (
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
                self._event("response.content_part.added", **self.at, part=part),
            )
        )

    def chunk(self, event: ChatEvent) -> bytes:
        if isinstance(event, Prefilled):
            return super().chunk(event)
        if not isinstance(event, Text) or not event.text:
            return b""
        return self._event("response.output_text.delta", **self.at, delta=event.text, logprobs=[])

    def last_chunks(self) -> bytes:
        whole, text = self.completion(), self.job.tally.text
        return b"".join(
            (
                self._event("response.output_text.done", **self.at, text=text, logprobs=[]),
                self._event("response.content_part.done", **self.at, part=self._part()),
                self._event("response.output_item.done", output_index=0, item=whole["output"][0]),
                self._event(f"response.{whole['status']}", response=whole),
            )
        )

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.head["model"],
            "error": None,
            "incomplete_details": None,
            "instructions": self.job.request.system,
            "metadata": {},
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "text": {"format": {"type": "text"}},
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.job.tally.text, "annotations": []}

    def _responses_usage(self) -> dict[str, Any]:
        usage = self.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
            **{name: usage[name] for name in ("timing", "speculation")},
        }

    def _event(self, kind: str, **values: Any) -> bytes:
        said = {"type": kind, "sequence_number": self.number, **values}
        self.number += 1
        return b"event: " + kind.encode() + b"\ndata: " + json_bytes(said) + b"\n\n"
