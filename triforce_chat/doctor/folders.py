"""Checks that what the program writes has a place: folders that can be written, on disks that are not full."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from triforce_chat.cache_folder import CACHE_VARIABLE, cache_folder
from triforce_chat.doctor.check_result import CheckResult, ok, problem, warning
from triforce_chat.errors import ModelError
from triforce_chat.settings.paths import state_folder
from triforce_chat.settings.sizes import GIGABYTE, readable

ENOUGH = {"state": 0.05 * GIGABYTE, "disk": 2 * GIGABYTE}  # free bytes below which something will soon fail
MOVED_BY = {"state": "XDG_STATE_HOME", "disk": CACHE_VARIABLE}
LOST = {
    "state": "chats are not saved as sessions",
    "disk": "models cannot be downloaded, and documents are read again at every start",
}
FREED_BY = {
    "state": "make room; 'triforce-chat sessions rm' deletes sessions",
    "disk": "make room: 'triforce-chat cache gc --size 0', 'triforce-chat models rm'",
}


def folders() -> Iterator[CheckResult]:
    """The folders of sessions and of caches: can they be written, and is there room?"""
    for name, folder in (("disk", cache_folder()), ("state", state_folder())):
        yield _checked(name, folder)


def _checked(name: str, folder: Path) -> CheckResult:
    try:
        existing = _nearest(folder)
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"\0")
        free = shutil.disk_usage(existing).free
    except OSError as error:
        advice = f"make it writable for you, or let {MOVED_BY[name]} name another folder"
        message = f"{folder} cannot be written ({error.strerror or error}): {LOST[name]}"
        # Without a cache there may be no model; without sessions there is still a chat.
        return (
            problem(name, message, advice, ModelError) if name == "disk" else warning(name, message, advice)
        )
    if free < ENOUGH[name]:
        return warning(name, f"{readable(free)} free for {folder}", FREED_BY[name])
    return ok(name, f"{readable(free)} free for {folder}")


def _nearest(folder: Path) -> Path:
    """The folder, or the one in which it would be made. Raises OSError if a file is in the way."""
    for each in (folder, *folder.parents):
        if each.is_dir():
            return each
        if each.exists():
            raise NotADirectoryError(20, f"{each} is a file")
    return folder
