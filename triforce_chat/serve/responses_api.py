"""OpenAI's Responses interface: its requests as chat requests, and answers as its objects and events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triforce_chat.chat.events import ChatEvent
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.serve.api_error import invalid_field
from triforce_chat.serve.chat_request import (
    ChatCompletionRequest,
    fields_without,
    given_fields,
    parse_fields,
)
from triforce_chat.serve.completion import Answering, CompletionEncoder, json_bytes, sources_of

Kind = Literal["reasoning", "message"]
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
    if given_fields(body).get("reasoning"):
        fields["reasoning_effort"] = "none"
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
    return [_message(n, item) for n, item in enumerate(given) if not _is_thought(item)]


def _is_thought(item: Any) -> bool:
    """Whether an item is a thought that a client sends back with its answer; see ``chat_request.THOUGHTS``."""
    return isinstance(item, dict) and item.get("type") == "reasoning"


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


@dataclass(frozen=True, slots=True)
class Item:
    """A part of the output: the thought, or the message that follows it."""

    id: str
    index: int  # in the output
    kind: Kind

    @property
    def text_kind(self) -> str:
        return "reasoning_text" if self.kind == "reasoning" else "output_text"

    def part(self, text: str) -> dict[str, Any]:
        """Its only part."""
        more: dict[str, Any] = {} if self.kind == "reasoning" else {"annotations": []}
        return {"type": self.text_kind, "text": text, **more}

    def record(self, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
        more: dict[str, Any] = {"summary": []} if self.kind == "reasoning" else {"role": "assistant"}
        return {"id": self.id, "type": self.kind, "status": status, **more, "content": [*parts]}


class ResponsesEncoder(CompletionEncoder):
    """Encodes one answer as a response, or as the events of its making."""

    def __init__(self, job: Answering, model: str) -> None:
        super().__init__(job, model)
        self.id, self.created, self.number = f"resp_{uuid.uuid4().hex}", int(time.time()), 0
        self.items: list[Item] = []  # that have begun

    def completion(self) -> dict[str, Any]:
        self._begin_all()
        cut = self._finish_reason == "length"
        status, values = "incomplete" if cut else "completed", dict(self.job.request.settings)
        return {
            **self._head(status),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._whole(item, status) for item in self.items],
            "temperature": values.get("temperature"),
            "top_p": values.get("top_p"),
            "usage": self._responses_usage(),
            **sources_of(self.job.tally),
        }

    def first_chunk(self) -> bytes:
        begun = {**self._head("in_progress"), "output": [], "usage": None}
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def chunk(self, event: ChatEvent) -> bytes:
        if isinstance(event, Prefilled):
            return super().chunk(event)
        if not isinstance(event, Text):
            return b""
        texts: dict[Kind, str] = {"reasoning": event.thought, "message": event.text}
        return b"".join(self._delta(kind, text) for kind, text in texts.items() if text)

    def last_chunks(self) -> bytes:
        open_before = len(self.items)
        whole = self.completion()
        begun = b"".join(map(self._begun, self.items[open_before:]))
        ended = self._ended(self.items[-1], whole["status"])
        return begun + ended + self._event(f"response.{whole['status']}", response=whole)

    def _begin_all(self) -> None:
        """Begin what a stream has not begun: all items of a whole answer, the message of an empty one."""
        if self.job.tally.thought:
            self._item("reasoning")
        if self.job.tally.text or not self.items:
            self._item("message")

    def _item(self, kind: Kind) -> tuple[Item, bool]:
        """The item of a kind, and whether it is new."""
        known = next((item for item in self.items if item.kind == kind), None)
        if known:
            return known, False
        prefix = "rs" if kind == "reasoning" else "msg"
        self.items.append(Item(f"{prefix}_{uuid.uuid4().hex}", len(self.items), kind))
        return self.items[-1], True

    def _delta(self, kind: Kind, text: str) -> bytes:
        item, new = self._item(kind)
        before = self._ended(self.items[-2], "completed") if new and item.index else b""
        begun = self._begun(item) if new else b""
        return before + begun + self._text_event(item, "delta", delta=text)

    def _begun(self, item: Item) -> bytes:
        added = self._event(
            "response.output_item.added", output_index=item.index, item=item.record("in_progress")
        )
        return added + self._event("response.content_part.added", **self._at(item), part=item.part(""))

    def _ended(self, item: Item, status: str) -> bytes:
        whole, text = self._whole(item, status), self._text(item)
        return b"".join(
            (
                self._text_event(item, "done", text=text),
                self._event("response.content_part.done", **self._at(item), part=item.part(text)),
                self._event("response.output_item.done", output_index=item.index, item=whole),
            )
        )

    def _text_event(self, item: Item, stage: str, **values: Any) -> bytes:
        more: dict[str, Any] = {} if item.kind == "reasoning" else {"logprobs": []}
        return self._event(f"response.{item.text_kind}.{stage}", **self._at(item), **values, **more)

    def _text(self, item: Item) -> str:
        return self.job.tally.thought if item.kind == "reasoning" else self.job.tally.text

    def _whole(self, item: Item, status: str) -> dict[str, Any]:
        """An item with its text; only the last one may be incomplete."""
        return item.record(status if item is self.items[-1] else "completed", item.part(self._text(item)))

    @staticmethod
    def _at(item: Item) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": item.index, "content_index": 0}

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
        event = {"type": kind, "sequence_number": self.number, **values}
        self.number += 1
        return b"event: " + kind.encode() + b"\ndata: " + json_bytes(event) + b"\n\n"
