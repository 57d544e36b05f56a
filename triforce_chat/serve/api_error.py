"""Errors of the HTTP interface, in the form that OpenAI's clients expect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """An HTTP status and its message; ``param`` names the invalid field of the request."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else ERROR_TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid_field(param: str, message: str, code: str | None = None) -> ApiError:
    """A field of the request is malformed or not supported."""
    return ApiError(400, f"{param}: {message}", code, param)


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", "shutting_down")


def internal_error() -> ApiError:
    return ApiError(500, "internal error; details are in the server's terminal", "internal_error")
