"""All sessions: finding one, reading it, renaming, copying and deleting."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from typing import Any

from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.documents import Document
from triforce_chat.errors import StateError, UsageError
from triforce_chat.storage.sessions import names
from triforce_chat.storage.sessions.store import Store
from triforce_chat.storage.sessions.values import (
    Heading,
    Hit,
    Record,
    document_of,
    storable,
    tally_of,
    unpacked,
)

EXCERPT = 16  # words
HITS = 50


class Catalog:
    """What the store holds, by name."""

    def __init__(self, store: Store) -> None:
        self.store, self._database = store, store.database

    def headings(self) -> list[Heading]:
        """All sessions, the last used first."""
        found = self._database.rows(
            "SELECT id, name, model, created, used, "
            "(SELECT count(*) FROM turns WHERE session = sessions.id) AS turns "
            "FROM sessions ORDER BY used DESC, id DESC"
        )
        return [Heading(**dict(row), titles=self._titles(row["id"])) for row in found]

    def find(self, name: str) -> Heading:
        """Raises UsageError when there is no session of that name."""
        for heading in self.headings():
            if heading.name == name:
                return heading
        raise UsageError(f"there is no session '{name}'; 'triforce-chat sessions ls' lists them")

    def last(self) -> Heading:
        """The last used one. Raises UsageError when there is none."""
        for heading in self.headings():
            return heading
        raise UsageError("there is no session yet: 'triforce-chat chat' begins one")

    def load(self, heading: Heading) -> Record:
        """Everything of a session, also what is being said in it at this moment."""
        found = self._database.rows("SELECT system, settings FROM sessions WHERE id = ?", heading.id)
        if not found:
            raise UsageError(f"there is no session '{heading.name}' any more")
        (system, settings), unfinished = found[0], self.store.unfinished(heading.id)
        partial = {turn: (answer, ids) for turn, answer, ids in unfinished}
        rows = self._database.rows("SELECT * FROM turns WHERE session = ? ORDER BY id", heading.id)
        documents = self._documents(heading.id)
        past = tuple(_past(row, partial, tuple(documents.pop(row["id"], ()))) for row in rows)
        return Record(heading, system, json.loads(settings), past, tuple(documents.pop(None, ())))

    def rename(self, name: str, new: str) -> None:
        """Raises UsageError for a name that is taken or cannot be one."""
        with self._database.transaction():
            session = self.find(name).id
            if self.store.taken(names.checked(new)):
                raise UsageError(f"there is a session '{new}' already")
            self._database.rows("UPDATE sessions SET name = ? WHERE id = ?", new, session)

    def fork(self, name: str, new: str | None = None) -> str:
        """Copy a session, with what is being said in it; returns the copy's name."""
        if new is not None and self.store.taken(names.checked(new)):
            raise UsageError(f"there is a session '{new}' already")
        with self._database.transaction():
            old = self.find(name).id
            new = names.free(new or name, self.store.taken)
            copy = self._database.insert(
                "INSERT INTO sessions (name, created, used, system, model, settings) "
                "SELECT ?, ?, ?, system, model, settings FROM sessions WHERE id = ?",
                *(new, time.time(), time.time(), old),
            )
            partial = {turn: said for turn, *said in self.store.unfinished(old)}
            turns: dict[int | None, int | None] = {None: None}
            for (turn,) in self._database.rows("SELECT id FROM turns WHERE session = ? ORDER BY id", old):
                turns[turn] = self._copy_turn(turn, copy, partial.get(turn))
            for document, turn in self._database.rows(
                "SELECT id, turn FROM documents WHERE session = ? ORDER BY id", old
            ):
                self._copy_document(document, copy, turns[turn])
        return new

    def remove(self, headings: list[Heading]) -> None:
        """Delete sessions, and the documents that no other one has. Raises InUse before anything is deleted."""
        leases = []
        try:
            leases += [self.store.lease(heading.id, heading.name) for heading in headings]
            with self._database.transaction():
                for heading in headings:
                    self._database.rows("DELETE FROM sessions WHERE id = ?", heading.id)
            for lease in leases:
                lease.remove()
        finally:
            for lease in leases:
                lease.release()
        with suppress(StateError):  # another process reads: the room is given back another time
            self._database.shrink()

    def search(self, text: str) -> list[Hit]:
        """Turns with all of these words, the best first; "several words" are a phrase, word* a beginning."""
        query = fts_query(text)
        found = self._database.rows(
            "SELECT sessions.name, turns.asked, turns.question, "
            "snippet(words, 1, '', '', '…', ?), "
            "(SELECT count(*) FROM turns AS earlier WHERE earlier.session = turns.session "
            "AND earlier.id <= turns.id) "
            "FROM words JOIN turns ON turns.id = words.rowid JOIN sessions ON sessions.id = turns.session "
            "WHERE words MATCH ? ORDER BY rank LIMIT ?",
            *(EXCERPT, query, HITS),
        )
        return [Hit(name, number, asked, question, said) for name, asked, question, said, number in found]

    def _titles(self, session: int) -> tuple[str, ...]:
        found = self._database.rows("SELECT title FROM documents WHERE session = ? ORDER BY id", session)
        return tuple(title for (title,) in found)

    def _documents(self, session: int) -> dict[int | None, list[Document]]:
        """The documents of each turn; under None those that wait for the next question."""
        found: dict[int | None, list[Document]] = {}
        for turn, *parts in self._database.rows(
            "SELECT turn, title, source, unit, remarks, pages FROM documents JOIN texts USING (hash) "
            "WHERE session = ? ORDER BY documents.id",
            session,
        ):
            found.setdefault(turn, []).append(document_of(*parts))
        return found

    def _copy_turn(self, turn: int, session: int, partial: list[Any] | None) -> int:
        made = self._database.insert(
            "INSERT INTO turns (session, asked, model, vocabulary, question, question_ids, answer, answer_ids, "
            "ended, statistics) SELECT ?, asked, model, vocabulary, question, question_ids, answer, answer_ids, "
            "ended, statistics FROM turns WHERE id = ?",
            *(session, turn),
        )
        if partial is not None:
            self._database.rows(
                "UPDATE turns SET answer = ?, answer_ids = ?, ended = 'interrupted' WHERE id = ?",
                *partial,
                made,
            )
        return made

    def _copy_document(self, document: int, session: int, turn: int | None) -> None:
        self._database.rows(
            "INSERT INTO documents (session, turn, title, source, unit, remarks, hash) "
            "SELECT ?, ?, title, source, unit, remarks, hash FROM documents WHERE id = ?",
            *(session, turn, document),
        )


def fts_query(text: str) -> str:
    """What a user typed as a query in which nothing is an operator. Raises UsageError when there is no word."""
    found = re.findall(r'"([^"]+)"|([^\s"]+)', storable(text).replace("\0", " "))
    terms = [phrase or word for phrase, word in found]
    terms = [term for term in terms if re.search(r"[^\W_]", term)]
    if not terms:
        raise UsageError("name a word to search for")
    return " ".join(f'"{term.rstrip("*")}"' + "*" * term.endswith("*") for term in terms)


def _past(row: Any, partial: dict[int, tuple[str, bytes]], documents: tuple[Document, ...]) -> StoredTurn:
    answer, ids = partial.get(row["id"], (row["answer"], row["answer_ids"]))
    turn = Turn(row["question"], answer, tally_of(row["statistics"], unpacked(ids), answer))
    return StoredTurn(
        turn,
        documents,
        unpacked(row["question_ids"]),
        row["model"],
        row["vocabulary"],
        row["asked"],
        row["ended"],
    )
