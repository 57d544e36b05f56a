"""Writing sessions while they happen, so that a killed process loses nothing that it has shown."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triforce_chat.chat.conversation import Turn
from triforce_chat.documents import Document
from triforce_chat.engine.events import Text
from triforce_chat.storage.sessions.cells import text_of
from triforce_chat.storage.sessions.database import Database
from triforce_chat.storage.sessions.lease import LOCK_TIMEOUT, InUse, Lease
from triforce_chat.storage.sessions.names import free_name
from triforce_chat.storage.sessions.serialization import (
    dump_statistics,
    pack_ids,
    pack_pages,
    pack_remarks,
    pages_digest,
    storable,
)
from triforce_chat.storage.sessions.values import ModelInfo

INTERRUPTED = "interrupted"  # why an answer ended whose process died


class SessionStore:
    """The user's sessions. Every method that changes something has committed it when it returns."""

    def __init__(self, path: Path) -> None:
        """Open the file, and end the answers of processes that died. Raises StateError."""
        self.database = Database(path)
        self.locks = path.parent / "locks"
        self._end_abandoned_turns()

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def lease(self, session: int, name: str, timeout: float = LOCK_TIMEOUT) -> Lease:
        """The exclusive right to write to a session. Raises InUse after ``timeout`` seconds."""
        return Lease(self.locks, session, name, timeout)

    def has_name(self, name: str) -> bool:
        """True if a session has this name."""
        return bool(self.database.query("SELECT 1 FROM sessions WHERE name = ?", name))

    # Sessions

    def create(
        self, name: str, system: str, model_info: ModelInfo, documents: Sequence[Document]
    ) -> tuple[int, Lease]:
        """Create a session and lease it: (id, lease). A name that is taken gets a number."""
        with self.database.transaction():
            name, now = free_name(name, self.has_name), time.time()
            session = self.database.insert(
                "INSERT INTO sessions (name, created, used, system, model, settings) VALUES (?, ?, ?, ?, ?, ?)",
                *(name, now, now, storable(system), model_info.model, json.dumps(model_info.settings)),
            )
            for document in documents:
                self._insert_document(session, document)
            lease = self.lease(session, name)  # before another process can see the session
        return session, lease

    def update(self, session: int, system: str, model_info: ModelInfo) -> None:
        """Store the present system prompt, model and settings."""
        self.database.query(
            "UPDATE sessions SET used = ?, system = ?, model = ?, settings = ? WHERE id = ?",
            *(time.time(), storable(system), model_info.model, json.dumps(model_info.settings), session),
        )

    def add_document(self, session: int, document: Document) -> None:
        """Add a document that belongs to the next question."""
        with self.database.transaction():
            self._insert_document(session, document)

    def remove_document(self, session: int, document: Document) -> None:
        """Delete the first document of a session that has this title and these pages."""
        self.database.query(
            "DELETE FROM documents WHERE id = "
            "(SELECT min(id) FROM documents WHERE session = ? AND title = ? AND hash = ?)",
            *(session, storable(document.title), pages_digest(document)),
        )

    # Turns

    def begin_turn(
        self, session: int, question: str, ids: Sequence[int], system: str, model_info: ModelInfo
    ) -> int:
        """Store a question and its token ids; returns the turn's row."""
        with self.database.transaction():
            self.update(session, system, model_info)
            return self.database.insert(
                "INSERT INTO turns (session, asked, model, vocabulary, question, question_ids) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                *(session, time.time(), model_info.model, model_info.vocabulary),
                *(storable(question), pack_ids(ids)),
            )

    def begin_answer(self, turn: int, pieces: Sequence[Text], replaces: int | None = None) -> None:
        """Store the first pieces of an answer.

        The turn takes the pending documents, or those of the turn that it ``replaces``, which is deleted.
        """
        with self.database.transaction():
            if replaces is None:
                self.database.query(
                    "UPDATE documents SET turn = ?1 WHERE turn IS NULL "
                    "AND session = (SELECT session FROM turns WHERE id = ?1)",
                    turn,
                )
            else:
                self.database.query("UPDATE documents SET turn = ? WHERE turn = ?", turn, replaces)
                self.database.query("DELETE FROM turns WHERE id = ?", replaces)
            for number, piece in enumerate(pieces):
                self.add_piece(turn, number, piece)

    def add_piece(self, turn: int, number: int, piece: Text) -> None:
        """Store piece ``number`` of an answer."""
        self.database.query(
            "INSERT INTO pieces (turn, number, text, ids) VALUES (?, ?, ?, ?)",
            *(turn, number, storable(piece.text), pack_ids(piece.token_ids)),
        )

    def end_turn(self, row: int, turn: Turn) -> None:
        """Replace the pieces of an answer by the whole of it."""
        done = turn.tally.finished
        reason = done.reason if done else INTERRUPTED
        with self.database.transaction():
            ids = pack_ids(turn.tally.token_ids)
            self._end(row, turn.answer, ids, reason, dump_statistics(turn.tally))

    def end_unanswered(self, turn: int) -> None:
        """End a turn without an answer; its question stays."""
        with self.database.transaction():
            self._end(turn, "", b"", INTERRUPTED, None)

    def delete_turn(self, turn: int) -> None:
        """Delete a turn; its documents then belong to the next question."""
        self.database.query("DELETE FROM turns WHERE id = ?", turn)

    def last_answered_turn(self, session: int) -> int | None:
        """Row of the last turn that has an answer."""
        found = self.database.query(
            "SELECT max(id) FROM turns WHERE session = ? AND length(answer_ids) > 0", session
        )
        return found[0][0] if found else None

    def unfinished_turns(self, session: int) -> list[tuple[int, str, bytes]]:
        """The turns that are being answered: (row, text so far, packed token ids so far)."""
        open_turns = "SELECT id FROM turns WHERE session = ? AND ended IS NULL"
        return [(turn, *self._joined_pieces(turn)) for (turn,) in self.database.query(open_turns, session)]

    def _insert_document(self, session: int, document: Document) -> None:
        key = pages_digest(document)
        self.database.query(
            "INSERT OR IGNORE INTO texts (hash, pages) VALUES (?, ?)", key, pack_pages(document)
        )
        self.database.query(
            "INSERT INTO documents (session, title, source, unit, remarks, hash) VALUES (?, ?, ?, ?, ?, ?)",
            *(session, storable(document.title), storable(document.source), document.unit),
            *(pack_remarks(document), key),
        )

    def _end(self, turn: int, answer: str, ids: bytes, reason: str, statistics: str | None) -> None:
        self.database.query(
            "UPDATE turns SET answer = ?, answer_ids = ?, ended = ?, statistics = ? WHERE id = ?",
            *(storable(answer), ids, reason, statistics, turn),
        )
        self.database.query("DELETE FROM pieces WHERE turn = ?", turn)

    def _end_abandoned_turns(self) -> None:
        """End answers whose process died, with the text that it had stored."""
        unfinished = "SELECT DISTINCT session FROM turns WHERE ended IS NULL"
        for (session,) in self.database.query(unfinished):
            try:
                lease = self.lease(session, "", timeout=0.0)
            except InUse:
                continue
            try:
                with self.database.transaction():
                    for turn, answer, ids in self.unfinished_turns(session):
                        self._end(turn, answer, ids, INTERRUPTED, None)
            finally:
                lease.release()

    def _joined_pieces(self, turn: int) -> tuple[str, bytes]:
        pieces: list[Any] = self.database.query(
            "SELECT text, ids FROM pieces WHERE turn = ? ORDER BY number", turn
        )
        ids = b"".join(ids for _, ids in pieces if isinstance(ids, bytes))
        return "".join(text_of(text) for text, _ in pieces), ids
