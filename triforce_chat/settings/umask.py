"""File permissions: files the program writes are private; a file that the user names follows the user's umask."""

from __future__ import annotations

import os
from pathlib import Path

OTHERS = 0o077  # group and world
_users_umask: list[int] = []  # set once the process's umask has been changed; the umask itself is global, too


def keep_private() -> None:
    """From now on new files have mode 0600 at most and new folders 0700, also those of child processes."""
    _users_umask[:] = [os.umask(OTHERS)]
    os.umask(_users_umask[0] | OTHERS)


def write_named(path: Path, text: str) -> None:
    """Write a file that the user named, with the permissions of the user's own umask. Raises OSError."""
    is_new = not path.exists()
    path.write_text(text, encoding="utf-8")
    if is_new:
        open_to_others(path)


def open_to_others(path: Path) -> None:
    """Give a new file that the user named the permissions of the user's own umask. Raises OSError."""
    if _users_umask:
        path.chmod(0o666 & ~_users_umask[0])
