"""Encodes answers as OpenAI's objects: a chat completion, or the chunks of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.chat.records import sources_object, speculation_object, timing_object
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.serve.chat_request import ChatCompletionRequest

DONE = b"data: [DONE]\n\n"
EMPTY: Mapping[str, Any] = MappingProxyType({})


def json_bytes(value: Any) -> bytes:
    """JSON in UTF-8; lone surrogates that a client sent become question marks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def sse_event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def sources_of(tally: Tally) -> dict[str, Any]:
    """The pages that an answer came from and those that it cites, as ``--json`` has them, if they were looked for."""
    return sources_object(tally.sourced) if tally.sourced else {}


class Answering(Protocol):
    """A request and the answer to it so far."""

    @property
    def request(self) -> ChatCompletionRequest: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def queued_s(self) -> float:
        """Seconds that the request waited before it was answered."""
        ...


class CompletionEncoder:
    """Encodes one answer; ``model`` is the served model's name."""

    def __init__(self, job: Answering, model: str) -> None:
        self.job = job
        self.head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def completion(self) -> dict[str, Any]:
        """The whole answer."""
        tally = self.job.tally
        thought = {"reasoning_content": tally.thought} if tally.thought_tokens else {}
        message = {"role": "assistant", "content": tally.text, **thought, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason}
        whole = {**self.head, "object": "chat.completion", "choices": [choice], "usage": self.usage()}
        return {**whole, **sources_of(tally)}

    def first_chunk(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def chunk(self, event: ChatEvent) -> bytes:
        """An event as part of a stream; prefill progress is a comment, which clients skip."""
        if isinstance(event, Prefilled):
            return f": read {event.done} of {event.total}\n\n".encode()
        if not isinstance(event, Text):
            return b""
        parts = {"reasoning_content": event.thought, "content": event.text}
        return b"".join(self._chunk({name: text}) for name, text in parts.items() if text)

    def last_chunks(self) -> bytes:
        """The end of a stream, with the usage if it was requested."""
        end = self._chunk({}, self._finish_reason, sources_of(self.job.tally))
        if self.job.request.include_usage:
            end += sse_event(
                {**self.head, "object": "chat.completion.chunk", "choices": [], "usage": self.usage()}
            )
        return end + DONE

    def usage(self) -> dict[str, Any]:
        """Token counts as OpenAI defines them, plus the timing and speculation records of ``--json``."""
        tally = self.job.tally
        done, generated = tally.finished, len(tally.token_ids)
        prompt, cached = (done.prompt_tokens, done.cached_tokens) if done else (0, 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": tally.thought_tokens},
            "timing": {"queued_s": self.job.queued_s, **timing_object(tally)},
            "speculation": speculation_object(tally),
        }

    @property
    def _finish_reason(self) -> str:
        done = self.job.tally.finished
        return done.reason if done else "stop"

    def _chunk(
        self, delta: dict[str, str], reason: str | None = None, more: Mapping[str, Any] = EMPTY
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self.job.request.include_usage else {}
        return sse_event(
            {**self.head, "object": "chat.completion.chunk", "choices": [choice], **usage, **more}
        )
