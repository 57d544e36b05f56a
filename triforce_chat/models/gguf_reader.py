"""Lets transformers read GGUF files by a quicker reader and quicker dequantization than gguf's own.

Names, configurations and tokenizers remain transformers' business, which imports the two from gguf whenever it reads a
file. It parses the same metadata for the configuration and again for the tokenizer's: that happens once, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quant_shape_to_byte_shape
from transformers import modeling_gguf_pytorch_utils as checkpoints

from triforce_chat.models.dequantize import dequantize
from triforce_chat.models.gguf_header import (
    ARRAY,
    FILES,
    STRING,
    Entry,
    TensorEntry,
    forget,
    read_header,
    version_of,
)

OWN_LOAD = checkpoints.load_gguf_checkpoint


@dataclass(frozen=True, slots=True)
class Field:
    """One value of the metadata as gguf's reader gives it: ``parts[i]`` for every i of ``data``."""

    parts: Sequence[Any]  # bytes of strings, numbers as sequences of one
    data: range
    types: list[int]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's bytes [..., bytes of a row], mapped from the file."""

    name: str
    tensor_type: gguf.GGMLQuantizationType
    data: np.ndarray[Any, Any]


class QuickReader:
    """The part of gguf.GGUFReader that transformers uses. Raises ModelError for a damaged file."""

    def __init__(self, path: str | Path) -> None:
        header = read_header(Path(path))
        mapped = np.memmap(path, np.uint8, "c")  # copy-on-write: torch wants writable memory
        self.fields = {name: _field(entry) for name, entry in header.entries.items()}
        self.tensors = [_stored(mapped, tensor) for tensor in header.tensors]


@contextmanager
def quick_gguf() -> Iterator[None]:
    """Replace gguf's reader and its dequantization within the block, and have metadata parsed once."""
    own = gguf.GGUFReader, gguf.dequantize
    gguf.GGUFReader, gguf.dequantize = QuickReader, dequantize
    checkpoints.load_gguf_checkpoint = _load_checkpoint
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.dequantize = own
        checkpoints.load_gguf_checkpoint = OWN_LOAD


def _load_checkpoint(path: str, return_tensors: bool = False, **options: Any) -> dict[str, Any]:
    """As transformers' function of that name."""
    if return_tensors:
        loaded: dict[str, Any] = OWN_LOAD(path, return_tensors, **options)
        return loaded
    found = _metadata(path, *version_of(Path(path)))
    return {group: {name: copy(value) for name, value in values.items()} for group, values in found.items()}


@lru_cache(maxsize=FILES)
def _metadata(path: str, _size: int, _mtime_ns: int) -> dict[str, dict[str, Any]]:
    parsed: dict[str, dict[str, Any]] = OWN_LOAD(path)
    return parsed


def forget_metadata() -> None:
    """Free what is kept of the files that were read: tens of megabytes for a large vocabulary."""
    _metadata.cache_clear()
    forget()


def _field(entry: Entry) -> Field:
    if entry.types[0] != ARRAY:
        parts = [entry.value if entry.types[0] == STRING else (entry.value,)]
    elif entry.value is None:
        parts = []
    else:
        parts = entry.value if entry.types[1] == STRING else entry.value.reshape(-1, 1)
    return Field(parts, range(len(parts)), list(entry.types))


def kind_of(tensor: TensorEntry) -> gguf.GGMLQuantizationType:
    """The type of a tensor's blocks. Raises ValueError for one that the package gguf does not know."""
    try:
        return gguf.GGMLQuantizationType(tensor.kind)
    except ValueError:
        raise ValueError(
            f"{tensor.name} is of quantization type {tensor.kind}, which is unknown here; "
            "a Q4_K_M, Q5_K_M, Q6_K or Q8_0 of the model would load"
        ) from None


def _stored(mapped: np.ndarray[Any, Any], tensor: TensorEntry) -> StoredTensor:
    kind = kind_of(tensor)
    shape = quant_shape_to_byte_shape(tensor.shape, kind)
    end = tensor.offset + int(np.prod(shape, dtype=object))
    if end > len(mapped):
        raise ValueError(f"{tensor.name} ends beyond the end of the file")
    return StoredTensor(tensor.name, kind, mapped[tensor.offset : end].reshape(shape))
