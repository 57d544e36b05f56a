"""The thread that owns the engines. It answers requests, several at a time, and posts events to the event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.engine.events import Calibrated, Prefilled, Text
from triforce_chat.engine.gathered import Ended, Gathered
from triforce_chat.serve import api_error
from triforce_chat.serve.api_error import ApiError, to_api_error
from triforce_chat.serve.chat_request import ChatCompletionRequest
from triforce_chat.serve.fair_queue import FairQueue, QueueFull
from triforce_chat.serve.metrics import Metrics

MAX_QUEUED = 64  # requests
MAX_QUEUED_PER_CLIENT = 16  # requests

Answer = Callable[[ChatCompletionRequest], Generator[ChatEvent, None, None]]
Log = Callable[["Job"], None]
Item = list[ChatEvent] | ApiError | None  # that the event loop reads; None ends an answer


class Job:
    """A request in progress: the worker's thread posts its events, the event loop reads them.

    What the thread posts is handed over at intervals, as each time costs it more than many an event.
    """

    def __init__(self, client: Hashable, request: ChatCompletionRequest) -> None:
        self.client, self.request = client, request
        self.loop = asyncio.get_running_loop()
        self.posted: list[ChatEvent] = []  # and not handed over yet
        self.items: asyncio.Queue[Item] = asyncio.Queue()
        self.cancelled = False
        self.tally = Tally()
        self.arrived, self.started = time.perf_counter(), 0.0
        self.read, self.decoding_s = (
            0.0,
            0.0,
        )  # time at which the prompt was read; seconds from then to the last token

    @property
    def queued_s(self) -> float:
        """Seconds that the request waited in the queue."""
        return max(0.0, self.started - self.arrived)

    def post(self, event: ChatEvent) -> None:
        self.tally.add(event)
        self.posted.append(event)
        if isinstance(event, Prefilled | Calibrated):
            self.read = time.perf_counter()
        elif isinstance(event, Text):
            self.decoding_s = time.perf_counter() - self.read

    def taken(self) -> list[ChatEvent]:
        """What was posted, which is now to be handed over."""
        posted, self.posted = self.posted, []
        return posted

    def end(self, error: ApiError | None = None) -> None:
        """Hand over what was posted, an error if there is one, and the end."""
        hand_over([(self, item) for item in (self.taken() or None, error) if item] + [(self, None)])

    async def events(self) -> AsyncIterator[list[ChatEvent]]:
        """The events of the answer, as many at a time as were handed over together.

        Raises ApiError if the answer fails, before or after its first events.
        """
        while (item := await self.items.get()) is not None:
            if isinstance(item, ApiError):
                raise item
            yield item


def hand_over(items: Sequence[tuple[Job, Item]]) -> None:
    """Wake the event loop, which all jobs share, to give each job its items."""

    def put() -> None:
        for job, item in items:
            job.items.put_nowait(item)

    if items:
        with suppress(RuntimeError):  # the loop is closed: there is no reader
            items[0][0].loop.call_soon_threadsafe(put)


class Worker:
    """Answers queued jobs in a thread of its own, up to ``width`` at a time.

    ``gathered`` runs them. ``log`` is called with every job that was started, at its end.
    """

    def __init__(
        self, answer: Answer, log: Log, width: int = 1, gathered: Gathered[ChatEvent] | None = None
    ) -> None:
        self.answer, self.log, self.width = answer, log, width
        self.gathered = gathered or Gathered()
        self.queue: FairQueue[Job] = FairQueue(MAX_QUEUED, MAX_QUEUED_PER_CLIENT)
        self.running: dict[int, Job] = {}
        self.last_s = 1.0  # duration of the last answer
        self.metrics = Metrics()
        self._numbers = count()
        self.thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.thread.start()

    def submit(self, client: Hashable, request: ChatCompletionRequest) -> Job:
        """Queue a request. Raises ApiError if the queue is full. Call it in the event loop."""
        job = Job(client, request)
        try:
            self.queue.add(client, job)
        except QueueFull:
            if self.queue.closed:
                raise api_error.shutting_down() from None
            self.metrics.rejected()
            wait = {"Retry-After": str(max(1, math.ceil(self.last_s)))}
            raise ApiError(
                429, "too many requests are waiting; try again", "queue_full", None, wait
            ) from None
        return job

    def cancel(self, job: Job) -> None:
        """Remove a job from the queue, or stop it at its next event or forward."""
        job.cancelled = True
        if self.queue.remove(job.client, job):
            job.end()

    def close(self) -> None:
        """Reject all waiting and future jobs; those that run continue."""
        for job in self.queue.close():
            job.end(api_error.shutting_down())

    def stop(self) -> None:
        """Stop the running jobs at their next event or forward."""
        for job in [*self.running.values()]:
            job.cancelled = True

    def _run(self) -> None:
        while self._admit():
            try:
                for number, made in self.gathered.advance():
                    self._pass_on(number, made)
                    if len(self.running) == 1:  # an engine that was not forked answers without a stop
                        self._hand_over()
                self._hand_over()
                self.gathered.compute()
                for number in [number for number, job in self.running.items() if job.cancelled]:
                    self._stop(number)
            except Exception as error:
                self.gathered.close()
                for number in [*self.running]:
                    self._end(number, error)

    def _admit(self) -> bool:
        """Let waiting jobs join those that run, after waiting for one if none does. False if all is over."""
        while len(self.running) < self.width:
            job = self.queue.take(wait=not self.running)
            if job is None:
                break
            number, job.started = next(self._numbers), time.perf_counter()
            self.running[number] = job
            self.gathered.add(number, partial(self.answer, job.request))
        return bool(self.running)

    def _pass_on(self, number: int, made: ChatEvent | Ended) -> None:
        job = self.running[number]
        if isinstance(made, Ended):
            self._end(number, made.error)
            return
        job.post(made)
        if job.cancelled:
            self._stop(number)

    def _hand_over(self) -> None:
        """Hand over what was posted since the last time, of all jobs."""
        hand_over([(job, job.taken()) for job in self.running.values() if job.posted])

    def _stop(self, number: int) -> None:
        """End a cancelled job where it is."""
        self.gathered.end(number)
        unfinished = self.queue.closed and self.running[number].tally.finished is None
        self._end(number, api_error.shutting_down() if unfinished else None)

    def _end(self, number: int, error: Exception | None) -> None:
        """Forget a job, then tell its client, who may read the metrics or send the next request at once."""
        job = self.running.pop(number)
        self.last_s = time.perf_counter() - job.started
        self.metrics.ended(job)
        with suppress(OSError, ValueError):  # the log's terminal or file is gone
            self.log(job)
        job.end(to_api_error(error) if error else None)
