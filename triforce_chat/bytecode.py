"""Keeps Python's bytecode in this program's cache where nobody else keeps it.

Without it every start compiles thousands of source files of torch and others, which triples the time of their import.
Some installers write none, the installation may be read-only, and in many containers Python is told to write none.
"""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from triforce_chat.cache_folder import cache_folder

KEPT = 4  # installations of Python; what those have that were new longest ago is deleted
HASH_DIGITS = 12
PRIVATE = 0o700
PREFIX, NONE = "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"  # environment variables of Python's


def bytecode_folder() -> Path:
    """The folder of all bytecode that is kept, which may not exist."""
    return cache_folder() / "bytecode"


def keep_bytecode() -> None:
    """From here on read and write bytecode in the cache, in this process and those that it starts, if there is none.

    Where Python keeps it as usual, or where the user says, nothing changes.
    """
    if sys.pycache_prefix is not None or not _is_lacking():
        return
    own = bytecode_folder() / _name()
    try:
        if not own.is_dir():
            _make(own)
    except OSError:  # the cache cannot be written either
        return
    sys.pycache_prefix, sys.dont_write_bytecode = str(own), False
    os.environ[PREFIX] = str(own)
    os.environ.pop(NONE, None)


def _is_lacking() -> bool:
    """Whether torch, which has the most, has no bytecode and will not get any."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    kept = Path(cache_from_source(found.origin))
    writable = os.access(kept.parent if kept.parent.is_dir() else kept.parent.parent, os.W_OK)
    return not kept.is_file() and (sys.dont_write_bytecode or not writable)


def _name() -> str:
    """Of this installation."""
    from hashlib import sha256  # as below: a start that has its bytecode does without these

    return sha256(repr((sys.prefix, sys.version)).encode()).hexdigest()[:HASH_DIGITS]


def _make(own: Path) -> None:
    from shutil import rmtree

    for folder in (cache_folder(), own.parent, own):
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    found = sorted(own.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for stale in found[:-KEPT]:
        rmtree(stale, ignore_errors=True)
