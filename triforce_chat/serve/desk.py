"""One thread that owns the engine: it answers one wish at a time and posts events to the event loop."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Generator, Hashable
from contextlib import closing, suppress

from triforce_chat.engine.events import Event, Tally
from triforce_chat.errors import DoesNotFit, ModelError, OutOfMemory, TriforceError, UsageError
from triforce_chat.serve import refusal
from triforce_chat.serve.line import Full, Line
from triforce_chat.serve.refusal import Refusal
from triforce_chat.serve.wish import Wish

MOST_WAITING = 64  # requests
MOST_OF_ONE = 16  # requests of one client

Answer = Callable[[Wish], Generator[Event, None, None]]
Log = Callable[["Job"], None]


class Job:
    """A wish on its way: the desk's thread posts what happens, the event loop reads it."""

    def __init__(self, client: Hashable, wish: Wish) -> None:
        self.client, self.wish = client, wish
        self.loop = asyncio.get_running_loop()
        self.items: asyncio.Queue[Event | Refusal | None] = asyncio.Queue()  # None: nothing follows
        self.stopped = False  # nobody wants the rest
        self.tally = Tally()
        self.arrived, self.started = time.perf_counter(), 0.0

    @property
    def queued_s(self) -> float:
        """Seconds that others were served first."""
        return max(0.0, self.started - self.arrived)

    def post(self, item: Event | Refusal | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self.loop.call_soon_threadsafe(self.items.put_nowait, item)

    def refuse(self, reason: Refusal) -> None:
        self.post(reason)
        self.post(None)

    async def events(self) -> AsyncIterator[Event]:
        """What happens, up to the end; raises Refusal where there is no answer, or no more of it."""
        while (item := await self.items.get()) is not None:
            if isinstance(item, Refusal):
                raise item
            yield item


class Desk:
    """Takes jobs from the line. ``log`` hears of every job that was begun, when it is over."""

    def __init__(self, answer: Answer, log: Log) -> None:
        self.answer, self.log = answer, log
        self.line: Line[Job] = Line(MOST_WAITING, MOST_OF_ONE)
        self.current: Job | None = None
        self.last_s = 1.0  # what the last answer took
        self.thread = threading.Thread(target=self._run, name="desk", daemon=True)
        self.thread.start()

    def submit(self, client: Hashable, wish: Wish) -> Job:
        """Put a wish into the line; raises Refusal when it is full. Call it in the event loop."""
        job = Job(client, wish)
        try:
            self.line.add(client, job)
        except Full:
            if self.line.closed:
                raise refusal.closing() from None
            wait = {"Retry-After": str(max(1, math.ceil(self.last_s)))}
            raise Refusal(429, "too many requests are waiting; try again", "queue_full", None, wait) from None
        return job

    def cancel(self, job: Job) -> None:
        """Nobody wants this job any more: it leaves the line, or stops at its next event."""
        job.stopped = True
        if self.line.remove(job.client, job):
            job.post(None)

    def close(self) -> None:
        """Turn away whoever waits; the job that runs goes on."""
        for job in self.line.close():
            job.refuse(refusal.closing())

    def stop(self) -> None:
        """Stop the job that runs at its next event."""
        if (job := self.current) is not None:
            job.stopped = True

    def _run(self) -> None:
        while (job := self.line.take()) is not None:
            self.current, job.started = job, time.perf_counter()
            try:
                self._serve(job)
            except Exception as error:
                job.post(_explained(error))
            finally:
                self.current, self.last_s = None, time.perf_counter() - job.started
                with suppress(OSError, ValueError):  # a log that nobody can read any more
                    self.log(job)
                job.post(None)

    def _serve(self, job: Job) -> None:
        with closing(self.answer(job.wish)) as events:
            for event in events:
                job.tally.add(event)
                job.post(event)
                if job.stopped:
                    break
        if job.stopped and self.line.closed and job.tally.finished is None:
            raise refusal.closing()


def _explained(error: Exception) -> Refusal:
    """What a client may know of an error; a defect's traceback goes to the server's own terminal."""
    from triforce_chat.models.failures import is_out_of_memory

    if isinstance(error, Refusal):
        return error
    if isinstance(error, DoesNotFit):
        return Refusal(400, str(error), "context_length_exceeded", "messages")
    if isinstance(error, UsageError | ModelError):
        return Refusal(400, str(error))
    if isinstance(error, OutOfMemory) or is_out_of_memory(error):
        return Refusal(500, "out of memory", "out_of_memory")
    if isinstance(error, TriforceError):
        return Refusal(500, str(error))
    traceback.print_exception(error, file=sys.stderr)
    return refusal.failed()
