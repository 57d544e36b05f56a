"""Checks the counts and lengths in a GGUF header against the file's size before a library trusts them.

The reader that transformers uses iterates over as many entries as the file declares, even past its end: a file of
40 bytes that declares 2^60 entries would keep it busy for ever.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from triforce_chat.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of each type of number
SMALLEST_ENTRY, SMALLEST_TENSOR, SMALLEST_STRING = 13, 24, 8  # bytes
MAX_DEPTH = 4  # of nested arrays
MAX_DIMENSIONS = 8


def check_gguf(file: Path) -> None:
    """Raises ModelError for a file that is not GGUF, or whose counts and lengths exceed its size."""
    try:
        with file.open("rb") as opened:
            _Header(opened, file.stat().st_size).check()
    except (ValueError, struct.error) as error:
        raise ModelError(f"{file.name}: damaged or not a GGUF file ({error})") from error
    except OSError as error:
        raise ModelError(f"{file.name} cannot be read ({error.strerror})") from error


class _Header:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def check(self) -> None:
        if self._file.read(4) != MAGIC:
            raise ValueError("wrong magic number")
        if self._number("<I") not in VERSIONS:
            raise ValueError("unknown version")
        tensors, entries = self._number("<Q"), self._number("<Q")
        self._require(tensors * SMALLEST_TENSOR + entries * SMALLEST_ENTRY)
        for _ in range(entries):
            self._string()
            self._value(self._number("<I"), 0)
        for _ in range(tensors):
            self._tensor()

    def _value(self, kind: int, depth: int) -> None:
        if kind == STRING:
            self._string()
        elif kind == ARRAY and depth < MAX_DEPTH:
            self._array(depth)
        elif kind in SIZES:
            self._skip(SIZES[kind])
        else:
            raise ValueError("a value of unknown type")

    def _array(self, depth: int) -> None:
        kind, count = self._number("<I"), self._number("<Q")
        self._require(count * SIZES.get(kind, SMALLEST_STRING))
        if kind in SIZES:
            self._skip(count * SIZES[kind])
        else:
            for _ in range(count):
                self._value(kind, depth + 1)

    def _tensor(self) -> None:
        self._string()
        dimensions = self._number("<I")
        if dimensions > MAX_DIMENSIONS:
            raise ValueError("a tensor of too many dimensions")
        self._skip(8 * dimensions + 12)  # the sizes, the type, the offset

    def _string(self) -> None:
        self._skip(self._number("<Q"))

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._file.read(struct.calcsize(form)))[0]
        return number

    def _skip(self, count: int) -> None:
        self._require(count)
        self._file.seek(count, os.SEEK_CUR)

    def _require(self, count: int) -> None:
        if self._file.tell() + count > self._size:
            raise ValueError("it declares more than it contains")
