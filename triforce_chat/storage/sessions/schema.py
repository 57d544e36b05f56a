"""The tables of the session database, and its migrations from earlier versions."""

from __future__ import annotations

import sqlite3

FIRST = (
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
        created REAL NOT NULL, used REAL NOT NULL,  -- seconds since the epoch
        system TEXT NOT NULL, model TEXT NOT NULL,  -- of the last answer
        settings TEXT NOT NULL)  -- JSON""",
    """CREATE TABLE turns (
        id INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        asked REAL NOT NULL, model TEXT NOT NULL, vocabulary TEXT NOT NULL,
        question TEXT NOT NULL, question_ids BLOB NOT NULL,
        answer TEXT NOT NULL DEFAULT '', answer_ids BLOB NOT NULL DEFAULT x'',
        ended TEXT,  -- why; NULL while it is being answered: then the answer lies in pieces
        statistics TEXT)  -- JSON""",
    "CREATE INDEX turns_of_sessions ON turns (session)",
    """CREATE TABLE pieces (
        turn INTEGER NOT NULL REFERENCES turns ON DELETE CASCADE, number INTEGER NOT NULL,
        text TEXT NOT NULL, ids BLOB NOT NULL, PRIMARY KEY (turn, number)) WITHOUT ROWID""",
    """CREATE TABLE texts (
        hash TEXT PRIMARY KEY, pages BLOB NOT NULL)  -- JSON of [number, text], deflated""",
    """CREATE TABLE documents (
        id INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        turn INTEGER REFERENCES turns ON DELETE SET NULL,  -- NULL: it will belong to the next question
        title TEXT NOT NULL, source TEXT NOT NULL, unit TEXT NOT NULL,
        remarks TEXT NOT NULL,  -- JSON: what of it could not be read
        hash TEXT NOT NULL REFERENCES texts)""",
    "CREATE INDEX documents_of_sessions ON documents (session)",
    "CREATE INDEX documents_of_turns ON documents (turn)",
    "CREATE INDEX documents_of_texts ON documents (hash)",
    """CREATE TRIGGER a_text_that_nobody_uses AFTER DELETE ON documents
        WHEN NOT EXISTS (SELECT 1 FROM documents WHERE hash = old.hash)
        BEGIN DELETE FROM texts WHERE hash = old.hash; END""",
    """CREATE VIRTUAL TABLE words USING fts5 (
        question, answer, content='turns', content_rowid='id', tokenize='unicode61 remove_diacritics 2')""",
    """CREATE TRIGGER words_of_a_new_turn AFTER INSERT ON turns
        BEGIN INSERT INTO words (rowid, question, answer) VALUES (new.id, new.question, new.answer); END""",
    """CREATE TRIGGER words_of_a_deleted_turn AFTER DELETE ON turns BEGIN
        INSERT INTO words (words, rowid, question, answer)
            VALUES ('delete', old.id, old.question, old.answer);
        END""",
    """CREATE TRIGGER words_of_a_changed_turn AFTER UPDATE OF question, answer ON turns BEGIN
        INSERT INTO words (words, rowid, question, answer)
            VALUES ('delete', old.id, old.question, old.answer);
        INSERT INTO words (rowid, question, answer) VALUES (new.id, new.question, new.answer);
        END""",
)
MIGRATIONS = (FIRST,)  # number n brings a database of version n to version n + 1


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a database; 0 for a new one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables to the present version; to be called inside a transaction."""
    for number, statements in enumerate(MIGRATIONS[version_of(connection) :], version_of(connection) + 1):
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
