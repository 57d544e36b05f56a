"""Who may write to a session: one process, as long as it lives."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import filelock

from triforce_chat.errors import StateError, UsageError

PATIENCE = 0.5  # seconds; another process may look for a moment whether a session is in use


class InUse(UsageError):
    """Another process writes to this session."""


class Lease:
    """A lock on a session that the system takes back when the process ends, however it ends."""

    def __init__(self, folder: Path, session: int, name: str, patience: float = PATIENCE) -> None:
        """Raises InUse, or StateError where no lock can be had."""
        self.path = folder / str(session)
        self._lock = filelock.FileLock(self.path, mode=0o600)
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            self._lock.acquire(timeout=patience, poll_interval=0.05)
        except filelock.Timeout:
            raise InUse(
                f"session '{name}' is open in another process; leave it there, "
                f'or go on in a copy: triforce-chat sessions fork "{name}"'
            ) from None
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror or error}") from error

    def release(self) -> None:
        self._lock.release()

    def remove(self) -> None:
        """Release it for ever: the session is gone and its number is never given again."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._lock.release()
