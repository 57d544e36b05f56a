"""Writing a conversation down while it happens, so that the death of the process loses nothing that was shown."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triforce_chat.chat.conversation import Turn
from triforce_chat.documents import Document
from triforce_chat.engine.events import Text
from triforce_chat.storage.sessions import names
from triforce_chat.storage.sessions.database import Database
from triforce_chat.storage.sessions.lease import InUse, Lease
from triforce_chat.storage.sessions.values import (
    Answerer,
    packed,
    pages_of,
    remarks_of,
    statistics_of,
    storable,
)

INTERRUPTED = "interrupted"  # why an answer ended that its process did not live to end


class Store:
    """The user's sessions. Every method that changes something has committed it when it returns."""

    def __init__(self, path: Path) -> None:
        """Open the file and end the answers that a process left behind. Raises StateError."""
        self.database = Database(path)
        self.locks = path.parent / "locks"
        self._settle()

    def close(self) -> None:
        self.database.close()

    def lease(self, session: int, name: str, **patience: float) -> Lease:
        """The right to write to a session. Raises InUse."""
        return Lease(self.locks, session, name, **patience)

    def taken(self, name: str) -> bool:
        return bool(self.database.rows("SELECT 1 FROM sessions WHERE name = ?", name))

    def create(
        self, name: str, system: str, answerer: Answerer, documents: Sequence[Document]
    ) -> tuple[int, Lease]:
        """A session of that name, or of the same with a number, and the right to write to it."""
        with self.database.transaction():
            name, now = names.free(name, self.taken), time.time()
            session = self.database.insert(
                "INSERT INTO sessions (name, created, used, system, model, settings) VALUES (?, ?, ?, ?, ?, ?)",
                *(name, now, now, storable(system), answerer.model, json.dumps(answerer.settings)),
            )
            for document in documents:
                self._add(session, document)
            lease = self.lease(session, name)  # before anybody else can see the session
        return session, lease

    def add(self, session: int, document: Document) -> None:
        """A document that belongs to the next question."""
        with self.database.transaction():
            self._add(session, document)

    def update(self, session: int, system: str, answerer: Answerer) -> None:
        """The present system text, model and settings."""
        self.database.rows(
            "UPDATE sessions SET used = ?, system = ?, model = ?, settings = ? WHERE id = ?",
            *(time.time(), storable(system), answerer.model, json.dumps(answerer.settings), session),
        )

    def begin(self, session: int, question: str, ids: Sequence[int], system: str, answerer: Answerer) -> int:
        """A question was put; returns the turn."""
        with self.database.transaction():
            self.update(session, system, answerer)
            return self.database.insert(
                "INSERT INTO turns (session, asked, model, vocabulary, question, question_ids) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                *(session, time.time(), answerer.model, answerer.vocabulary, storable(question), packed(ids)),
            )

    def begin_answer(self, turn: int, said: Sequence[Text], instead: int | None = None) -> None:
        """The first pieces: the waiting documents are this turn's now, or those of the turn that it replaces."""
        with self.database.transaction():
            if instead is None:
                self.database.rows(
                    "UPDATE documents SET turn = ?1 WHERE turn IS NULL "
                    "AND session = (SELECT session FROM turns WHERE id = ?1)",
                    turn,
                )
            else:
                self.database.rows("UPDATE documents SET turn = ? WHERE turn = ?", turn, instead)
                self.database.rows("DELETE FROM turns WHERE id = ?", instead)
            for number, piece in enumerate(said):
                self.say(turn, number, piece)

    def say(self, turn: int, number: int, said: Text) -> None:
        """Piece ``number`` of the answer."""
        self.database.rows(
            "INSERT INTO pieces (turn, number, text, ids) VALUES (?, ?, ?, ?)",
            *(turn, number, storable(said.text), packed(said.token_ids)),
        )

    def end(self, turn: int, kept: Turn) -> None:
        """The whole answer takes the place of its pieces."""
        done = kept.tally.finished
        reason = done.reason if done else INTERRUPTED
        statistics = json.dumps(statistics_of(kept.tally))
        with self.database.transaction():
            self._end(turn, kept.answer, packed(kept.tally.token_ids), reason, statistics)

    def unanswered(self, turn: int) -> None:
        """The question stays; nothing was said."""
        with self.database.transaction():
            self._end(turn, "", b"", INTERRUPTED, None)

    def forget(self, turn: int) -> None:
        """A turn that was to replace another and did not."""
        self.database.rows("DELETE FROM turns WHERE id = ?", turn)

    def last_answered(self, session: int) -> int | None:
        found = self.database.rows(
            "SELECT max(id) FROM turns WHERE session = ? AND length(answer_ids) > 0", session
        )
        return found[0][0] if found else None

    def _add(self, session: int, document: Document) -> None:
        key, pages = pages_of(document)
        self.database.rows("INSERT OR IGNORE INTO texts (hash, pages) VALUES (?, ?)", key, pages)
        self.database.rows(
            "INSERT INTO documents (session, title, source, unit, remarks, hash) VALUES (?, ?, ?, ?, ?, ?)",
            *(session, storable(document.title), storable(document.source), document.unit),
            *(remarks_of(document), key),
        )

    def _end(self, turn: int, answer: str, ids: bytes, reason: str, statistics: str | None) -> None:
        self.database.rows(
            "UPDATE turns SET answer = ?, answer_ids = ?, ended = ?, statistics = ? WHERE id = ?",
            *(storable(answer), ids, reason, statistics, turn),
        )
        self.database.rows("DELETE FROM pieces WHERE turn = ?", turn)

    def _settle(self) -> None:
        """End the answers whose process is gone with what it had said."""
        left = "SELECT DISTINCT session FROM turns WHERE ended IS NULL"
        for (session,) in self.database.rows(left):
            try:
                lease = self.lease(session, "", patience=0.0)
            except InUse:
                continue
            try:
                with self.database.transaction():
                    for turn, answer, ids in self.unfinished(session):
                        self._end(turn, answer, ids, INTERRUPTED, None)
            finally:
                lease.release()

    def unfinished(self, session: int) -> list[tuple[int, str, bytes]]:
        """(turn, what was said so far, its ids) of the questions that are being answered."""
        open_turns = "SELECT id FROM turns WHERE session = ? AND ended IS NULL"
        return [(turn, *self._said(turn)) for (turn,) in self.database.rows(open_turns, session)]

    def _said(self, turn: int) -> tuple[str, bytes]:
        pieces: list[Any] = self.database.rows(
            "SELECT text, ids FROM pieces WHERE turn = ? ORDER BY number", turn
        )
        return "".join(text for text, _ in pieces), b"".join(ids for _, ids in pieces)
