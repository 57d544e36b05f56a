"""Keeps what GGUF files named by their path were converted into, so that later starts map it instead of converting.

The weights are stored in the dtype in which they were loaded, one folder for each file and dtype: rounding the numbers
of the file to that dtype is all that loading the file itself does, so both give the same model.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from triforce_chat.errors import ModelError
from triforce_chat.models.model_cache import (
    LOCK,
    CacheUnusable,
    discard,
    ensure,
    head_hash,
    source_of,
)
from triforce_chat.models.progress import Report
from triforce_chat.models.registry import ModelSource
from triforce_chat.settings.paths import models_folder
from triforce_chat.settings.sizes import readable

DISK_SHARE = 10  # a conversion may take one part in so many of the free disk
HASH_DIGITS = 12  # of the hash that keeps apart files of the same name

Check = Callable[[], object]  # raises ModelError for a model that is not supported


@dataclass(frozen=True, slots=True)
class Origin:
    """What a conversion was made from and into: the file as it was then, and a dtype by its name in torch."""

    file: str  # path without links
    size: int  # bytes
    mtime_ns: int
    head: str  # hash of the file's beginning
    dtype: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model in the cache."""

    folder: Path
    origin: Origin

    @property
    def file(self) -> Path:
        return Path(self.origin.file)

    @property
    def is_current(self) -> bool:
        """False if the file is gone or has changed."""
        try:
            return origin_of(self.file, self.origin.dtype) == self.origin
        except ModelError:
            return False


def converted(source: ModelSource, dtype: str, check: Check, report: Report) -> ModelSource:
    """The source of the same model in safetensors of that dtype; converted the first time, if ``check`` passes.

    Raises CacheUnusable if the cache cannot keep it, and ModelError or OutOfMemory if it cannot be converted.
    """
    assert source.gguf_file is not None
    file = (source.folder / source.gguf_file).resolve()
    folder = _folder_for(file, dtype)
    # A model that was downloaded to be used here may take the room that it needs.
    share = DISK_SHARE if source.preset is None else 1
    build = partial(_build, file, dtype, folder, check, share, report)
    ensure(folder, _as_text(origin_of(file, dtype)), build, report)
    return replace(source, folder=folder, gguf_file=None)


def conversions() -> list[Conversion]:
    """All converted models in the cache, by the names of their files; also those of files that are gone or changed."""
    found = (_read(conversions_folder() / name) for name in _names())
    return sorted((each for each in found if each), key=lambda each: (each.file.name, each.folder.name))


def conversions_folder() -> Path:
    """The folder of the converted models, which may not exist."""
    return models_folder() / "gguf"


def origin_of(file: Path, dtype: str) -> Origin:
    """What a conversion of the file as it is now would be made from. Raises ModelError if it cannot be read."""
    try:
        stat = file.stat()
        return Origin(str(file), stat.st_size, stat.st_mtime_ns, head_hash(file), dtype)
    except OSError as error:
        raise ModelError(f"{file.name} cannot be read ({error.strerror})") from error


def _folder_for(file: Path, dtype: str) -> Path:
    digest = hashlib.sha256(str(file).encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]
    return conversions_folder() / f"{file.stem}-{digest}-{dtype}"


def _as_text(origin: Origin) -> str:
    return json.dumps(asdict(origin))


def _names() -> set[str]:
    """The names of all folders for conversions, even those that were only begun."""
    try:
        visible = [path.name for path in conversions_folder().iterdir() if not path.name.startswith(".")]
    except OSError:
        return set()
    return {name.removesuffix(LOCK) for name in visible}


def _read(folder: Path) -> Conversion | None:
    """The conversion in a folder; None if there is none or its manifest is damaged."""
    try:
        return Conversion(folder, Origin(**json.loads(source_of(folder))))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(
    file: Path, dtype: str, folder: Path, check: Check, share: int, report: Report, made: Path
) -> None:
    from triforce_chat.models.convert import convert_gguf  # imports torch, which is needed only here

    check()
    _remove_useless(folder)
    _check_space(file, dtype, share, made)
    convert_gguf(file, made, dtype, report)


def _remove_useless(own: Path) -> None:
    """Delete the conversions of files that are gone or changed, and ``own``, which is about to be made again."""
    shutil.rmtree(own, ignore_errors=True)
    for name in _names() - {own.name}:
        found = _read(own.parent / name)
        if found is None or not found.is_current:
            discard(own.parent / name)


def _check_space(file: Path, dtype: str, share: int, made: Path) -> None:
    """Raises CacheUnusable if the conversion would take more than one part in ``share`` of the free disk."""
    import torch

    from triforce_chat.models.gguf_header import read_header

    numbers = sum(math.prod(tensor.shape) for tensor in read_header(file).tensors)
    needed, free = numbers * getattr(torch, dtype).itemsize, shutil.disk_usage(made).free
    if needed * share > free:
        part = "a tenth of the" if share == DISK_SHARE else "the"
        raise CacheUnusable(
            f"{readable(needed)} would be more than {part} {readable(free)} free in {conversions_folder()}"
        )
