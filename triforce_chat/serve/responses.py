"""HTTP responses: JSON, errors, and answers whose client may disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triforce_chat.chat.events import ChatEvent
from triforce_chat.serve.api_error import ApiError
from triforce_chat.serve.completion import CompletionEncoder, json_bytes, sse_event
from triforce_chat.serve.worker import Job, Worker

EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return json_bytes(content)


def error_response(error: ApiError) -> JsonResponse:
    return JsonResponse(error.body, error.status, error.headers)


class CompletionResponse:
    """An answer, whole or as a stream. If the client disconnects, its job is cancelled."""

    def __init__(self, worker: Worker, job: Job, encoder: CompletionEncoder) -> None:
        self.worker, self.job, self.encoder = worker, job, encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            if self.job.request.stream:
                await self._stream(scope, receive, send)
            else:
                await (await self._whole())(scope, receive, send)
        finally:
            watch.cancel()
            self.worker.cancel(self.job)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.worker.cancel(self.job)

    async def _whole(self) -> Response:
        try:
            async for _ in self.job.events():
                pass
        except ApiError as error:
            return error_response(error)
        return JsonResponse(self.encoder.completion())

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        events, nothing = self.job.events(), list[ChatEvent]()
        try:
            first = await anext(events, nothing)
        except ApiError as error:  # nothing was sent yet, so the status can still be an error
            await error_response(error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        async for part in self._parts(first, events):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(
        self, first: Sequence[ChatEvent], events: AsyncIterator[Sequence[ChatEvent]]
    ) -> AsyncIterator[bytes]:
        """What is to be sent at once."""
        yield self.encoder.first_chunk() + self._encoded(first)
        try:
            async for more in events:
                if part := self._encoded(more):
                    yield part
            yield self.encoder.last_chunks()
        except ApiError as error:
            yield sse_event(error.body)

    def _encoded(self, events: Sequence[ChatEvent]) -> bytes:
        return b"".join(map(self.encoder.chunk, events))
