"""The directory of all cache files: listing them, evicting the least recently used, and deleting documents."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triforce_chat.storage.kv.entry import CorruptEntry, EntryHeader, read_header

SUFFIX = ".safetensors"
DISK_SHARE = 0.25  # default limit, as a share of the free disk plus the directory's own size
STALE = 3600.0  # seconds after which an unfinished file is taken for abandoned


@dataclass(frozen=True, slots=True)
class EntryFile:
    """A cache file."""

    path: Path
    bytes: int
    used_ns: int  # time of last use


@dataclass(frozen=True, slots=True)
class CachedText:
    """A chain of entries from the first token up to an entry that none follows."""

    id: str
    titles: tuple[str, ...]
    model: str
    tokens: int
    bytes: int
    used: float  # seconds since the epoch
    paths: tuple[Path, ...]
    complete: bool  # it ends at the end of a document


class CacheDirectory:
    """Files of all models, named by their content. ``limit`` is in bytes; None means ``DISK_SHARE`` of the disk."""

    def __init__(self, folder: Path, limit: float | None = None) -> None:
        self.folder, self._limit = folder, limit

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def limit(self, used: int) -> float:
        """The most bytes that the directory may hold when it holds ``used`` now. Raises OSError."""
        if self._limit is not None:
            return self._limit
        existing = next(each for each in (self.folder, *self.folder.parents) if each.is_dir())
        return int(DISK_SHARE * (shutil.disk_usage(existing).free + used))

    def used(self) -> int:
        """Bytes of all files, including unfinished ones."""
        return sum(stat.st_size for hidden in (True, False) for _, stat in self._list(hidden))

    def files(self) -> list[EntryFile]:
        """All finished files, the least recently used first."""
        found = [EntryFile(path, stat.st_size, stat.st_mtime_ns) for path, stat in self._list(hidden=False)]
        return sorted(found, key=lambda each: each.used_ns)

    def make_room(self, size: int, protected: Iterable[str] = ()) -> bool:
        """Delete the least recently used files until ``size`` more bytes fit, except the ``protected`` keys.

        Returns whether they fit now; deletes nothing if they cannot. Raises OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = self.files()
        used = sum(file.bytes for file in files)
        limit, kept = self.limit(used), {self.path(key) for key in protected}
        evictable = [file for file in files if file.path not in kept]
        if used + size - sum(file.bytes for file in evictable) > limit:
            return False
        for file in evictable:
            if used + size <= limit:
                break
            file.path.unlink(missing_ok=True)
            used -= file.bytes
        return True

    def touch(self, key: str, used_ns: int) -> None:
        """Set a file's time of last use, unless it is missing or read-only."""
        with suppress(OSError):
            os.utime(self.path(key), ns=(used_ns, used_ns))

    def discard(self, key: str) -> None:
        with suppress(OSError):
            self.path(key).unlink()

    def sweep(self, age: float = STALE) -> int:
        """Delete unfinished files that killed processes left, older than ``age`` seconds; returns bytes freed."""
        freed = 0
        for path, stat in self._list(hidden=True):
            if time.time() - stat.st_mtime > age:
                with suppress(OSError):
                    path.unlink()
                    freed += stat.st_size
        return freed

    def collect(self) -> int:
        """Sweep, delete corrupt and unreachable files, and shrink to the limit; returns bytes freed."""
        before = self.used()
        if not before:
            return 0
        self.sweep()
        reachable = {path for text in self.texts() for path in text.paths}
        for file in self.files():
            if file.path not in reachable:
                file.path.unlink(missing_ok=True)
        self.make_room(0)
        return before - self.used()

    def texts(self) -> list[CachedText]:
        """All cached texts, the latest first. Corrupt files, and chains that lack an entry, are left out."""
        files = {file.path: file for file in self.files()}
        headers = {header.key: header for header in map(_header, files) if header is not None}
        followed = {header.parent for header in headers.values()}
        chains = [_chain(header, headers) for header in headers.values() if header.key not in followed]
        texts = [self._text(chain, files) for chain in chains if chain]
        return sorted(texts, key=lambda each: -each.used)

    def remove(self, texts: Sequence[CachedText]) -> int:
        """Delete texts, except the files that others share; returns bytes freed. Raises OSError."""
        ids = {text.id for text in texts}
        shared = {path for text in self.texts() if text.id not in ids for path in text.paths}
        freed = 0
        for path in {path for text in texts for path in text.paths} - shared:
            freed += path.stat().st_size if path.exists() else 0
            path.unlink(missing_ok=True)
        return freed

    def _text(self, chain: list[EntryHeader], files: dict[Path, EntryFile]) -> CachedText:
        last, own = chain[-1], [files[self.path(header.key)] for header in chain]
        return CachedText(
            id=last.key[:12],
            titles=tuple(header.title for header in chain if header.title),
            model=last.model,
            tokens=last.end,
            bytes=sum(file.bytes for file in own),
            used=own[-1].used_ns / 1e9,
            paths=tuple(file.path for file in own),
            complete=bool(last.title),
        )

    def _list(self, hidden: bool) -> Iterator[tuple[Path, os.stat_result]]:
        """The finished files, or the ``hidden`` ones, which are unfinished."""
        try:
            entries = list(os.scandir(self.folder))
        except OSError:  # nothing was ever stored
            return
        for entry in entries:
            name = entry.name
            ours = name.startswith(".") and SUFFIX in name if hidden else not name.startswith(".")
            if ours and (hidden or name.endswith(SUFFIX)):
                with suppress(OSError):  # another process deleted it
                    yield Path(entry.path), entry.stat()


def _header(path: Path) -> EntryHeader | None:
    """The header of a file; None if it is corrupt or under the wrong name."""
    try:
        header = read_header(path)
    except (OSError, CorruptEntry):
        return None
    return header if path.name == f"{header.key}{SUFFIX}" else None


def _chain(last: EntryHeader, headers: dict[str, EntryHeader]) -> list[EntryHeader]:
    """The entries from the first one up to ``last``; empty if one is missing."""
    chain = [last]
    while chain[-1].parent:
        if chain[-1].parent not in headers:
            return []
        chain.append(headers[chain[-1].parent])
    return chain[::-1]
