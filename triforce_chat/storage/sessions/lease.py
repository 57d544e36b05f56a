"""The exclusive right of one process to write to a session."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import filelock

from triforce_chat.errors import StateError, UsageError

LOCK_TIMEOUT = 0.5  # seconds; another process may hold the lock briefly to see whether a session is in use
POLL_INTERVAL = 0.05  # seconds


class InUse(UsageError):
    """Another process writes to this session."""


class Lease:
    """A file lock on a session; the operating system releases it when the process ends, however it ends."""

    def __init__(self, folder: Path, session: int, name: str, timeout: float = LOCK_TIMEOUT) -> None:
        """Raises InUse after ``timeout`` seconds, and StateError if the lock file cannot be made."""
        self.path = folder / str(session)
        self._lock = filelock.FileLock(self.path, mode=0o600)
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            self._lock.acquire(timeout=timeout, poll_interval=POLL_INTERVAL)
        except filelock.Timeout:
            raise InUse(
                f"session '{name}' is open in another process; leave it there, "
                f'or go on in a copy: triforce-chat sessions fork "{name}"'
            ) from None
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror or error}") from error

    def release(self) -> None:
        """Let other processes write to the session."""
        self._lock.release()

    def remove(self) -> None:
        """Release the lock of a deleted session and delete its file; session ids are never reused."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._lock.release()
