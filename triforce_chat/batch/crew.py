"""The protocol between the driver of a batch and its workers, wherever these run.

A worker is a number from 0. It loads a model, says ``Ready``, and then answers one line at a time. Every crew speaks
this protocol, so the driver does not know whether its workers are processes of this machine or actors of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from triforce_chat.batch.lines import Answered, Answerer, Line, within
from triforce_chat.chat.events import ChatEvent
from triforce_chat.errors import TriforceError


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has loaded its model."""

    worker: int
    load_s: float  # seconds that it took


@dataclass(frozen=True, slots=True)
class Progress:
    """Something happened in the running answer; not every crew tells."""

    worker: int
    event: ChatEvent


@dataclass(frozen=True, slots=True)
class Done:
    """The running answer has ended."""

    worker: int
    answered: Answered


@dataclass(frozen=True, slots=True)
class Said:
    """A worker has something to tell the user."""

    worker: int
    line: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker ended unasked, with the answer that was running, if any."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """A worker cannot load its model, and another start would not change that."""

    worker: int
    error: TriforceError


Report = Ready | Progress | Done | Said | Lost | Unusable


class Crew(Protocol):
    """Workers. As a context manager it starts all of them, and ends all of them."""

    @property
    def size(self) -> int:
        """The number of workers."""
        ...

    @property
    def replaceable(self) -> bool:
        """True if workers can be ended in the middle of an answer."""
        ...

    @property
    def patience(self) -> float | None:
        """Seconds without a single worker after which none is expected any more."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def give(self, worker: int, line: Line) -> None:
        """Have a worker without a running answer answer a line. If it has ended, that is reported."""
        ...

    def reports(self) -> Iterator[Report]:
        """What the workers reported; waits about a second if there is nothing. Raises RankLost."""
        ...

    def replace(self, worker: int) -> None:
        """End a worker, whatever it is doing, and start another one of its number."""
        ...

    def dismiss(self, worker: int) -> None:
        """End a worker for good."""
        ...


class ThisProcess:
    """A crew of one worker, which is this process; it answers while its reports are read."""

    size = 1
    replaceable = False
    patience = None

    def __init__(self, answerer: Answerer, load_s: float = 0.0, limit: float | None = None) -> None:
        """``load_s``: seconds that the model took to load. ``limit``: those that an answer may take."""
        self._answerer, self._limit, self._load_s = answerer, limit, load_s
        self._line: Line | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing has to be ended."""

    def give(self, worker: int, line: Line) -> None:  # noqa: ARG002
        self._line = line

    def reports(self) -> Iterator[Report]:
        if self._line is None:
            yield Ready(0, self._load_s)
            return
        answering = within(self._answerer.answer(self._line), self._limit)
        self._line = None
        yield from relayed(0, answering)

    def replace(self, worker: int) -> None:
        raise NotImplementedError("a process does not end itself")

    def dismiss(self, worker: int) -> None:
        raise NotImplementedError("a process does not end itself")


def relayed(worker: int, answering: Iterator[ChatEvent]) -> Iterator[Report]:
    """The reports of one answer."""
    while True:
        try:
            event = next(answering)
        except StopIteration as done:
            yield Done(worker, done.value)
            return
        yield Progress(worker, event)
