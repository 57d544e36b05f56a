"""Runs the server until Ctrl-C, then gives the running answer a moment to finish."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import uvicorn
from rich.console import Console
from starlette.types import ASGIApp

from triforce_chat.chat.events import ChatEvent
from triforce_chat.chat.session import ChatSession
from triforce_chat.models.failures import convert_out_of_memory
from triforce_chat.serve.adapter import SessionAdapter
from triforce_chat.serve.app import ServedModel, build_app
from triforce_chat.serve.engines import ForkedEngines, Lender, SingleEngine
from triforce_chat.serve.worker import Job, Log, Worker
from triforce_chat.settings.engine_options import sampling_of
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean

GRACE = 1.0  # seconds after Ctrl-C until the running answer is stopped
PATIENCE = 4  # seconds after Ctrl-C until connections are closed


class Server(uvicorn.Server):
    """uvicorn's server, which also closes the worker when it shuts down."""

    def __init__(self, app: ASGIApp, worker: Worker) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=PATIENCE,
            )
        )
        self.worker = worker

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.close()
        asyncio.get_running_loop().call_later(GRACE, self.worker.stop)
        await super().shutdown(sockets)


def serve(
    session: ChatSession,
    engines: Lender,
    listener: socket.socket,
    token: str | None,
    console: Console | None,
    origins: Sequence[str] = (),
) -> None:
    """Answer requests about the session's documents until Ctrl-C or SIGTERM, as many at a time as engines are lent.

    ``console`` receives one line per request; pages from ``origins`` may send some.
    """
    log = console_log(console) if console else no_log
    worker = Worker(SessionAdapter(session, engines).answer, log, engines.width, engines.gathered)
    titles = tuple(document.title for document in session.documents)
    served = ServedModel(session.loaded.name, session.context_limit, titles)
    try:
        with stopped_by_signals():
            Server(build_app(worker, served, token, origins), worker).run(sockets=[listener])
    finally:
        worker.close()
        worker.stop()
        worker.thread.join(PATIENCE)


def lender(session: ChatSession, parallel: int) -> Lender:
    """Lends engines for so many answers at once, or for one where the engine cannot be forked. Raises OutOfMemory."""
    origin, prefix = session.engine.forkable, session.transcript.prefix()
    if origin is None or parallel == 1:
        return SingleEngine(session.engine)
    return ForkedEngines(origin, parallel, prefix.ids, prefix.spans)


def reading(session: ChatSession, engines: Lender) -> Iterator[ChatEvent]:
    """Read the session's documents, and prepare for answers by its settings and for greedy ones."""
    prefix, settings = session.transcript.prefix(), session.settings
    usual, greedy = (
        sampling_of(each, session.loaded) for each in (settings, replace(settings, temperature=0.0))
    )
    with convert_out_of_memory():
        yield from engines.read(prefix.ids, prefix.spans, list(dict.fromkeys([usual, greedy])))
        engines.prepare()


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Ignore the SIGINT or SIGTERM that uvicorn raises again after its shutdown: for a server it is no failure."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda _number, _frame: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def no_log(job: Job) -> None:
    """Log nothing."""


def console_log(console: Console) -> Log:
    """Logs one line per answer: the time, whether it was stopped, and its figures; nothing of its content."""

    def log(job: Job) -> None:
        tally = job.tally
        made = [formatting.count(len(tally.token_ids), "token")] if tally.finished is None else []
        pieces = [*(["stopped", *made] if job.cancelled else []), *formatting.summary(tally)]
        if pieces:
            line = formatting.SEPARATOR.join([time.strftime("%H:%M:%S"), *pieces])
            console.print(clean(line), markup=False, style="dim", soft_wrap=True)

    return log
