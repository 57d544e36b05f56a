"""Errors of the HTTP interface, in the form that OpenAI's clients expect."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

from triforce_chat.errors import DoesNotFit, ModelError, OutOfMemory, TriforceError, UsageError

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


def request_too_large(limit: int) -> ApiError:
    return ApiError(413, f"a request may have {limit:,} bytes", "request_too_large")


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", "shutting_down")


def internal_error() -> ApiError:
    return ApiError(500, "internal error; details are on the program's standard error", "internal_error")


def to_api_error(error: Exception) -> ApiError:
    """The error as a client may see it. The traceback of a bug goes to standard error only."""
    from triforce_chat.models.failures import is_out_of_memory

    if isinstance(error, ApiError):
        return error
    if isinstance(error, DoesNotFit):
        return ApiError(400, str(error), error.code, "messages")
    if isinstance(error, UsageError | ModelError):
        return ApiError(400, str(error))
    if isinstance(error, OutOfMemory) or is_out_of_memory(error):
        return ApiError(500, "out of memory", OutOfMemory.code)
    if isinstance(error, TriforceError):
        return ApiError(500, str(error))
    traceback.print_exception(error, file=sys.stderr)
    return internal_error()
