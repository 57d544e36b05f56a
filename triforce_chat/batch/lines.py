"""What a batch is made of: lines to be answered, those that were, and errors as lines tell them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
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
        """The same for lines about the same documents, whose keys and values they share."""
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
    """A line as it is written; ``tokens`` counts those of the answer."""

    record: dict[str, Any]
    tokens: int = 0

    @property
    def failed(self) -> bool:
        return self.record["error"] is not None


Answering = Generator[ChatEvent, None, Answered]  # the events of an answer, and its record at the end


class Answerer(Protocol):
    """Answers lines of one kind with a loaded model."""

    def answer(self, line: Line) -> Answering:
        """Answer one line; what goes wrong with it is in its record. Raises RankLost: no other would be answered."""
        ...


def within(
    answering: Answering, seconds: float | None, clock: Callable[[], float] = time.monotonic
) -> Answering:
    """An answer that is given up at the first event after so many seconds; its record then says so."""
    end = None if seconds is None else clock() + seconds
    try:
        event = next(answering)
        while True:
            yield event
            if end is None or seconds is None or clock() < end:
                event = next(answering)
            else:
                event = answering.throw(late(seconds))
    except StopIteration as done:
        answered: Answered = done.value
        return answered
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
