"""The file: private, in write-ahead mode, of a known version, and with errors that a user understands.

A commit goes to the log with one write. What is committed survives the death of the process at any moment;
only when the machine itself dies may the last commits be missing, because the log is not flushed each time.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triforce_chat.errors import StateError
from triforce_chat.storage.sessions import schema

PATIENCE = 10.0  # seconds to wait for another process that writes; its transactions take milliseconds
FOLDER, FILE = 0o700, 0o600  # for their owner only
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Unwritable(StateError):
    """Nothing can be kept here: the folder or the file refuses."""


class Database:
    """One SQLite file; every failure of it is a StateError that names it."""

    def __init__(self, path: Path) -> None:
        """Open or make it. Raises Unwritable, or StateError for a damaged file or one of a later version."""
        self.path = path
        make_private(path)
        with self._told():
            self._connection = sqlite3.connect(
                path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        version, known = schema.version_of(self._connection), len(schema.MIGRATIONS)
        if version > known:
            raise StateError(
                f"{self.path} was written by a later triforce-chat (version {version}, this one knows {known}); "
                "update this program; the file was left as it is"
            )
        self._write_ahead()
        for setting in ("synchronous = NORMAL", "foreign_keys = ON"):
            self._connection.execute(f"PRAGMA {setting}")
        if version < known:
            with self.transaction():  # another process may have done it meanwhile: migrate looks again
                schema.migrate(self._connection)

    def _write_ahead(self) -> None:
        """Switch the mode; where two processes make the file at once, SQLite does not wait by itself."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def rows(self, sql: str, *values: object) -> list[Any]:
        """What one statement gives; a statement that writes is committed when this returns."""
        with self._told():
            return self._connection.execute(sql, values).fetchall()

    def insert(self, sql: str, *values: object) -> int:
        """Run an INSERT; returns the row's id."""
        with self._told():
            return int(self._connection.execute(sql, values).lastrowid or 0)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the statements inside are committed together, or none."""
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def shrink(self) -> None:
        """Give the room of deleted rows back, so that nothing of them stays on the disk."""
        with self._told():
            self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint (TRUNCATE)")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
                raise StateError(
                    f"{self.path} is damaged ({error}); nothing was deleted: move it away to begin anew, "
                    "or restore a copy"
                ) from error
            raise StateError(f"{self.path}: {error}") from error


def make_private(path: Path) -> None:
    """The file (empty if it is new) and its folder, closed to others. SQLite gives its log the same mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER)
        path.parent.chmod(FOLDER)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, FILE))
        path.chmod(FILE)
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror or error}") from error
