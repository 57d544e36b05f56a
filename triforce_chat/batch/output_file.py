"""The output of a batch: JSON lines that are appended one by one and survive whatever ends the process."""

from __future__ import annotations

import json
import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from triforce_chat.batch.locked_file import LockedFile
from triforce_chat.errors import StateError, UsageError
from triforce_chat.serve.completion import json_bytes

END = b"\n"


class NotWritten(StateError):
    """A line could not be written; the file ends with the line before it."""


class OutputFile:
    """An output file that one process at a time may write; used as a context manager.

    The file itself is locked: the system frees the lock when the process ends, however it ends. Where a file system has
    no locks, as over a network without a lock server, a file of this machine is locked in its place. Half a line at
    the end, which a killed process or a full disk leaves, is cut off.
    """

    def __init__(self, path: Path, key: str, head: bytes) -> None:
        """``key``: the field that tells lines apart. ``head``: the bytes that every line begins with.

        Raises UsageError if another process writes to the file, or if it holds anything but such lines.
        """
        self.path, self._key, self._head = path, key, head
        self.answered: set[str] = set()  # the ids of the lines without an error
        self.failed: set[str] = set()  # of those with one
        self.fingerprints: dict[
            str, dict[str, Any]
        ] = {}  # what answers were made of, by the ids of their lines
        try:
            self._file = LockedFile.of(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, record: dict[str, Any]) -> None:
        """Write one line to the disk. Raises NotWritten."""
        line, start = json_bytes(record) + END, os.fstat(self._file.number).st_size
        try:
            _write(self._file.number, line)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.number, start)
            raise NotWritten(f"{self.path}: {error.strerror}") from None
        self._count(record)

    def forget(self, ids: Set[str]) -> None:
        """Delete the lines of these ids, in a copy that then takes the file's place.

        Raises NotWritten; the file is then as it was.
        """
        if not ids:
            return
        copy = self.path.with_name(f"{self.path.name}.part")
        try:
            new = LockedFile.open(copy, os.O_TRUNC)
            with open(self.path, "rb") as lines:
                _write(new.number, b"".join(line for line in lines if json.loads(line)[self._key] not in ids))
            os.fchmod(new.number, os.fstat(self._file.number).st_mode & 0o777)
            copy.replace(self.path)
        except OSError as error:
            copy.unlink(missing_ok=True)
            raise NotWritten(f"{copy}: {error.strerror}") from None
        # The old file is closed only now: a process that waits for it finds a new one in its place.
        self._file = new.in_place_of(self._file)
        self.answered, self.failed = self.answered - ids, self.failed - ids

    def _read(self) -> None:
        end = 0
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(END):
                    self._count(self._parsed(number, line))
                    end += len(line)
                elif not self._head.startswith(line[: len(self._head)]):
                    raise self._foreign(number)
        os.ftruncate(self._file.number, end)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
            ours = line.startswith(self._head) and isinstance(record[self._key], str) and "error" in record
        except (ValueError, KeyError, TypeError, RecursionError):
            ours = False
        if not ours:
            raise self._foreign(number)
        return dict(record)

    def _foreign(self, number: int) -> UsageError:
        return UsageError(
            f"{self.path}: line {number} is not an answer of such a batch; choose another --out"
        )

    def _count(self, record: dict[str, Any]) -> None:
        (self.answered if record["error"] is None else self.failed).add(record[self._key])
        if isinstance(made_of := record.get("fingerprint"), dict):
            self.fingerprints[record[self._key]] = made_of


def _write(file: int, data: bytes) -> None:
    """Append bytes and wait until they are on the disk. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)
