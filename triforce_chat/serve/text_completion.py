"""OpenAI's older completions interface: the prompt is put as a question about the documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triforce_chat.chat.events import ChatEvent
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.serve.api_error import invalid_field
from triforce_chat.serve.chat_request import ChatCompletionRequest, fields_without, parse_fields
from triforce_chat.serve.completion import DONE, CompletionEncoder, sources_of, sse_event

NEUTRAL: dict[str, tuple[Any, ...]] = {"echo": (False,), "best_of": (1,), "suffix": ("",), "logprobs": (0,)}


def parse_text_request(body: object, names: Sequence[str]) -> ChatCompletionRequest:
    """A request to /v1/completions with one prompt. Raises ApiError."""
    fields = fields_without(body, NEUTRAL)
    prompt = fields.pop("prompt", None)
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise invalid_field("prompt", "must be a string")
    return parse_fields({**fields, "messages": [{"role": "user", "content": prompt}]}, names)


class TextEncoder(CompletionEncoder):
    """Encodes one answer as a text completion."""

    def completion(self) -> dict[str, Any]:
        whole = self._object(self.job.tally.text, self._finish_reason)
        return {**whole, "usage": self.usage(), **sources_of(self.job.tally)}

    def first_chunk(self) -> bytes:
        return b""

    def chunk(self, event: ChatEvent) -> bytes:
        if isinstance(event, Prefilled):
            return super().chunk(event)
        return sse_event(self._object(event.text, None)) if isinstance(event, Text) and event.text else b""

    def last_chunks(self) -> bytes:
        end = sse_event({**self._object("", self._finish_reason), **sources_of(self.job.tally)})
        if self.job.request.include_usage:
            end += sse_event({**self._object("", None), "choices": [], "usage": self.usage()})
        return end + DONE

    def _object(self, text: str, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        head = {**self.head, "id": str(self.head["id"]).replace("chatcmpl", "cmpl")}
        return {**head, "object": "text_completion", "choices": [choice]}
