"""The folder with all blocks: what lies there, who has to go when room is short, and how to be rid of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triforce_chat.storage.kv.block import Damaged, Label, read_label

SUFFIX = ".safetensors"
SHARE = 0.25  # of the room that the disk has without this folder
STALE = 3600.0  # seconds after which an unfinished file is one that nobody will finish


@dataclass(frozen=True, slots=True)
class Found:
    """A file on the shelf."""

    path: Path
    bytes: int
    used_ns: int  # when it last served


@dataclass(frozen=True, slots=True)
class Stored:
    """A text with everything that was read before it: the blocks up to one that nothing follows."""

    id: str
    titles: tuple[str, ...]
    model: str
    tokens: int
    bytes: int
    used: float  # seconds since the epoch
    paths: tuple[Path, ...]
    complete: bool  # it ends where a text ends


class Shelf:
    """Files named by what they hold, of all models, at most ``limit`` bytes together; None: a share of the disk."""

    def __init__(self, folder: Path, limit: float | None = None) -> None:
        self.folder, self._limit = folder, limit

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def limit(self, used: int) -> float:
        """Bytes that may lie here when ``used`` do. Raises OSError."""
        if self._limit is not None:
            return self._limit
        there = next(each for each in (self.folder, *self.folder.parents) if each.is_dir())
        return int(SHARE * (shutil.disk_usage(there).free + used))

    def used(self) -> int:
        """Bytes that lie here, finished or not."""
        return sum(stat.st_size for hidden in (True, False) for _, stat in self._listed(hidden))

    def files(self) -> list[Found]:
        """All finished blocks, the least recently used first."""
        found = [Found(path, stat.st_size, stat.st_mtime_ns) for path, stat in self._listed(hidden=False)]
        return sorted(found, key=lambda each: each.used_ns)

    def make_room(self, size: int, spared: Iterable[str] = ()) -> bool:
        """Delete what served longest ago until ``size`` more bytes fit; never the keys that are ``spared``.

        Returns whether they fit now. Raises OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = self.files()
        used = sum(file.bytes for file in files)
        limit, kept = self.limit(used), {self.path(key) for key in spared}
        movable = [file for file in files if file.path not in kept]
        if used + size - sum(file.bytes for file in movable) > limit:
            return False  # nothing is deleted for nothing
        for file in movable:
            if used + size <= limit:
                break
            file.path.unlink(missing_ok=True)
            used -= file.bytes
        return True

    def touch(self, key: str, used_ns: int) -> None:
        """Note that a block has served; one that is gone or read-only stays as it is."""
        with suppress(OSError):
            os.utime(self.path(key), ns=(used_ns, used_ns))

    def discard(self, key: str) -> None:
        with suppress(OSError):
            self.path(key).unlink()

    def sweep(self, age: float = STALE) -> int:
        """Delete what processes left unfinished that were killed; returns bytes."""
        freed = 0
        for path, stat in self._listed(hidden=True):
            if time.time() - stat.st_mtime > age:
                with suppress(OSError):
                    path.unlink()
                    freed += stat.st_size
        return freed

    def collect(self) -> int:
        """Sweep, delete what is damaged or cannot be reached, and come below the limit; returns bytes."""
        before = self.used()
        if not before:
            return 0
        self.sweep()
        known = {path for text in self.texts() for path in text.paths}
        for file in self.files():
            if file.path not in known:
                file.path.unlink(missing_ok=True)
        self.make_room(0)
        return before - self.used()

    def texts(self) -> list[Stored]:
        """What lies here, the latest first, but for files that are damaged or lack what goes before them."""
        files = {file.path: file for file in self.files()}
        labels = {label.key: label for label in map(_label, files) if label is not None}
        followed = {label.parent for label in labels.values()}
        chains = [_chain(label, labels) for label in labels.values() if label.key not in followed]
        made = [self._stored(chain, files) for chain in chains if chain]
        return sorted(made, key=lambda each: -each.used)

    def remove(self, texts: Sequence[Stored]) -> int:
        """Delete texts but for what others begin with as well; returns bytes. Raises OSError."""
        ids = {text.id for text in texts}
        others = {path for text in self.texts() if text.id not in ids for path in text.paths}
        freed = 0
        for path in {path for text in texts for path in text.paths} - others:
            freed += path.stat().st_size if path.exists() else 0
            path.unlink(missing_ok=True)
        return freed

    def _stored(self, chain: list[Label], files: dict[Path, Found]) -> Stored:
        last, own = chain[-1], [files[self.path(label.key)] for label in chain]
        return Stored(
            id=last.key[:12],
            titles=tuple(label.title for label in chain if label.title),
            model=last.model,
            tokens=last.end,
            bytes=sum(file.bytes for file in own),
            used=own[-1].used_ns / 1e9,
            paths=tuple(file.path for file in own),
            complete=bool(last.title),
        )

    def _listed(self, hidden: bool) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            entries = list(os.scandir(self.folder))
        except OSError:  # nothing was ever stored
            return
        for entry in entries:
            name = entry.name
            ours = name.startswith(".") and SUFFIX in name if hidden else not name.startswith(".")
            if ours and (hidden or name.endswith(SUFFIX)):
                with suppress(OSError):  # another process was faster
                    yield Path(entry.path), entry.stat()


def _label(path: Path) -> Label | None:
    try:
        label = read_label(path)
    except (OSError, Damaged):
        return None
    return label if path.name == f"{label.key}{SUFFIX}" else None


def _chain(last: Label, labels: dict[str, Label]) -> list[Label]:
    """The blocks up to ``last`` from the first on; empty where one is missing."""
    chain = [last]
    while chain[-1].parent:
        if chain[-1].parent not in labels:
            return []
        chain.append(labels[chain[-1].parent])
    return chain[::-1]
