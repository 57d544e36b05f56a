"""All sessions: find, load, search, rename, copy and delete them."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import Any

from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.documents import Document
from triforce_chat.errors import StateError, UsageError
from triforce_chat.storage.sessions.cells import damage_reported, object_of, text_of, time_of
from triforce_chat.storage.sessions.names import check_name, free_name
from triforce_chat.storage.sessions.serialization import load_tally, storable, unpack_document, unpack_ids
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.storage.sessions.values import SearchHit, SessionRecord, SessionSummary
from triforce_chat.suggestions import did_you_mean

EXCERPT_WORDS = 16
MAX_HITS = 50
MOST_NAMED = 5  # sessions that an error names
NONE = "there is no session yet: 'triforce-chat chat' begins one"


class Catalog:
    """The sessions of a store, by name."""

    def __init__(self, store: SessionStore) -> None:
        self.store, self._database = store, store.database

    def summaries(self) -> list[SessionSummary]:
        """All sessions, the last used first."""
        found = self._database.query(
            "SELECT id, name, model, created, used, "
            "(SELECT count(*) FROM turns WHERE session = sessions.id) AS turns "
            "FROM sessions ORDER BY used DESC, id DESC"
        )
        return [self._summary(*row) for row in found]

    def _summary(
        self, session: int, name: object, model: object, created: object, used: object, turns: int
    ) -> SessionSummary:
        times = time_of(created), time_of(used)
        return SessionSummary(session, text_of(name), text_of(model), *times, turns, self._titles(session))

    def find(self, name: str) -> SessionSummary:
        """The session of this name. Raises UsageError if there is none."""
        summaries = self.summaries()
        for summary in summaries:
            if summary.name == name:
                return summary
        if not summaries:
            raise UsageError(NONE)
        hint = did_you_mean(name, (summary.name for summary in summaries))
        raise UsageError(f"there is no session '{name}'{hint or f'; {self.which()}'}")

    def which(self) -> str:
        """The sessions that there are, for the end of an error: the last used ones."""
        names = [f"'{summary.name}'" for summary in self.summaries()]
        if not names:
            return NONE
        more = len(names) - MOST_NAMED
        rest = f" and {more:,} more ('triforce-chat sessions ls' lists them)" if more > 0 else ""
        return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names[:MOST_NAMED])}{rest}"

    def last(self) -> SessionSummary:
        """The last used session. Raises UsageError if there is none."""
        for summary in self.summaries():
            return summary
        raise UsageError(NONE)

    def load(self, summary: SessionSummary) -> SessionRecord:
        """A whole session, with the answer that is being written to it.

        Raises UsageError if it was deleted, and StateError if it is damaged.
        """
        found = self._database.query("SELECT system, settings FROM sessions WHERE id = ?", summary.id)
        if not found:
            raise UsageError(f"there is no session '{summary.name}' any more")
        (system, settings), unfinished = found[0], self.store.unfinished_turns(summary.id)
        partial = {turn: (answer, ids) for turn, answer, ids in unfinished}
        rows = self._database.query("SELECT * FROM turns WHERE session = ? ORDER BY id", summary.id)
        with damage_reported(f"session '{summary.name}'"):
            documents = self._documents(summary.id)
            turns = tuple(_stored_turn(row, partial, tuple(documents.pop(row["id"], ()))) for row in rows)
            pending = tuple(documents.pop(None, ()))
            return SessionRecord(summary, text_of(system), object_of(settings), turns, pending)

    def rename(self, name: str, new: str) -> None:
        """Rename a session. Raises UsageError for a name that is taken or invalid."""
        with self._database.transaction():
            session = self.find(name).id
            if self.store.has_name(check_name(new)):
                raise UsageError(f"a session '{new}' exists already")
            self._database.query("UPDATE sessions SET name = ? WHERE id = ?", new, session)

    def fork(self, name: str, new: str | None = None) -> str:
        """Copy a session, with the answer that is being written to it; returns the copy's name.

        Raises UsageError if ``new`` is taken or invalid.
        """
        if new is not None and self.store.has_name(check_name(new)):
            raise UsageError(f"a session '{new}' exists already")
        with self._database.transaction():
            old = self.find(name).id
            new = free_name(new or name, self.store.has_name)
            copy = self._database.insert(
                "INSERT INTO sessions (name, created, used, system, model, settings) "
                "SELECT ?, ?, ?, system, model, settings FROM sessions WHERE id = ?",
                *(new, time.time(), time.time(), old),
            )
            partial = {turn: pieces for turn, *pieces in self.store.unfinished_turns(old)}
            turns: dict[int | None, int | None] = {None: None}
            for (turn,) in self._database.query("SELECT id FROM turns WHERE session = ? ORDER BY id", old):
                turns[turn] = self._copy_turn(turn, copy, partial.get(turn))
            for document, turn in self._database.query(
                "SELECT id, turn FROM documents WHERE session = ? ORDER BY id", old
            ):
                self._copy_document(document, copy, turns.get(turn))
        return new

    def remove(self, summaries: list[SessionSummary]) -> None:
        """Delete sessions and the documents that no other session has.

        Raises InUse before anything is deleted.
        """
        leases = []
        try:
            leases += [self.store.lease(summary.id, summary.name) for summary in summaries]
            with self._database.transaction():
                for summary in summaries:
                    self._database.query("DELETE FROM sessions WHERE id = ?", summary.id)
            for lease in leases:
                lease.remove()
        finally:
            for lease in leases:
                lease.release()
        with suppress(StateError):  # another process reads: a later deletion shrinks the file
            self._database.shrink()

    def search(self, text: str) -> list[SearchHit]:
        """Turns that contain all words, best match first; ``"two words"`` is a phrase, ``word*`` a prefix.

        Raises UsageError if ``text`` has no word.
        """
        query = fts_query(text)
        found = self._database.query(
            "SELECT sessions.name, turns.asked, turns.question, "
            "snippet(words, 1, '', '', '…', ?), "
            "(SELECT count(*) FROM turns AS earlier WHERE earlier.session = turns.session "
            "AND earlier.id <= turns.id) "
            "FROM words JOIN turns ON turns.id = words.rowid JOIN sessions ON sessions.id = turns.session "
            "WHERE words MATCH ? ORDER BY rank LIMIT ?",
            *(EXCERPT_WORDS, query, MAX_HITS),
        )
        return [
            SearchHit(text_of(name), number, time_of(asked), text_of(question), text_of(excerpt))
            for name, asked, question, excerpt, number in found
        ]

    def _titles(self, session: int) -> tuple[str, ...]:
        found = self._database.query("SELECT title FROM documents WHERE session = ? ORDER BY id", session)
        return tuple(text_of(title) for (title,) in found)

    def _documents(self, session: int) -> dict[int | None, list[Document]]:
        """The documents of each turn, by the turn's row; under None those of the next question."""
        found: dict[int | None, list[Document]] = {}
        for turn, *columns in self._database.query(
            "SELECT turn, title, source, unit, remarks, pages FROM documents JOIN texts USING (hash) "
            "WHERE session = ? ORDER BY documents.id",
            session,
        ):
            found.setdefault(turn, []).append(unpack_document(*columns))
        return found

    def _copy_turn(self, turn: int, session: int, partial: list[Any] | None) -> int:
        copy = self._database.insert(
            "INSERT INTO turns (session, asked, model, vocabulary, question, question_ids, answer, answer_ids, "
            "ended, statistics) SELECT ?, asked, model, vocabulary, question, question_ids, answer, answer_ids, "
            "ended, statistics FROM turns WHERE id = ?",
            *(session, turn),
        )
        if partial is not None:
            self._database.query(
                "UPDATE turns SET answer = ?, answer_ids = ?, ended = 'interrupted' WHERE id = ?",
                *partial,
                copy,
            )
        return copy

    def _copy_document(self, document: int, session: int, turn: int | None) -> None:
        self._database.query(
            "INSERT INTO documents (session, turn, title, source, unit, remarks, hash) "
            "SELECT ?, ?, title, source, unit, remarks, hash FROM documents WHERE id = ?",
            *(session, turn, document),
        )


def fts_query(text: str) -> str:
    """An FTS5 query for what a user typed, without operators. Raises UsageError if there is no word."""
    found = re.findall(r'"([^"]+)"|([^\s"]+)', storable(text).replace("\0", " "))
    terms = [phrase or word for phrase, word in found]
    terms = [term for term in terms if re.search(r"[^\W_]", term)]
    if not terms:
        raise UsageError("name a word to search for")
    return " ".join(f'"{term.rstrip("*")}"' + "*" * term.endswith("*") for term in terms)


def _stored_turn(
    row: Any, partial: dict[int, tuple[str, bytes]], documents: tuple[Document, ...]
) -> StoredTurn:
    """A turn from its row; ``partial`` has the pieces of answers that have no end yet."""
    answer, packed_ids = partial.get(row["id"], (row["answer"], row["answer_ids"]))
    answer = text_of(answer)
    return StoredTurn(
        turn=Turn(
            text_of(row["question"]), answer, load_tally(row["statistics"], unpack_ids(packed_ids), answer)
        ),
        documents=documents,
        question_ids=unpack_ids(row["question_ids"]),
        model=text_of(row["model"]),
        vocabulary=text_of(row["vocabulary"]),
        asked=time_of(row["asked"]),
        ended=None if row["ended"] is None else text_of(row["ended"]),
    )
