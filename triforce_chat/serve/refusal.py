"""Why a request gets no answer, in the form in which OpenAI's clients expect it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Refusal(Exception):
    """An HTTP status and the words that go with it; ``param`` names the field that is to blame."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def wrong(param: str, message: str, code: str | None = None) -> Refusal:
    """A field of the request that makes no sense or that this server cannot honour."""
    return Refusal(400, f"{param}: {message}", code, param)


def closing() -> Refusal:
    return Refusal(503, "the server is shutting down", "shutting_down")


def failed() -> Refusal:
    return Refusal(500, "the server failed; its own terminal says how", "internal_error")
