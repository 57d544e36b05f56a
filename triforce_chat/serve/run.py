"""The server's life: it listens until Ctrl-C, then lets the running answer end if that is soon."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from rich.console import Console
from starlette.types import ASGIApp

from triforce_chat.chat.session import Session
from triforce_chat.serve.app import Served, build
from triforce_chat.serve.desk import Desk, Job, Log
from triforce_chat.serve.talk import Talk
from triforce_chat.ui import figures
from triforce_chat.ui.clean import clean

GRACE = 1.0  # seconds after Ctrl-C in which the running answer may end
PATIENCE = 4  # seconds after which connections are cut


class Server(uvicorn.Server):
    """uvicorn, which tells the desk when it is to close."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
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
        self.desk = desk

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.desk.close()
        asyncio.get_running_loop().call_later(GRACE, self.desk.stop)
        await super().shutdown(sockets)


def serve(session: Session, listener: socket.socket, token: str | None, console: Console | None) -> None:
    """Answer requests about the session's documents until Ctrl-C; ``console`` gets a line for each of them."""
    desk = Desk(Talk(session).answer, log_on(console) if console else unlogged)
    titles = tuple(document.title for document in session.documents)
    served = Served(session.loaded.name, session.context_limit, titles)
    try:
        with ended_by_signals():
            Server(build(desk, served, token), desk).run(sockets=[listener])
    finally:
        desk.close()
        desk.stop()
        desk.thread.join(PATIENCE)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """uvicorn raises again the signals that ended it; for a server they are how it ends, not a failure."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda _number, _frame: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def unlogged(job: Job) -> None:
    """Nobody wants to read about requests."""


def log_on(console: Console) -> Log:
    """A line about each answer: when it ended, its figures, whether it was stopped; nothing of what was said."""

    def log(job: Job) -> None:
        pieces = [*(["stopped"] if job.stopped else []), *figures.summary(job.tally)]
        if pieces:
            line = figures.SEPARATOR.join([time.strftime("%H:%M:%S"), *pieces])
            console.print(clean(line), markup=False, style="dim", soft_wrap=True)

    return log
