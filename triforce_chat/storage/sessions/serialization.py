"""The forms in which texts, token ids, documents and statistics are stored in the database."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from triforce_chat.chat.events import Citation, LevelTally, LookedUp, Place, Source, Sourced, Tally
from triforce_chat.documents import Document, Heading, Page
from triforce_chat.engine.events import Finished, Forgot, Prefilled, Rebuilt
from triforce_chat.storage.sessions.cells import UNREADABLE, inflated, object_of, record_of, text_of

REMARKS = ("broken", "notices", "garbled")  # of a document


def storable(text: str) -> str:
    """Text that SQLite accepts: lone surrogates become question marks, as they do in a prompt."""
    return text.encode("utf-8", "replace").decode()


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    return struct.pack(f"<{len(ids)}I", *ids)


def unpack_ids(data: bytes) -> tuple[int, ...]:
    """Inverse of ``pack_ids``. Raises one of ``cells.UNREADABLE``."""
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


def unpack_document(title: object, source: object, unit: object, remarks: object, pages: bytes) -> Document:
    """A document from the columns of its row. Raises one of ``cells.UNREADABLE``."""
    loaded = object_of(remarks)
    texts = json.loads(inflated(pages))
    # An earlier version stored fewer remarks.
    return Document(
        text_of(title),
        text_of(source),
        tuple(Page(_checked(number, int), _checked(text, str)) for number, text in texts),
        text_of(unit),
        broken=tuple(_checked(number, int) for number in loaded.get("broken", ())),
        notices=tuple(_checked(notice, str) for notice in loaded.get("notices", ())),
        garbled=tuple(_checked(number, int) for number in loaded.get("garbled", ())),
        headings=tuple(_heading(*each) for each in loaded.get("headings", ())),
        has_lines=_checked(loaded.get("has_lines", False), bool),
    )


def _heading(title: Any, level: Any, page: Any, start: Any) -> Heading:
    return Heading(_checked(title, str), *(_checked(number, int) for number in (level, page, start)))


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is not {kind.__name__}")
    return value


def dump_statistics(tally: Tally) -> str:
    """A tally as JSON, without its text and token ids, which have columns of their own."""
    left_out = ("top", "token_ids", "text", "latest", "drafters")
    return json.dumps({name: value for name, value in asdict(tally).items() if name not in left_out})


def load_tally(statistics: object, ids: Sequence[int], text: str) -> Tally:
    """Inverse of ``dump_statistics``; without statistics, or with damaged ones, only the ids and the text are known."""
    try:
        loaded = object_of(statistics) if statistics else {}
        return _load_tally(loaded, ids, text)
    except UNREADABLE:
        return Tally(token_ids=list(ids), text=text)


def _load_tally(loaded: dict[str, Any], ids: Sequence[int], text: str) -> Tally:
    prefill, forgot, finished, sourced = (
        loaded.get(name) for name in ("prefill", "forgot", "finished", "sourced")
    )
    return Tally(
        levels={name: record_of(LevelTally, level) for name, level in loaded.get("levels", {}).items()},
        rebuilds=[record_of(Rebuilt, rebuilt) for rebuilt in loaded.get("rebuilds", ())],
        prefill=record_of(Prefilled, prefill) if prefill else None,
        forgot=record_of(Forgot, forgot) if forgot else None,
        finished=record_of(Finished, finished) if finished else None,
        sourced=_load_sourced(sourced) if sourced else None,
        accepted=[_checked(number, int) for number in loaded.get("accepted", ())],
        rebuilt_in=[_checked(number, int) for number in loaded.get("rebuilt_in", ())],
        token_ids=list(ids),
        text=text,
        thought=_checked(loaded.get("thought", ""), str),
        thought_tokens=_checked(loaded.get("thought_tokens", 0), int),
    )


def _pages_json(document: Document) -> bytes:
    return json.dumps([[page.number, page.text] for page in document.pages]).encode()


def _load_sourced(values: dict[str, Any]) -> Sourced:
    sources = tuple(record_of(Source, each) for each in values["sources"])
    citations = tuple(
        record_of(
            Citation, {**each, "found_on": tuple(record_of(Place, place) for place in each["found_on"])}
        )
        for each in values["citations"]
    )
    quotes, standing = (tuple(map(_load_looked_up, values.get(name, ()))) for name in ("quotes", "standing"))
    return Sourced(sources, citations, _checked(values["seconds"], float), quotes, standing)


def _load_looked_up(values: dict[str, Any]) -> LookedUp:
    found_on = tuple(record_of(Place, place) for place in values["found_on"])
    return LookedUp(_checked(values["words"], str), found_on)
