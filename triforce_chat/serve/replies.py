"""Answers as OpenAI's objects: a chat completion, or the chunks of a stream."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from triforce_chat.chat.records import speculation, timing
from triforce_chat.engine.events import Event, Prefilled, Text
from triforce_chat.serve.desk import Job

DONE = b"data: [DONE]\n\n"


def encoded(value: Any) -> bytes:
    """JSON in UTF-8; half characters that a client sent become question marks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def line(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"


class Reply:
    """One answer under one id; ``model`` is the name that the server gives its model."""

    def __init__(self, job: Job, model: str) -> None:
        self.job = job
        self.head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def completion(self) -> dict[str, Any]:
        """The whole answer."""
        message = {"role": "assistant", "content": self.job.tally.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return {**self.head, "object": "chat.completion", "choices": [choice], "usage": self.usage()}

    def first(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, event: Event) -> bytes:
        """An event as part of a stream; progress of the prefill is a comment, which clients pass over."""
        if isinstance(event, Prefilled):
            return f": read {event.done} of {event.total}\n\n".encode()
        return self._chunk({"content": event.text}) if isinstance(event, Text) and event.text else b""

    def last(self) -> bytes:
        """The end of a stream, with the usage where it was asked for."""
        end = self._chunk({}, self._reason)
        if self.job.wish.include_usage:
            end += line(
                {**self.head, "object": "chat.completion.chunk", "choices": [], "usage": self.usage()}
            )
        return end + DONE

    def usage(self) -> dict[str, Any]:
        """Tokens as OpenAI counts them, and what was measured as ``--json`` tells it."""
        tally = self.job.tally
        done, made = tally.finished, len(tally.token_ids)
        prompt, cached = (done.prompt_tokens, done.cached_tokens) if done else (0, 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": cached},
            "timing": {"queued_s": self.job.queued_s, **timing(tally)},
            "speculation": speculation(tally),
        }

    @property
    def _reason(self) -> str:
        done = self.job.tally.finished
        return done.reason if done else "stop"

    def _chunk(self, delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self.job.wish.include_usage else {}
        return line({**self.head, "object": "chat.completion.chunk", "choices": [choice], **usage})
