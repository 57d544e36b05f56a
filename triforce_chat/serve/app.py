"""The HTTP interface: which paths there are, and what a request must look like before it may wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from triforce_chat.serve import refusal
from triforce_chat.serve.desk import Desk
from triforce_chat.serve.gate import Gate
from triforce_chat.serve.refusal import Refusal
from triforce_chat.serve.responses import Answered, Json, refused
from triforce_chat.serve.wish import no_model, read_wish

MOST_BYTES = 16 * 2**20  # of a request: a million tokens of text, and what JSON adds
DEFAULT = "default"  # a name that every served model answers to


@dataclass(frozen=True, slots=True)
class Served:
    """The model, as /v1/models tells it; ``documents`` are the titles of what stands in front."""

    name: str
    context: int  # tokens
    documents: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, DEFAULT

    def record(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "triforce-chat",
            "context": self.context,
            "documents": list(self.documents),
        }


def build(desk: Desk, served: Served, token: str | None) -> Starlette:
    """The application; ``token`` is what every request must bear, None where only this machine can ask."""

    async def models(_request: Request) -> Response:
        return Json({"object": "list", "data": [served.record()]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in served.names:
            raise no_model(name)
        return Json(served.record())

    async def health(_request: Request) -> Response:
        return Json({"status": "ok", "busy": desk.current is not None, "waiting": len(desk.line)})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", Completions(desk, served), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
        ],
        middleware=[Middleware(Gate, token=token)],
        exception_handlers=HANDLERS,
    )


class Completions:
    """POST /v1/chat/completions."""

    def __init__(self, desk: Desk, served: Served) -> None:
        self.desk, self.served = desk, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        wish = read_wish(await body_of(request), self.served.names)
        job = self.desk.submit(client_of(request, wish.user), wish)
        await Answered(self.desk, job, self.served.name)(scope, receive, send)


def client_of(request: Request, user: str) -> Hashable:
    """Whose turn in the queue a request takes: its address, its API key, and whom it says it is for.

    Not its connection: a client opens as many as it has requests.
    """
    address = request.client.host if request.client else ""
    return address, request.headers.get("authorization", ""), user


async def body_of(request: Request) -> bytes:
    """The body of a JSON request; raises Refusal for another kind and for one that is too long.

    The kind matters: a page in a browser may send other kinds anywhere without asking.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "send JSON, with Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Refusal(413, f"a request may have {MOST_BYTES:,} bytes", "request_too_large")
    return bytes(body)


async def explained(_request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return refused(error)
    if isinstance(error, HTTPException):  # no such path, or not with this method
        return refused(Refusal(error.status_code, error.detail, None, None, dict(error.headers or {})))
    return refused(refusal.failed())


HANDLERS: dict[Any, Callable[[Request, Exception], Any]] = {
    Refusal: explained,
    HTTPException: explained,
    ClientDisconnect: explained,  # nobody reads it
    Exception: explained,
}
