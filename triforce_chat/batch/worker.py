"""The program of a worker process: it loads a model and answers the lines that the driver sends."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from rich.console import Console

from triforce_chat.batch.lines import Answerer, Line, within
from triforce_chat.batch.worker_pool import Done, Lost, Note, Progress, Ready, Report, Unusable, relayed
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.errors import RankLost, TriforceError
from triforce_chat.parallel.failure import describe_error
from triforce_chat.parallel.worker import Stopped, end_with_parent, open_inbox
from triforce_chat.ui.terminal import Screen

TOLD = (Prefilled, Text)  # the events that the driver shows something of
WIDTH = 10_000  # columns: a warning is one line


class Load(Protocol):
    """Loads a model, and shows warnings on a screen: (answerer, seconds of loading). Can be pickled."""

    def __call__(self, screen: Screen) -> tuple[Answerer, float]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to start."""

    worker: int
    load: Load
    limit: float | None  # seconds for an answer


def main(descriptor: int) -> None:
    """Answer lines until the driver says that it is done, or is gone; ``descriptor`` is this end of the pipe."""
    end_with_parent()
    connection = Connection(descriptor)
    inbox = open_inbox(connection)
    with suppress(Stopped):
        work(inbox.receive(), inbox.receive, connection.send)


def work(job: Job, receive: Callable[[], Sequence[Line]], send: Callable[[Report], None]) -> None:
    """Load the model and answer the lines that are received, until that raises an exception."""
    answerer = loaded(job, send)
    while answerer is not None:
        for report in answer(job, answerer, receive()):
            send(report)
            if isinstance(report, Lost):
                return


def loaded(job: Job, send: Callable[[Report], None]) -> Answerer | None:
    """The answerer of this process, after its ``Ready``; None after ``Unusable``."""
    lines = LineStream(lambda line: send(Note(job.worker, line)))
    screen = Screen(Console(file=io.StringIO()), Console(file=lines, width=WIDTH), "bare")
    try:
        answerer, seconds = job.load(screen)
    except Exception as error:
        send(Unusable(job.worker, understood(error)))
        return None
    send(Ready(job.worker, seconds, answerer.width))
    return answerer


def answer(job: Job, answerer: Answerer, lines: Sequence[Line]) -> Iterator[Report]:
    """Reports to the driver about answers that run at once."""
    try:
        for report in relayed(job.worker, within(answerer.answer(lines), job.limit)):
            if isinstance(report, Done) or (isinstance(report, Progress) and isinstance(report.event, TOLD)):
                yield report
    except RankLost as error:
        yield Lost(job.worker, str(error))


def understood(error: Exception) -> TriforceError:
    """The error as a user can understand it; the traceback of a defect goes to standard error."""
    if isinstance(error, TriforceError):
        return error
    message, exit_code = describe_error(error)
    if exit_code == RankLost.exit_code:
        traceback.print_exception(error, file=sys.stderr)
    known = TriforceError(message)
    known.exit_code = exit_code if exit_code != RankLost.exit_code else TriforceError.exit_code
    return known


class LineStream(io.StringIO):
    """A stream that hands on each line that is written to it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._begun = say, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            self._say(line)
        return len(text)
