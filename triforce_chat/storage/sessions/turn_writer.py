"""Writing one turn to the session store while it is answered."""

from __future__ import annotations

from collections.abc import Callable

from triforce_chat.chat.conversation import Turn
from triforce_chat.engine.events import Text
from triforce_chat.errors import StateError
from triforce_chat.storage.sessions.store import SessionStore


class TurnWriter:
    """Stores one turn piece by piece.

    If the store fails, the answer continues without being written; ``raise_failure`` reports it at the end.
    """

    def __init__(
        self, store: SessionStore, begin: Callable[[], int], replaces: int | None, beginning: Text | None
    ) -> None:
        """``begin``: stores the question and returns the turn's row.

        ``replaces``: row of the turn that is deleted as soon as this one has a token. ``beginning``: what a
        continued answer said before.
        """
        self._store, self._begin = store, begin
        self._replaces, self._beginning = replaces, beginning
        self._row: int | None = None  # row; None until the turn has begun
        self._pieces = 0
        self._failure: StateError | None = None

    @property
    def row(self) -> int | None:
        """The turn's row if all of it could be written."""
        return None if self._failure else self._row

    def begin(self) -> None:
        """Store the question, once."""
        if self._row is None:
            self._attempt(self._begin_turn)

    def add(self, event: object) -> None:
        """Store the text and tokens of an event; other events are ignored."""
        if isinstance(event, Text):
            self._attempt(lambda: self._add_piece(event))

    def end(self, turn: Turn | None) -> None:
        """Complete the turn as it stands in the conversation; None if it is not there."""
        self._attempt(lambda: self._end_turn(turn))

    def raise_failure(self) -> None:
        """Raise StateError if something could not be written."""
        if self._failure:
            raise StateError(f"this answer is not saved: {self._failure}") from self._failure

    def _attempt(self, write: Callable[[], None]) -> None:
        if self._failure is None:
            try:
                write()
            except StateError as error:
                self._failure = error

    def _begin_turn(self) -> None:
        self._row = self._begin()

    def _add_piece(self, event: Text) -> None:
        if self._row is None:
            return
        if self._pieces:
            self._store.add_piece(self._row, self._pieces, event)
            self._pieces += 1
        else:
            first = [piece for piece in (self._beginning, event) if piece]
            self._store.begin_answer(self._row, first, self._replaces)
            self._pieces = len(first)

    def _end_turn(self, turn: Turn | None) -> None:
        if self._row is None:
            return
        if turn is not None:
            self._store.end_turn(self._row, turn)
        elif self._replaces is not None:
            self._store.delete_turn(self._row)
        else:
            self._store.end_unanswered(self._row)
