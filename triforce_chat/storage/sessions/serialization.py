"""The forms in which texts, token ids, documents and statistics are stored in the database."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from triforce_chat.chat.events import Citation, LevelTally, LookedUp, Place, Source, Sourced, Tally
from triforce_chat.documents import Document, Heading, Page
from triforce_chat.engine.events import Finished, Prefilled, Rebuilt

REMARKS = ("broken", "notices", "garbled")  # of a document


def storable(text: str) -> str:
    """Text that SQLite accepts: lone surrogates become question marks, as they do in a prompt."""
    return text.encode("utf-8", "replace").decode()


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    return struct.pack(f"<{len(ids)}I", *ids)


def unpack_ids(data: bytes) -> tuple[int, ...]:
    """Inverse of ``pack_ids``."""
    return struct.unpack(f"<{len(data) // 4}I", data)


def pages_digest(document: Document) -> str:
    """SHA-256 of the pages and their numbers."""
    return hashlib.sha256(_pages_json(document)).hexdigest()


def pack_pages(document: Document) -> bytes:
    """The pages and their numbers as deflated JSON."""
    return zlib.compress(_pages_json(document))


def pack_remarks(document: Document) -> str:
    """Notices about parts of a document that could not be read, as JSON."""
    remarks = {name: getattr(document, name) for name in REMARKS}
    headings = [[each.title, each.level, each.page, each.start] for each in document.headings]
    return json.dumps({**remarks, "headings": headings, "has_lines": document.has_lines})


def unpack_document(title: str, source: str, unit: str, remarks: str, pages: bytes) -> Document:
    """A document from the columns of its row."""
    loaded = json.loads(remarks)
    read = tuple(Page(number, text) for number, text in json.loads(zlib.decompress(pages)))
    # An earlier version stored fewer remarks.
    return Document(
        title,
        source,
        read,
        unit,
        **{name: tuple(loaded.get(name, ())) for name in REMARKS},
        headings=tuple(Heading(*each) for each in loaded.get("headings", ())),
        has_lines=loaded.get("has_lines", False),
    )


def dump_statistics(tally: Tally) -> str:
    """A tally as JSON, without its text and token ids, which have columns of their own."""
    left_out = ("top", "token_ids", "text", "latest")
    return json.dumps({name: value for name, value in asdict(tally).items() if name not in left_out})


def load_tally(statistics: str | None, ids: Sequence[int], text: str) -> Tally:
    """Inverse of ``dump_statistics``; without statistics only the ids and the text are known."""
    loaded = json.loads(statistics) if statistics else {}
    prefill, finished, sourced = (loaded.get(name) for name in ("prefill", "finished", "sourced"))
    return Tally(
        levels={name: _load(LevelTally, level) for name, level in loaded.get("levels", {}).items()},
        rebuilds=[_load(Rebuilt, rebuilt) for rebuilt in loaded.get("rebuilds", ())],
        prefill=_load(Prefilled, prefill) if prefill else None,
        finished=_load(Finished, finished) if finished else None,
        sourced=_load_sourced(sourced) if sourced else None,
        accepted=loaded.get("accepted", []),
        rebuilt_in=loaded.get("rebuilt_in", []),
        token_ids=list(ids),
        text=text,
    )


def _pages_json(document: Document) -> bytes:
    return json.dumps([[page.number, page.text] for page in document.pages]).encode()


def _load_sourced(values: dict[str, Any]) -> Sourced:
    sources = tuple(_load(Source, each) for each in values["sources"])
    citations = tuple(
        _load(Citation, {**each, "found_on": tuple(_load(Place, place) for place in each["found_on"])})
        for each in values["citations"]
    )
    quotes, standing = (tuple(map(_load_looked_up, values.get(name, ()))) for name in ("quotes", "standing"))
    return Sourced(sources, citations, values["seconds"], quotes, standing)


def _load_looked_up(values: dict[str, Any]) -> LookedUp:
    return LookedUp(values["words"], tuple(_load(Place, place) for place in values["found_on"]))


def _load(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass from stored fields; fields that only another version of this program has are left out."""
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})
