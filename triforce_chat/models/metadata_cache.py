"""Keeps what transformers has read of a model's small files, so that a later start needs nothing of transformers.

Its auto classes import parts of itself and of torch that take up to nine seconds, and rebuild tokenizers from files of
many forms in ways that differ between versions. What they have made of a model's files is written down once: it is
valid for the same files and the same versions, and exact by construction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from triforce_chat import __version__
from triforce_chat.models.model_cache import (
    LOCK,
    UNREADABLE,
    CacheUnusable,
    discard,
    ensure,
    head_hash,
    source_of,
)
from triforce_chat.models.progress import ignore_progress
from triforce_chat.models.registry import ModelSource
from triforce_chat.settings.paths import models_folder

FORMAT = 1  # of what is kept; another number has it read again
# How the names of the files begin that transformers may read besides weights; a folder may hold thousands of others.
NAMES = (
    *("config", "generation_config", "tokenizer", "special_tokens", "added_tokens", "chat_template"),
    *("vocab", "merges", "tekken", "tiktoken", "spiece", "sentencepiece"),
)
TEMPLATES = "additional_chat_templates"  # a folder of further ones
MOST_FOLDERS = 64  # folders of models that are still there; those that were written longest ago are dropped
NO_HASH = "unreadable"  # in place of a file's hash
HASH_DIGITS = 12  # of the hash that keeps apart folders of the same name

Make = Callable[[Path], None]  # fills an empty folder


@contextmanager
def cached_metadata(kind: str, source: ModelSource, make: Make) -> Iterator[Path]:
    """A folder with what ``make`` has written about a model, now or at an earlier start.

    Where the cache cannot be written, the file is made each time and deleted after the block. Raises what ``make``
    does.
    """
    with ExitStack() as stack:
        try:
            folder = ensure(
                _folder_for(kind, source), _as_text(source), partial(_make, make), ignore_progress
            )
        except CacheUnusable:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            make(folder)
        yield folder


def metadata_folder() -> Path:
    """The folder of all that is kept, which may not exist."""
    return models_folder() / "read"


def metadata_size() -> int:
    """Bytes of all that is kept."""
    return sum(map(_size, _folders()))


def discard_stale() -> int:
    """Delete what is kept of models that are gone, and what is damaged or unfinished; returns the bytes freed."""
    return _discard([folder for folder in _folders() if not _has_model(folder)])


def discard_all() -> int:
    """Delete all that is kept; returns the bytes freed."""
    return _discard(_folders())


def _folders() -> list[Path]:
    """All folders, even those of which only the lock is left; those that were written longest ago come first."""
    names = {path.name.removesuffix(LOCK) for path in metadata_folder().glob("[!.]*")}
    return sorted((metadata_folder() / name for name in names), key=_written)


def _written(folder: Path) -> int:
    return folder.stat().st_mtime_ns if folder.exists() else 0


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*"))


def _has_model(folder: Path) -> bool:
    try:
        return Path(json.loads(source_of(folder))["path"]).exists()
    except UNREADABLE:
        return False


def _discard(folders: list[Path]) -> int:
    freed = sum(map(_size, folders))
    for folder in folders:
        discard(folder)
    return freed


def _folder_for(kind: str, source: ModelSource) -> Path:
    path = _path_of(source)
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]
    return metadata_folder() / f"{path.stem}-{digest}-{kind}"


def _path_of(source: ModelSource) -> Path:
    return source.folder / source.gguf_file if source.gguf_file else source.folder


def _as_text(source: ModelSource) -> str:
    """Everything that a reading depends on."""
    read_by = {name: version(name) for name in ("transformers", "tokenizers")}
    about = {
        "path": str(_path_of(source)),
        "files": [_about(file) for file in _files(source)],
        "versions": {**read_by, "program": __version__, "format": FORMAT},
    }
    return json.dumps(about)


def _files(source: ModelSource) -> list[Path]:
    small = (file for file in source.folder.iterdir() if file.name.startswith(NAMES))
    templates = (source.folder / TEMPLATES).glob("*")
    weights = (source.folder / source.gguf_file,) if source.gguf_file else ()
    return sorted(file for file in (*small, *templates, *weights) if file.is_file())


def _about(file: Path) -> tuple[str, int, int, str]:
    stat = file.stat()
    try:
        head = head_hash(file)
    except OSError:  # reading the file will report that
        head = NO_HASH
    return file.name, stat.st_size, stat.st_mtime_ns, head


def _make(make: Make, into: Path) -> None:
    discard_stale()
    _discard(_folders()[: -MOST_FOLDERS + 1])
    make(into)
