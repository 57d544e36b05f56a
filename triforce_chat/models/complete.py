"""Whether a model folder holds all that it should."""

from __future__ import annotations

import json
from pathlib import Path

from triforce_chat.errors import ModelError

SAFETENSORS_INDEX = "model.safetensors.index.json"


class NoSafetensors(ModelError):
    """A folder may be complete in its own way, but holds no weights in a form that is read directly."""


def check_complete(name: str, folder: Path) -> None:
    """Raise ModelError unless the folder holds a config and every safetensors file its index names."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name}: config.json is missing beside the weights")
    if not any(folder.glob("*.safetensors")):
        raise no_weights(name, folder)
    check_indexed(name, folder / SAFETENSORS_INDEX, ".safetensors")


def check_indexed(name: str, index: Path, suffix: str) -> None:
    """Raise ModelError unless every weight file that ``index`` names lies beside it and ends with ``suffix``.

    An index may be anybody's: transformers would follow it out of the folder, and unpickle what is no safetensors.
    """
    files = indexed(index)
    foreign = [file for file in files if not file.endswith(suffix) or set(file) & set("/\\:\0")]
    if foreign:
        raise ModelError(f"{name}: {index.name} names {foreign[0]!r}, no {suffix} file beside it; not read")
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise ModelError(f"{name}: incomplete, {missing[0]} is missing; copy or download the model again")


def indexed(index: Path) -> list[str]:
    """The weight files that an index names; none where there is no index. Raises ModelError for damage."""
    if not index.is_file():
        return []
    try:
        return sorted({_name(file) for file in json.loads(index.read_text("utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{index.parent.name}: {index.name} is damaged; copy or download the model again"
        ) from error


def _name(file: object) -> str:
    if not isinstance(file, str):
        raise TypeError(f"{file!r} is no file name")
    return file


def no_weights(name: str, folder: Path) -> NoSafetensors:
    """The error for a folder without weights that can be read."""
    pickles = [file for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)]
    if pickles:
        return NoSafetensors(
            f"{name}: holds only pickled weights ({pickles[0].name}), which are never read; convert to safetensors"
        )
    return NoSafetensors(f"{name}: holds neither .safetensors nor .gguf weights")
