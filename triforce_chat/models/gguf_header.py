"""Reads the header of a GGUF file, every count and length checked against the file's size.

gguf's own reader iterates over as many entries as the file declares, even past its end: a file of 40 bytes that
declares 2^60 entries would keep it busy for ever. It also takes some 12 seconds for a vocabulary of 150,000 tokens.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from triforce_chat.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# Each type of number: its format.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SMALLEST_ENTRY, SMALLEST_TENSOR, SMALLEST_STRING = 13, 24, 8  # bytes
MAX_DEPTH = 4  # of nested arrays
MAX_DIMENSIONS = 8
LENGTH = struct.Struct("<Q")
ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32  # bytes
FILES = 2  # whose headers are kept: a target's and its draft's


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of the metadata: a number, bytes, or an array of them; None for an array of arrays."""

    types: tuple[int, ...]  # of the value; for an array, ARRAY and that of its items
    value: Any


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor is in the file, and its type in GGUF's numbering."""

    name: str
    shape: tuple[int, ...]  # as in torch: the last dimension is contiguous
    kind: int
    offset: int  # bytes from the beginning of the file


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata and the tensors of a GGUF file, without their values."""

    entries: dict[str, Entry]
    tensors: tuple[TensorEntry, ...]


def check_gguf(file: Path) -> None:
    """Raises ModelError for a file that is not GGUF, or whose counts and lengths exceed its size."""
    read_header(file)


def read_header(file: Path) -> GgufHeader:
    """The header, which is read once until ``forget``, unless the file changes; callers may not modify it.

    Raises ModelError for a file that is not GGUF, or whose counts and lengths exceed its size.
    """
    return _read(file, *version_of(file))


def version_of(file: Path) -> tuple[int, int]:
    """Size and modification time of the file as it is now. Raises ModelError if it cannot be read."""
    try:
        stat = file.stat()
    except OSError as error:
        raise ModelError(f"{file.name} cannot be read ({error.strerror})") from error
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=FILES)
def _read(file: Path, _size: int, _mtime_ns: int) -> GgufHeader:
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(data).header()
    except (ValueError, struct.error) as error:
        raise ModelError(f"{file.name}: damaged or not a GGUF file ({error})") from error
    except OSError as error:
        raise ModelError(f"{file.name} cannot be read ({error.strerror})") from error


forget = _read.cache_clear  # frees the vocabularies, which take tens of megabytes


class _Parser:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._size, self._at = data, len(data), 0

    def header(self) -> GgufHeader:
        if self._take(len(MAGIC)) != MAGIC:
            raise ValueError("wrong magic number")
        if self._number("I") not in VERSIONS:
            raise ValueError("unknown version")
        tensors, entries = self._number("Q"), self._number("Q")
        self._require(tensors * SMALLEST_TENSOR + entries * SMALLEST_ENTRY)
        named: dict[str, Entry] = {}
        for _ in range(entries):
            name = self._string().decode()
            if name in named:
                raise ValueError("an entry occurs twice")
            named[name] = self._value(self._number("I"), 0)
        infos = [self._tensor() for _ in range(tensors)]
        start = self._first_tensor(named)
        return GgufHeader(
            named, tuple(TensorEntry(name, shape, kind, start + at) for name, shape, kind, at in infos)
        )

    def _value(self, kind: int, depth: int) -> Entry:
        if kind == STRING:
            return Entry((STRING,), self._string())
        if kind == ARRAY and depth < MAX_DEPTH:
            return self._array(depth)
        if kind in NUMBERS:
            return Entry((kind,), self._number(NUMBERS[kind]))
        raise ValueError("a value of unknown type")

    def _array(self, depth: int) -> Entry:
        kind, count = self._number("I"), self._number("Q")
        if kind in NUMBERS:
            item = np.dtype(f"<{NUMBERS[kind]}")
            return Entry((ARRAY, kind), np.frombuffer(self._take(count * item.itemsize), item))
        self._require(count * SMALLEST_STRING)
        if kind == STRING:
            return Entry((ARRAY, STRING), self._strings(count))
        for _ in range(count):
            self._value(kind, depth + 1)
        return Entry((ARRAY, kind), None)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string().decode(), self._number("I")
        if dimensions > MAX_DIMENSIONS:
            raise ValueError("a tensor of too many dimensions")
        sizes = [self._number("Q") for _ in range(dimensions)]
        return name, tuple(reversed(sizes)), self._number("I"), self._number("Q")

    def _first_tensor(self, entries: dict[str, Entry]) -> int:
        """The offset of the first tensor: the end of the header, aligned."""
        alignment = entries[ALIGNMENT].value if ALIGNMENT in entries else DEFAULT_ALIGNMENT
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError("an alignment that is no power of two")
        return -(-self._at // alignment) * alignment

    def _strings(self, count: int) -> list[bytes]:
        """As ``_string``, but in one loop, because vocabularies have hundreds of thousands of them."""
        data, size, at, found = self._data, self._size, self._at, []
        for _ in range(count):
            (length,) = LENGTH.unpack_from(data, at)
            end = at + LENGTH.size + length
            if end > size:
                raise ValueError("it declares more than it contains")
            found.append(data[at + LENGTH.size : end])
            at = end
        self._at = at
        return found

    def _string(self) -> bytes:
        return self._take(self._number("Q"))

    def _number(self, form: str) -> Any:
        number = struct.unpack_from(f"<{form}", self._data, self._at)[0]
        self._at += struct.calcsize(f"<{form}")
        return number

    def _take(self, count: int) -> bytes:
        self._require(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def _require(self, count: int) -> None:
        if self._at + count > self._size:
            raise ValueError("it declares more than it contains")
