"""A quicker reader of GGUF files than gguf's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quant_shape_to_byte_shape

from triforce_chat.models.gguf_header import (
    ARRAY,
    STRING,
    Entry,
    TensorEntry,
    read_header,
)


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
