"""Model folders in the user's cache: built once, complete or absent, and checked at every start."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock

from triforce_chat.cache_folder import CACHE_VARIABLE
from triforce_chat.errors import ModelError
from triforce_chat.models.progress import Progress, Report

FORMAT = 1  # version of the manifest and the folder's content; a new number rebuilds every folder
MANIFEST = "manifest.json"
HEAD_BYTES = 1 << 20  # enough for a safetensors header or a whole small file
LOCK = ".lock"  # suffix of the file beside a folder that the process which builds it holds
SMALL_BYTES = 16 << 20  # smaller files are hashed at every start; 16 MiB take about 50 ms

Build = Callable[[Path], None]  # fills an empty folder; may put scratch files beside it
# What reading a damaged manifest may raise; the last one, if it is nested deeply.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class CacheUnusable(ModelError):
    """The cache cannot be written, or its disk has too little room."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A complete file's size in bytes, modification time in nanoseconds, and hashes."""

    size: int
    mtime_ns: int
    sha256: str
    head: str  # sha256 of the first HEAD_BYTES


def ensure(folder: Path, source: str, build: Build, report: Report) -> Path:
    """Return ``folder``; call ``build`` to fill it unless it is intact and was built from ``source``.

    One process builds while others wait. Raises CacheUnusable if the folder cannot be written.
    """
    if is_intact(folder, source):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, report):
            if not is_intact(folder, source):  # another process may have built it meanwhile
                _install(folder, source, build)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CacheUnusable(
            f"cannot write the cache {folder.parent}: {reason}; {CACHE_VARIABLE} names another folder"
        ) from error
    return folder


def is_intact(folder: Path, source: str) -> bool:
    """True if every file matches the manifest; large files are hashed only if their time has changed."""
    try:
        records = _read_manifest(folder, source)
        if not all(_matches(folder / name, record) for name, record in records.items()):
            return False
    except UNREADABLE:
        return False
    _update_times(folder, source, records)
    return True


def source_of(folder: Path) -> str:
    """What a folder was built from. Raises OSError, ValueError, KeyError or TypeError if its manifest is damaged."""
    source: str = json.loads((folder / MANIFEST).read_text("utf-8"))["source"]
    return source


def discard(folder: Path) -> None:
    """Delete a folder and what is left of interrupted builds, unless a process builds it now."""
    lock = filelock.FileLock(_lock_of(folder))
    with suppress(OSError, filelock.Timeout), lock.acquire(timeout=0):
        for path in (folder, *_leftovers(folder)):
            shutil.rmtree(path, ignore_errors=True)
        _lock_of(folder).unlink(missing_ok=True)


def damaged_files(folder: Path, source: str) -> list[str]:
    """Names of files that do not match the manifest, hashing all of them; the manifest itself if it is invalid."""
    try:
        records = _read_manifest(folder, source)
    except UNREADABLE:
        return [MANIFEST]
    return [name for name, record in records.items() if not _hash_matches(folder / name, record)]


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def head_hash(path: Path) -> str:
    """The SHA-256 of the file's first HEAD_BYTES in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()


def seal(folder: Path, source: str) -> None:
    """Sync the files of a finished folder to the disk, then write its manifest."""
    records = {path.name: _record(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    for name in records:
        _sync(folder / name)
    _write_manifest(folder, source, records)


def _record(path: Path) -> FileRecord:
    stat = path.stat()
    return FileRecord(stat.st_size, stat.st_mtime_ns, sha256_of(path), head_hash(path))


def _matches(path: Path, record: FileRecord) -> bool:
    stat = path.stat()
    if stat.st_size != record.size:
        return False
    if stat.st_size <= SMALL_BYTES or stat.st_mtime_ns != record.mtime_ns:
        return sha256_of(path) == record.sha256
    return head_hash(path) == record.head


def _hash_matches(path: Path, record: FileRecord) -> bool:
    try:
        return path.stat().st_size == record.size and sha256_of(path) == record.sha256
    except OSError:
        return False


def _read_manifest(folder: Path, source: str) -> dict[str, FileRecord]:
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    if (manifest["format"], manifest["source"]) != (FORMAT, source) or not manifest["files"]:
        raise ValueError("built by another version")
    return {name: FileRecord(**record) for name, record in manifest["files"].items()}


def _write_manifest(folder: Path, source: str, records: dict[str, FileRecord]) -> None:
    files = {name: asdict(record) for name, record in records.items()}
    text = json.dumps({"format": FORMAT, "source": source, "files": files}, indent=1)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, prefix=".", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(folder / MANIFEST)


def _update_times(folder: Path, source: str, records: dict[str, FileRecord]) -> None:
    """Record the new modification times of a copied cache, so that it is hashed only once."""
    now = {name: (folder / name).stat().st_mtime_ns for name in records}
    if all(now[name] == record.mtime_ns for name, record in records.items()):
        return
    renewed = {name: FileRecord(r.size, now[name], r.sha256, r.head) for name, r in records.items()}
    try:
        _write_manifest(folder, source, renewed)
    except OSError:
        return  # a read-only cache is usable


def _lock_of(folder: Path) -> Path:
    return folder.parent / f"{folder.name}{LOCK}"


def _leftovers(folder: Path) -> list[Path]:
    """What processes that were killed while they built the folder have left."""
    return list(folder.parent.glob(f".{glob.escape(folder.name)}.*"))


@contextmanager
def _locked(folder: Path, report: Report) -> Iterator[None]:
    lock = filelock.FileLock(_lock_of(folder))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report(Progress("waiting", 0, 1))
        lock.acquire()
        report(Progress("waiting", 1, 1))
    try:
        yield
    finally:
        lock.release()


def _install(folder: Path, source: str, build: Build) -> None:
    for stale in _leftovers(folder):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        made = work / "made"
        made.mkdir()
        build(made)
        seal(made, source)
        _swap_in(made, folder, work / "damaged")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _swap_in(made: Path, folder: Path, aside: Path) -> None:
    if folder.exists():
        folder.rename(aside)
    made.rename(folder)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
