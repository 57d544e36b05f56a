"""One file: the keys and values of one chunk, as safetensors that can tell whether they are intact.

A checksum goes with every layer's keys and with its values, and one with the header, so that every byte of the
file is covered and nothing reaches a cache unchecked. Files are read and not mapped: a sector that cannot be read
is an error here that a new prefill mends, and in mapped memory the end of the process.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

ALIGNMENT = 64  # bytes; the header is padded to it
LONGEST_HEADER = 1 << 20  # bytes
READERS = 2  # threads: one copies and checks while another waits for the disk
SEAL = '{"__metadata__":{"seal":"%08x",'  # the first characters of every header


class Damaged(Exception):
    """The file is not what was written."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a file says of itself."""

    key: str
    parent: str  # key of the block before; empty for the first
    model: str
    title: str  # of the text that ends here, if one does
    start: int  # tokens before it
    end: int
    dtype: str  # as safetensors calls it
    shape: tuple[int, int, int, int]  # [layers, Hkv, n, D], of the keys as of the values
    part_bytes: int  # of one layer's keys

    @property
    def parts(self) -> int:
        return 2 * self.shape[0]  # the keys of every layer, then the values


def save(path: Path, label: Label, parts: Iterable[memoryview]) -> None:
    """Write a file that is there whole or not at all; ``parts`` are read one by one. Raises OSError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(scratch, "xb", buffering=0, opener=_private) as file:
            _write(
                file, b"\0" * len(_header(label, [0] * label.parts))
            )  # of the same length as the final one
            sums = [_written(file, part) for part in parts]
            file.seek(0)
            _write(file, _header(label, sums))
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def load(path: Path, wanted: Label, take: Callable[[int, memoryview], None]) -> None:
    """Read every part, check it, and hand it over with its number; in several threads, in any order.

    ``wanted`` says what the file has to be; its title does not matter. Raises Damaged and OSError, after which
    some parts may have been handed over.
    """
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(READERS) as pool:
        label, sums = _read_header(file)
        if (label.key, label.shape, label.dtype) != (wanted.key, wanted.shape, wanted.dtype):
            raise Damaged("another block")
        start = file.tell()

        def read(first: int) -> None:
            part = memoryview(bytearray(label.part_bytes))
            for n in range(first, label.parts, READERS):
                size = os.preadv(file.fileno(), [part], start + n * label.part_bytes)
                if size != label.part_bytes or zlib.crc32(part) != sums[n]:
                    raise Damaged("keys or values")
                take(n, part)

        for _ in pool.map(read, range(READERS)):
            pass


def read_label(path: Path) -> Label:
    """What a file says of itself; its keys and values are not looked at. Raises Damaged and OSError."""
    with path.open("rb", buffering=0) as file:
        return _read_header(file)[0]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _written(file: BinaryIO, part: memoryview) -> int:
    _write(file, part)
    return zlib.crc32(part)


def _write(file: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:  # a disk that is nearly full takes less than it is given
        view = view[file.write(view) :]


def _header(label: Label, sums: list[int]) -> bytes:
    size = label.part_bytes * label.shape[0]
    metadata = {name: _text(value) for name, value in asdict(label).items()}
    metadata["sums"] = "".join(f"{each:08x}" for each in sums)
    tensors = {
        name: {"dtype": label.dtype, "shape": label.shape, "data_offsets": [at, at + size]}
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


def _read_header(file: BinaryIO) -> tuple[Label, list[int]]:
    """(label, checksum of every part) of a file whose length is right."""
    length = int.from_bytes(file.read(8), "little")
    if length > LONGEST_HEADER:
        raise Damaged("header")
    text = file.read(length)
    if len(text) != length or text[: len(SEAL % 0)] != (SEAL % zlib.crc32(text[len(SEAL % 0) :])).encode():
        raise Damaged("header")
    label, sums = _parsed(text)
    if os.fstat(file.fileno()).st_size != 8 + length + label.parts * label.part_bytes:
        raise Damaged("length")
    return label, sums


def _parsed(text: bytes) -> tuple[Label, list[int]]:
    """(label, checksum of every part) of a header whose seal is intact."""
    try:
        metadata = json.loads(text)["__metadata__"]
        values: dict[str, Any] = {
            field.name: _value(field.name, metadata[field.name]) for field in fields(Label)
        }
        label, sums = Label(**values), metadata["sums"]
        parts = [int(sums[8 * n : 8 * n + 8], 16) for n in range(label.parts)]
    except (KeyError, ValueError, TypeError, IndexError):
        raise Damaged("written by another version") from None
    return label, parts


def _value(name: str, text: str) -> Any:
    if name in ("start", "end", "part_bytes"):
        return int(text)
    return tuple(json.loads(text)) if name == "shape" else text
