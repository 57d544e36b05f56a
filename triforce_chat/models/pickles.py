"""Converts presets that were published as pickles into safetensors, once, in this program's own cache.

A pickle can run code when it is read. ``torch.load(weights_only=True)`` prevents that: it accepts tensors and plain
containers only. Still, it reads only repositories that a preset names, because they are published in no other format,
and only if the user asks for it with ``models pull``. Pickles in folders or other repositories are never read, and no
model is loaded from one.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from triforce_chat.errors import ModelError
from triforce_chat.models.completeness import NoSafetensors, check_index
from triforce_chat.models.model_cache import ensure, is_intact
from triforce_chat.models.progress import Progress, Report
from triforce_chat.settings.paths import models_folder

if TYPE_CHECKING:
    from torch import Tensor

PICKLES = "pytorch_model*.bin"
INDEX = "pytorch_model.bin.index.json"
KEPT = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
COMPUTED = "rotary_emb.inv_freq"  # stored by older models, but determined by the configuration


def snapshot_or_converted(repository: str, report: Report) -> Path:
    """The folder of a preset's safetensors, as published or as converted before. Reads no pickle.

    Raises ModelError if there are none or they cannot be downloaded.
    """
    from triforce_chat.models.hub import snapshot

    converted = conversion_folder(repository)
    if is_intact(converted, repository):
        return converted
    try:
        return snapshot(repository, report)
    except NoSafetensors as error:
        raise NoSafetensors(
            f"{repository}: published as pickles, which are not loaded; 'triforce-chat models pull {repository}' "
            "converts them once"
        ) from error


def pull(repository: str, report: Report) -> Path:
    """Download a preset's weights, and convert them into the cache if they were published as pickles.

    Returns the folder of the safetensors. Raises ModelError if they cannot be downloaded or converted.
    """
    try:
        return snapshot_or_converted(repository, report)
    except NoSafetensors:
        converted = conversion_folder(repository)
        return ensure(converted, repository, partial(_build, repository, report), report)


def conversion_folder(repository: str) -> Path:
    """The cache folder for the converted weights of ``owner/name``, which may not exist."""
    return models_folder() / repository.replace("/", "--")


def convert_pickles(name: str, source: Path, made: Path, report: Report) -> None:
    """Write the pickled weights of ``source`` as safetensors into the existing folder ``made``.

    Files are converted one by one, so that memory holds only the largest. Raises ModelError for a pickle that
    holds anything but weights.
    """
    check_index(name, source / INDEX, ".bin")
    pickles = sorted(source.glob(PICKLES))
    if not pickles:
        raise NoSafetensors(f"{name}: contains neither .safetensors nor .bin weights")
    file_of: dict[str, str] = {}
    for n, pickle in enumerate(pickles):
        report(Progress("converting", n, len(pickles)))
        file = f"model-{n + 1:05d}-of-{len(pickles):05d}.safetensors"
        file_of |= dict.fromkeys(_convert_file(name, pickle, made / file), file)
    index = {"metadata": {}, "weight_map": file_of}
    (made / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), "utf-8")
    for kept in {file for pattern in KEPT for file in source.glob(pattern)} - {source / INDEX}:
        shutil.copyfile(kept, made / kept.name)
    report(Progress("converting", len(pickles), len(pickles)))


def _build(repository: str, report: Report, made: Path) -> None:
    from triforce_chat.models.hub import download

    convert_pickles(repository, download(repository, report, [PICKLES]), made, report)


def _convert_file(name: str, pickle: Path, target: Path) -> list[str]:
    """Convert one file; returns the names of its weights."""
    from safetensors.torch import save_file

    weights = {key: weight.clone() for key, weight in _read(name, pickle).items() if COMPUTED not in key}
    save_file(weights, target, metadata={"format": "pt"})
    return list(weights)


def _read(name: str, pickle: Path) -> dict[str, Tensor]:
    from pickle import UnpicklingError

    import torch

    mapped = zipfile.is_zipfile(pickle)  # the older format cannot be memory-mapped
    try:
        weights = torch.load(pickle, map_location="cpu", weights_only=True, mmap=mapped)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise ModelError(
            f"{name}: {pickle.name} is damaged or contains more than weights; it is not read"
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(each, torch.Tensor) for each in weights.values()):
        raise ModelError(f"{name}: {pickle.name} contains more than weights; it is not read")
    return {key: weight.contiguous() for key, weight in weights.items()}
