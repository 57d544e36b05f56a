"""A file that one process at a time may write."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import platformdirs

from triforce_chat.cache_folder import APP
from triforce_chat.errors import UsageError
from triforce_chat.settings.umask import open_to_others

NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


@dataclass(frozen=True, slots=True)
class LockedFile:
    """An open file with its lock, which the system frees when the process ends, however it ends."""

    number: int  # file descriptor, for appending
    stand_in: (
        int | None
    )  # that of a file of this machine, locked where the file's own file system has no locks

    @classmethod
    def of(cls, path: Path) -> Self:
        """Open a file, which is made if need be. Raises OSError, and UsageError if another process has it."""
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a file; name one that answers can be appended to")
        is_new = not path.exists()
        while True:
            file = cls.open(path)
            # The file may have been replaced by a copy without failures since it was opened.
            if path.exists() and os.path.samestat(os.fstat(file.number), path.stat()):
                break
            file.close()
        if is_new:
            open_to_others(path)
        return file

    @classmethod
    def open(cls, path: Path, more: int = 0) -> Self:
        """Open and lock a file, with ``more`` flags for ``os.open``; it must not be replaced meanwhile."""
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | more, 0o666)
        try:
            return cls(number, _lock(number, path))
        except BlockingIOError:
            os.close(number)
            raise UsageError(
                f"another process writes to {path}; wait for it or choose another --out"
            ) from None

    def in_place_of(self, other: LockedFile) -> LockedFile:
        """This file, which was moved to the other one's path, with the lock of that path; the other one is closed."""
        os.close(other.number)
        if self.stand_in is not None:
            os.close(self.stand_in)
        return LockedFile(self.number, other.stand_in)

    def close(self) -> None:
        os.close(self.number)
        if self.stand_in is not None:
            os.close(self.stand_in)


def _lock(number: int, path: Path) -> int | None:
    """Lock a file, or a stand-in, whose descriptor is then returned. Raises BlockingIOError if another one has it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    with warnings.catch_warnings(action="ignore"):  # that another folder is taken than the environment names
        folder = platformdirs.user_runtime_path(APP, appauthor=False, ensure_exists=True)
    stand_in = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(stand_in, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return stand_in
