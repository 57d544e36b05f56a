"""What a batch is made of: lines to be answered, those that were, and errors as lines tell them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from triforce_chat.chat.events import ChatEvent
from triforce_chat.errors import RankLost, TriforceError
from triforce_chat.serve.api_error import to_api_error

Each = Callable[[ChatEvent], object]  # receives the events of an answer


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


@dataclass(frozen=True, slots=True)
class Answered:
    """A line as it is written; ``tokens`` counts those of the answer."""

    record: dict[str, Any]
    tokens: int = 0

    @property
    def failed(self) -> bool:
        return self.record["error"] is not None


class Answerer(Protocol):
    """Answers lines of one kind with a loaded model."""

    def answer(self, line: Line, each: Each) -> Answered:
        """Answer one line; what goes wrong with it is in its record. Raises RankLost: no other would be answered."""
        ...


def error_object(error: Exception) -> dict[str, str]:
    """An error as a line tells it: a code for programs and one sentence. Raises RankLost."""
    if isinstance(error, RankLost):
        raise error
    if isinstance(error, TriforceError):
        return {"code": error.code, "message": str(error)}
    known = to_api_error(error)
    return {"code": known.code or known.body["error"]["type"], "message": known.message}
