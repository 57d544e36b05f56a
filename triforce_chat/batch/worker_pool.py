"""The protocol between the driver of a batch and its workers, wherever these run.

A worker is a number from 0. It loads a model, says ``Ready``, and then answers the lines that it is given, all about
the same documents, before it is given others. Every pool speaks this protocol, so the driver does not know whether its
workers are processes of this machine or actors of a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from triforce_chat.batch.lines import Answered, Answerer, Answering, Line, within
from triforce_chat.chat.events import ChatEvent
from triforce_chat.errors import TriforceError

TICK = 1.0  # seconds until the driver looks at the clock again


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has loaded its model."""

    worker: int
    load_s: float  # seconds that it took
    width: int = 1  # lines that it answers at once


@dataclass(frozen=True, slots=True)
class Progress:
    """Something happened in the running answers; not every pool reports it."""

    worker: int
    event: ChatEvent


@dataclass(frozen=True, slots=True)
class Done:
    """A running answer has ended."""

    worker: int
    answered: Answered


@dataclass(frozen=True, slots=True)
class Note:
    """A worker has something to tell the user."""

    worker: int
    line: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker ended unasked, with the answers that were running, if any."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """A worker cannot load its model, and another start would not change that."""

    worker: int
    error: TriforceError


Report = Ready | Progress | Done | Note | Lost | Unusable


class WorkerPool(Protocol):
    """A pool of workers. As a context manager it starts all of them, and ends all of them."""

    @property
    def size(self) -> int:
        """The number of workers."""
        ...

    @property
    def replaceable(self) -> bool:
        """True if workers can be ended in the middle of an answer."""
        ...

    @property
    def elsewhere(self) -> bool:
        """True if its workers are on machines that may be lost."""
        ...

    @property
    def patience(self) -> float | None:
        """Seconds without a single worker after which none is expected any more."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def give(self, worker: int, lines: Sequence[Line]) -> None:
        """Have a worker without a running answer answer lines. If it has ended, that is reported."""
        ...

    def reports(self) -> Iterator[Report]:
        """What the workers reported; waits about a second if there is nothing. Raises RankLost."""
        ...

    def replace(self, worker: int) -> None:
        """End a worker, whatever it is doing, and start another one of its number."""
        ...

    def dismiss(self, worker: int) -> None:
        """End a worker permanently."""
        ...


class Replaceable(ABC):
    """A pool whose workers are started, and ended, one by one."""

    replaceable = True
    elsewhere = False
    size: int

    @abstractmethod
    def start(self, worker: int) -> None:
        """Start a worker."""

    @abstractmethod
    def dismiss(self, worker: int) -> None:
        """End a worker permanently."""

    @abstractmethod
    def end(self, finishing: bool) -> None:
        """End all workers; ``finishing``: they may finish what they write to the disk."""

    def __enter__(self) -> Self:
        for worker in range(self.size):
            self.start(worker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(finishing=error is None)

    def replace(self, worker: int) -> None:
        self.dismiss(worker)
        self.start(worker)


class ThisProcess:
    """A worker pool of one worker, which is this process; it answers while its reports are read."""

    size = 1
    replaceable = elsewhere = False
    patience = None

    def __init__(self, answerer: Answerer, load_s: float = 0.0, limit: float | None = None) -> None:
        """``load_s``: seconds that the model took to load. ``limit``: those that an answer may take."""
        self._answerer, self._limit, self._load_s = answerer, limit, load_s
        self._lines: Sequence[Line] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing has to be ended."""

    def give(self, worker: int, lines: Sequence[Line]) -> None:  # noqa: ARG002
        self._lines = lines

    def reports(self) -> Iterator[Report]:
        if not self._lines:
            yield Ready(0, self._load_s, self._answerer.width)
            return
        answering = within(self._answerer.answer(self._lines), self._limit)
        self._lines = ()
        yield from relayed(0, answering)

    def replace(self, worker: int) -> None:
        raise NotImplementedError("a process does not end itself")

    def dismiss(self, worker: int) -> None:
        raise NotImplementedError("a process does not end itself")


def relayed(worker: int, answering: Answering) -> Iterator[Report]:
    """The reports of answers that run at once."""
    for item in answering:
        yield Done(worker, item) if isinstance(item, Answered) else Progress(worker, item)
