"""The files that paths, folders and patterns name."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from triforce_chat.documents.addresses import is_url
from triforce_chat.documents.reader import EXTENSIONS, EmptyFile
from triforce_chat.errors import DocumentError

Read = TypeVar("Read")
IN_FOLDERS = {*EXTENSIONS, ".txt"}  # the files of a folder that are documents


def find_files(named: Sequence[str]) -> list[str]:
    """The files that paths, folders (with theirs) and patterns name, each once; addresses in the web as they are.

    A name without a file stays, so that reading it reports what is wrong.
    """
    return list(dict.fromkeys(file for each in named for file in _files(each)))


def read_found(
    files: Sequence[str], named: Sequence[str], read: Callable[[str], Read]
) -> tuple[list[Read], list[str]]:
    """(what ``read`` makes of files that were found for ``named``, a line for each file that was skipped).

    Skipped are empty files that a folder or a pattern brought along. Raises what ``read`` does, for an empty file that
    was named itself, too, and DocumentError if all files are empty.
    """
    own, made, empty = named_themselves(named), [], []
    for file in files:
        try:
            made.append(read(file))
        except EmptyFile as error:
            if file in own or len(files) == 1:
                raise
            empty.append(f"{error}, skipped")
    if empty and not made:
        raise DocumentError(f"nothing to read: all {len(empty)} files found are empty")
    return made, empty


def named_themselves(named: Sequence[str]) -> set[str]:
    """How ``find_files`` calls a file that was named by its own path, not found in a folder or through a pattern."""
    return {*named, *(os.path.normpath(os.path.expanduser(each)) for each in named)}


def _files(named: str) -> Iterator[str]:
    if is_url(named) or not named:
        yield named
        return
    named = os.path.expanduser(named)
    is_pattern = glob.has_magic(named) and not os.path.lexists(named)
    for path in (is_pattern and sorted(glob.glob(named, recursive=True))) or [named]:
        yield from (os.path.isdir(path) and _documents_in(path)) or [os.path.normpath(path)]


def _documents_in(folder: str) -> list[str]:
    """The documents in a folder and in those below it, hidden ones left out."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        chosen = (name for name in sorted(names) if _is_document(name))
        found += [os.path.normpath(os.path.join(place, name)) for name in chosen]
    return [path for path in found if os.path.isfile(path)]


def _is_document(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IN_FOLDERS
