"""What a batch is made of: lines to be answered, those that were, and errors as lines tell them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from triforce_chat.chat.events import ChatEvent
from triforce_chat.errors import RankLost, TimeLimit, TriforceError
from triforce_chat.serve.api_error import to_api_error


class Line(Protocol):
    """One line of the output that is wanted."""

    @property
    def id(self) -> str:
        """Tells the line in the output from all others."""
        ...

    @property
    def name(self) -> str:
        """What a message calls it: the file of a book, or the id of a request."""
        ...

    @property
    def group(self) -> str:
        """A key that is equal for lines about the same documents, whose keys and values they share."""
        ...

    @property
    def documents(self) -> tuple[str, ...]:
        """The paths of the documents that the line names."""
        ...

    @property
    def digest(self) -> str:
        """Tells the line from one of the same id that asks something else."""
        ...

    def refused(self, error: dict[str, str]) -> dict[str, Any]:
        """The record of this line with an error in place of an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """A line as it is written. ``id``: the line's; ``tokens`` counts those of the answer."""

    id: str
    record: dict[str, Any]
    tokens: int = 0

    @property
    def failed(self) -> bool:
        return self.record["error"] is not None


Answering = Generator[
    ChatEvent | Answered, None, None
]  # the events of answers, and each one once it has ended


class Answerer(Protocol):
    """Answers lines of one kind with a loaded model."""

    @property
    def width(self) -> int:
        """How many lines about the same documents are worth answering at once."""
        ...

    def answer(self, lines: Sequence[Line]) -> Answering:
        """Answer lines about the same documents at once; what goes wrong with one is in its record.

        Raises RankLost: no other line would be answered.
        """
        ...


def within(
    answering: Answering, seconds: float | None, clock: Callable[[], float] = time.monotonic
) -> Answering:
    """Answers that are given up at the first event after so many seconds; their records then say so."""
    end = None if seconds is None else clock() + seconds
    try:
        item = next(answering)
        while True:
            yield item
            if end is None or seconds is None or clock() < end:
                item = next(answering)
            else:
                end, item = None, answering.throw(late(seconds))
    except StopIteration:
        return
    finally:
        answering.close()


def late(seconds: float) -> TimeLimit:
    return TimeLimit(f"no answer within {seconds:g} s")


def error_object(error: Exception) -> dict[str, str]:
    """An error as a line tells it: a code for programs and one sentence. Raises RankLost."""
    if isinstance(error, RankLost):
        raise error
    if isinstance(error, TriforceError):
        return {"code": error.code, "message": str(error)}
    known = to_api_error(error)
    return {"code": known.code or known.body["error"]["type"], "message": known.message}
