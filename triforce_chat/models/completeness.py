"""Checks that a model folder is complete."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from triforce_chat.errors import ModelError

SAFETENSORS_INDEX = "model.safetensors.index.json"


class NoSafetensors(ModelError):
    """The folder holds no safetensors; it may be complete in another format."""


def check_complete(name: str, folder: Path) -> None:
    """Raises ModelError unless the folder holds a config and every safetensors file that its index names."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name}: config.json is missing")
    if not any(folder.glob("*.safetensors")):
        raise no_weights(name, folder)
    check_index(name, folder / SAFETENSORS_INDEX, ".safetensors")


def check_index(name: str, index: Path, suffix: str) -> None:
    """Raises ModelError unless every weight file that ``index`` names is in its folder and ends with ``suffix``.

    An index is untrusted: transformers would follow it out of the folder, and unpickle other formats.
    """
    files = indexed_files(index)
    foreign = [file for file in files if not file.endswith(suffix) or set(file) & set("/\\:\0")]
    if foreign:
        raise ModelError(
            f"{name}: {index.name} names {foreign[0]!r}, which is not a {suffix} file in its folder; it is not read"
        )
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise ModelError(f"{name}: incomplete, {missing[0]} is missing; copy or download the model again")


def indexed_files(index: Path) -> list[str]:
    """The weight files that an index names, or none without an index. Raises ModelError if it is damaged."""
    if not index.is_file():
        return []
    try:
        return sorted({_name(file) for file in json.loads(index.read_text("utf-8"))["weight_map"].values()})
    except OSError as error:
        raise ModelError(
            f"{index.parent.name}: {index.name} cannot be read ({error.strerror or error})"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{index.parent.name}: {index.name} is damaged; copy or download the model again"
        ) from error


def _name(file: object) -> str:
    if not isinstance(file, str):
        raise TypeError(f"{file!r} is not a file name")
    return file


def check_loaded(name: str, missing: Iterable[str]) -> None:
    """Raises ModelError if weights are ``missing``, for which transformers would use random numbers."""
    first = min(missing, default=None)
    if first is not None:
        raise ModelError(f"{name}: its weights lack {first}; download the model again")


def no_weights(name: str, folder: Path) -> NoSafetensors:
    """The error for a folder without supported weights."""
    pickles = [file for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)]
    if pickles:
        return NoSafetensors(
            f"{name}: contains only pickled weights ({pickles[0].name}), which are never read; "
            "convert them to safetensors"
        )
    return NoSafetensors(f"{name}: contains neither .safetensors nor .gguf weights")
