"""Reading cells of the database that may be damaged: SQLite checks no types, and files outlive disks.

A damaged text or time is replaced, so that the rest of its session can still be listed, read and deleted. What cannot
be replaced makes its session unreadable, which one line says.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from triforce_chat.errors import StateError

LATEST = (
    2**33
)  # seconds since the epoch (the year 2242); later times are damage, and dates may not reach them
LARGEST_TEXT = 1 << 31  # bytes of a document, unpacked; a longer one was never written
UNREADABLE = (
    *(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError),
    *(struct.error, zlib.error),
)


def text_of(cell: object) -> str:
    """A cell that holds text; bytes that are none become replacement characters."""
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)


def time_of(cell: object) -> float:
    """A cell that holds seconds since the epoch; 0 for what is no such time."""
    return float(cell) if isinstance(cell, int | float) and 0 <= cell <= LATEST else 0.0


def object_of(cell: object) -> dict[str, Any]:
    """A cell that holds a JSON object. Raises one of UNREADABLE."""
    loaded = json.loads(text_of(cell))
    if not isinstance(loaded, dict):
        raise TypeError("not a JSON object")
    return loaded


def inflated(cell: bytes) -> bytes:
    """A cell that holds deflated bytes. Raises one of UNREADABLE, also for more than was ever written."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(cell, LARGEST_TEXT)
    if not unpacker.eof:
        raise ValueError("the deflated data does not end")
    return data


@contextmanager
def damage_reported(what: str) -> Iterator[None]:
    """Turn the failure to read a cell into a StateError about ``what``."""
    try:
        yield
    except UNREADABLE as error:
        raise StateError(
            f"{what} is damaged and cannot be read ({type(error).__name__}); nothing was changed: "
            "restore a copy of the sessions, or delete it with 'triforce-chat sessions rm'"
        ) from error


def record_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass from stored fields; fields that only another version of this program has are left out.

    Raises TypeError for a value of another type than its field's, and KeyError for a missing one.
    """
    known = {each.name: values[each.name] for each in fields(kind) if each.name in values}
    for name, value in known.items():
        if not _fits(value, _types(kind)[name]):
            raise TypeError(f"{kind.__name__}.{name}")
    return kind(**known)


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value has the type of a field: a number or text, None, one of some words, or a tuple."""
    origin = get_origin(hint)
    if origin is UnionType:
        return any(_fits(value, option) for option in get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple)
    if origin is not None:  # Literal
        return value in get_args(hint)
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return type(value) is hint
