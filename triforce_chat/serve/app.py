"""The HTTP interface: its routes, and the checks that a request passes before it is queued."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from triforce_chat.serve import api_error
from triforce_chat.serve.api_error import ApiError
from triforce_chat.serve.auth import AuthMiddleware
from triforce_chat.serve.chat_request import (
    MAX_BODY_BYTES,
    ChatCompletionRequest,
    names_of,
    parse_fields,
    read_json,
    unknown_model,
)
from triforce_chat.serve.completion import CompletionEncoder
from triforce_chat.serve.metrics import CONTENT_TYPE
from triforce_chat.serve.responses import CompletionResponse, JsonResponse, error_response
from triforce_chat.serve.responses_api import ResponsesEncoder, parse_responses
from triforce_chat.serve.text_completion import TextEncoder, parse_text_request
from triforce_chat.serve.worker import Worker

PAGE = Path(__file__).with_name("page.html")
PAGE_HEADERS = {  # everything that the page needs is in it, and it talks to this server only
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as /v1/models lists it; ``documents`` are the titles of the loaded ones."""

    name: str
    context: int  # tokens
    documents: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        return names_of(self.name)

    def record(self) -> dict[str, Any]:
        return {
            "id": self.names[0],
            "object": "model",
            "created": self.created,
            "owned_by": "triforce-chat",
            "context": self.context,
            "documents": list(self.documents),
        }


def build_app(
    worker: Worker, served: ServedModel, token: str | None, origins: Sequence[str] = ()
) -> Starlette:
    """The application. Every request must send ``token``; with None only programs on this machine are admitted.

    Pages from ``origins`` may call it, too; its own page needs no permission.
    """
    page = PAGE.read_bytes()
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("authorization", "content-type"),
    )

    async def home(_request: Request) -> Response:
        return Response(page, media_type="text/html", headers=PAGE_HEADERS)

    async def metrics(_request: Request) -> Response:
        text = worker.metrics.text(len(worker.queue), len(worker.running))
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def models(_request: Request) -> Response:
        return JsonResponse({"object": "list", "data": [served.record()]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in served.names:
            raise unknown_model(name, served.names)
        return JsonResponse(served.record())

    async def health(_request: Request) -> Response:
        running = len(worker.running)
        return JsonResponse(
            {"status": "ok", "busy": running > 0, "running": running, "waiting": len(worker.queue)}
        )

    return Starlette(
        routes=[
            Route("/", home),
            Route("/v1/chat/completions", Endpoint(worker, served, parse_fields), methods=["POST"]),
            Route(
                "/v1/completions", Endpoint(worker, served, parse_text_request, TextEncoder), methods=["POST"]
            ),
            Route(
                "/v1/responses", Endpoint(worker, served, parse_responses, ResponsesEncoder), methods=["POST"]
            ),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        middleware=[*([cors] if origins else []), Middleware(AuthMiddleware, token=token)],
        exception_handlers=HANDLERS,
    )


class Endpoint:
    """One of the interfaces that answer: how its requests are parsed, and how its answers are encoded."""

    def __init__(
        self,
        worker: Worker,
        served: ServedModel,
        parse: Callable[[object, Sequence[str]], ChatCompletionRequest],
        encoder: type[CompletionEncoder] = CompletionEncoder,
    ) -> None:
        self.worker, self.served, self.parse, self.encoder = worker, served, parse, encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        request = self.parse(read_json(await read_body(http)), self.served.names)
        job = self.worker.submit(client_key(http, request.user), request)
        encoder = self.encoder(job, self.served.names[0])
        await CompletionResponse(self.worker, job, encoder)(scope, receive, send)


def client_key(request: Request, user: str) -> Hashable:
    """Identifies a client for fair queueing: its address, its API key and the ``user`` of its request.

    The connection is not part of it, because a client opens as many as it has requests.
    """
    address = request.client.host if request.client else ""
    return address, request.headers.get("authorization", ""), user


async def read_body(request: Request) -> bytes:
    """The body of a JSON request. Raises ApiError for other content types and bodies that are too large.

    The content type is a security check: browsers send other types across origins without a preflight.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send JSON, with Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise api_error.request_too_large(MAX_BODY_BYTES)
    return bytes(body)


async def handle_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error_response(error)
    if isinstance(error, HTTPException):  # unknown path or method
        return error_response(
            ApiError(error.status_code, error.detail, None, None, dict(error.headers or {}))
        )
    return error_response(api_error.internal_error())


HANDLERS: dict[Any, Callable[[Request, Exception], Any]] = {
    ApiError: handle_error,
    HTTPException: handle_error,
    ClientDisconnect: handle_error,  # there is no one to receive the response
    Exception: handle_error,
}
