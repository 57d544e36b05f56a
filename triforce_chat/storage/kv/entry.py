"""One cache file: the keys and values of one chunk, as safetensors with checksums.

Each layer's keys, each layer's values and the header have a checksum. They cover every byte of the file, so nothing
reaches a cache unchecked. Files are read, not memory-mapped: an unreadable sector then raises an error, which a new
prefill repairs, where in mapped memory it would kill the process.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

ALIGNMENT = 64  # bytes; the header is padded to it
MAX_HEADER = 1 << 20  # bytes
# Threads of two cores or fewer, and at most: one copies and checks while others wait for the disk.
FEWEST_READERS, MOST_READERS = 2, 8
SEAL = '{"__metadata__":{"seal":"%08x",'  # every header begins with its own checksum


class CorruptEntry(Exception):
    """The file does not hold what was written, or something else than expected."""


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """The metadata of a file. The field names are part of the file format."""

    key: str
    parent: str  # key of the preceding entry; empty for the first
    model: str
    title: str  # of the document that ends here, if one does
    start: int  # tokens before it
    end: int
    dtype: str  # as named by safetensors
    shape: tuple[int, int, int, int]  # [layers, Hkv, n, D], of the keys and of the values
    part_bytes: int  # size of one layer's keys

    @property
    def parts(self) -> int:
        return 2 * self.shape[0]  # the keys of every layer, then the values


def save(path: Path, header: EntryHeader, parts: Iterable[memoryview]) -> None:
    """Write a file atomically; ``parts`` are consumed one by one. Raises OSError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(scratch, "xb", buffering=0, opener=_private) as file:
            placeholder = _encode_header(header, [0] * header.parts)  # as long as the final header
            _write(file, b"\0" * len(placeholder))
            sums = [_write_part(file, part) for part in parts]
            file.seek(0)
            _write(file, _encode_header(header, sums))
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def count_readers() -> int:
    """How many threads are worth having for a file."""
    return min(MOST_READERS, max(FEWEST_READERS, (os.cpu_count() or 1) // 2))


def load(
    path: Path,
    expected: EntryHeader,
    take: Callable[[int, memoryview], None],
    buffers: Sequence[memoryview],
) -> None:
    """Read and check every part, and pass it to ``take`` with its number, from several threads in any order.

    A thread for each of the ``buffers``, which have room for a part; it is read into one, and valid until ``take``
    returns. The file must match the key, shape and dtype of ``expected``. Raises CorruptEntry and OSError; some parts
    may have been passed on before.
    """
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(len(buffers)) as pool:
        header, sums = _read_header(file)
        mine, theirs = ((each.key, each.shape, each.dtype, each.part_bytes) for each in (expected, header))
        if mine != theirs:
            raise CorruptEntry("another entry")
        start = file.tell()

        def read(first: int) -> None:
            part = buffers[first][: header.part_bytes]
            # Each thread has a place of its own in the file: Windows has no reading from a given one.
            with path.open("rb", buffering=0) as own:
                for n in range(first, header.parts, len(buffers)):
                    own.seek(start + n * header.part_bytes)
                    if own.readinto(part) != header.part_bytes or zlib.crc32(part) != sums[n]:
                        raise CorruptEntry("keys or values")
                    take(n, part)

        for _ in pool.map(read, range(len(buffers))):
            pass


def read_header(path: Path) -> EntryHeader:
    """The header of a file; its keys and values are not read. Raises CorruptEntry and OSError."""
    with path.open("rb", buffering=0) as file:
        return _read_header(file)[0]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_part(file: BinaryIO, part: memoryview) -> int:
    """Write a part and return its checksum."""
    _write(file, part)
    return zlib.crc32(part)


def _write(file: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:  # a write to a nearly full disk may be short
        view = view[file.write(view) :]


def _encode_header(header: EntryHeader, sums: list[int]) -> bytes:
    size = header.part_bytes * header.shape[0]
    metadata = {name: _text(value) for name, value in asdict(header).items()}
    metadata["sums"] = "".join(f"{each:08x}" for each in sums)
    tensors = {
        name: {"dtype": header.dtype, "shape": header.shape, "data_offsets": [at, at + size]}
        for name, at in (("keys", 0), ("values", size))
    }
    rest = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":"))
    rest = rest.removeprefix('{"__metadata__":{')
    length = 8 + len(SEAL % 0) + len(rest)
    rest += " " * (-length % ALIGNMENT)
    text = (SEAL % zlib.crc32(rest.encode())) + rest
    return len(text).to_bytes(8, "little") + text.encode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _read_header(file: BinaryIO) -> tuple[EntryHeader, list[int]]:
    """(header, checksum of every part) of a file whose length matches. Raises CorruptEntry and OSError."""
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER:
        raise CorruptEntry("header")
    text = file.read(length)
    if len(text) != length or text[: len(SEAL % 0)] != (SEAL % zlib.crc32(text[len(SEAL % 0) :])).encode():
        raise CorruptEntry("header")
    header, sums = _parse_header(text)
    if os.fstat(file.fileno()).st_size != 8 + length + header.parts * header.part_bytes:
        raise CorruptEntry("length")
    return header, sums


def _parse_header(text: bytes) -> tuple[EntryHeader, list[int]]:
    """(header, checksum of every part) of a header whose own checksum is right. Raises CorruptEntry."""
    try:
        metadata = json.loads(text)["__metadata__"]
        values: dict[str, Any] = {
            field.name: _value(field.name, metadata[field.name]) for field in fields(EntryHeader)
        }
        header, sums = EntryHeader(**values), metadata["sums"]
        parts = [int(sums[8 * n : 8 * n + 8], 16) for n in range(header.parts)]
    except (KeyError, ValueError, TypeError, IndexError):
        raise CorruptEntry("written by another version") from None
    return header, parts


def _value(name: str, text: str) -> Any:
    if name in ("start", "end", "part_bytes"):
        return int(text)
    return tuple(json.loads(text)) if name == "shape" else text
