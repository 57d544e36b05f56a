"""HTTP responses: JSON, refusals, and answers whose client may go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triforce_chat.engine.events import Event
from triforce_chat.serve.desk import Desk, Job
from triforce_chat.serve.refusal import Refusal
from triforce_chat.serve.replies import Reply, encoded, line

EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Json(Response):
    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return encoded(content)


def refused(reason: Refusal) -> Json:
    return Json(reason.body, reason.status, reason.headers)


class Answered:
    """An answer, whole or as a stream. When the client goes away, so does the job."""

    def __init__(self, desk: Desk, job: Job, model: str) -> None:
        self.desk, self.job = desk, job
        self.reply = Reply(job, model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            if self.job.wish.stream:
                await self._stream(scope, receive, send)
            else:
                await (await self._whole())(scope, receive, send)
        finally:
            watch.cancel()
            self.desk.cancel(self.job)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.desk.cancel(self.job)

    async def _whole(self) -> Response:
        try:
            async for _ in self.job.events():
                pass
        except Refusal as reason:
            return refused(reason)
        return Json(self.reply.completion())

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = self.job.events()
        try:
            first = await anext(events, None)
        except Refusal as reason:  # nothing was sent yet: the status can say it
            await refused(reason)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        async for part in self._parts(first, events):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self, first: Event | None, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        yield self.reply.first()
        try:
            if first is not None:
                yield self.reply.piece(first)
            async for event in events:
                yield self.reply.piece(event)
            yield self.reply.last()
        except Refusal as reason:
            yield line(reason.body)
