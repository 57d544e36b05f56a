"""The SQLite file of the sessions: private, in write-ahead mode, of a known version, with errors for users.

A commit reaches the log with one write. Committed data survives the death of the process at any moment. Only if
the machine itself fails may the last commits be missing, because the log is not flushed each time.
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

BUSY_TIMEOUT = 10.0  # seconds to wait for another process that writes; its transactions take milliseconds
POLL_INTERVAL = 0.01  # seconds
FOLDER_MODE, FILE_MODE = 0o700, 0o600  # for their owner only
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class Unwritable(StateError):
    """The sessions cannot be written here: the folder, the file or the full disk does not permit it."""


class Database:
    """One SQLite file; every failure is a StateError that names it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises Unwritable, and StateError for a damaged file or one of a later version."""
        self.path = path
        make_private(path)
        with self._errors_translated():
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
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
            with self.transaction():  # another process may have migrated meanwhile: ``migrate`` looks again
                schema.migrate(self._connection)

    def _write_ahead(self) -> None:
        """Switch to write-ahead mode; SQLite itself does not wait for another process that does the same."""
        deadline = time.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_INTERVAL)

    def query(self, sql: str, *values: object) -> list[Any]:
        """Run one statement and return its rows; outside a transaction, what it writes is committed."""
        with self._errors_translated():
            return self._connection.execute(sql, values).fetchall()

    def insert(self, sql: str, *values: object) -> int:
        """Run an INSERT statement; returns the row's id."""
        with self._errors_translated():
            return int(self._connection.execute(sql, values).lastrowid or 0)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements of the block together, or none of them."""
        with self._errors_translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def shrink(self) -> None:
        """Free the space of deleted rows, so that nothing of them remains on the disk."""
        with self._errors_translated():
            self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint (TRUNCATE)")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        """Turn errors of SQLite into StateError."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in DAMAGED:
                raise StateError(
                    f"{self.path} is damaged ({error}); nothing was deleted: move it away to start over, "
                    "or restore a copy"
                ) from error
            kind = Unwritable if code in NOT_WRITTEN else StateError
            raise kind(f"{self.path}: {error}") from error


def make_private(path: Path) -> None:
    """Create the file if it is missing, and close it and its folder to other users.

    SQLite gives its log the same mode. Raises Unwritable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        path.parent.chmod(FOLDER_MODE)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE))
        path.chmod(FILE_MODE)
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror or error}") from error
