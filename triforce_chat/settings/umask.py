"""What this program writes, only its user can open; a file that the user names is as open as the user's others."""

from __future__ import annotations

import os
from pathlib import Path

OTHERS = 0o077  # group and world
_before: list[int] = []  # the process's umask, once it is changed; it is global to the process anyway


def keep_private() -> None:
    """From now on new files have mode 0600 at most and new folders 0700, libraries' and child processes' included."""
    _before[:] = [os.umask(OTHERS)]
    os.umask(_before[0] | OTHERS)


def write_named(path: Path, text: str) -> None:
    """Write a file that the user named, with the permissions of the user's own umask. Raises OSError."""
    is_new = not path.exists()
    path.write_text(text, encoding="utf-8")
    if is_new and _before:
        path.chmod(0o666 & ~_before[0])
