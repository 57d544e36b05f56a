"""What is kept of a conversation, as plain values, and the forms in which they lie in the database."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import (
    Citation,
    Finished,
    LevelTally,
    Place,
    Prefilled,
    Rebuilt,
    Source,
    Sourced,
    Tally,
)


@dataclass(frozen=True, slots=True)
class Answerer:
    """Who answers, and how."""

    model: str
    vocabulary: str  # token ids mean the same texts wherever this is the same
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heading:
    """A session in one line."""

    id: int
    name: str
    model: str
    created: float  # seconds since the epoch
    used: float
    turns: int
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A whole session."""

    heading: Heading
    system: str
    settings: dict[str, Any]
    past: tuple[StoredTurn, ...]
    waiting: tuple[Document, ...]  # documents that belong to the next question

    @property
    def documents(self) -> Sequence[Document]:
        return [document for past in self.past for document in past.documents] + list(self.waiting)

    @property
    def turns(self) -> Sequence[Turn]:
        return [past.turn for past in self.past]

    @property
    def answered(self) -> list[StoredTurn]:
        return [past for past in self.past if past.turn.tally.token_ids]


@dataclass(frozen=True, slots=True)
class Hit:
    """A turn that a search found."""

    session: str
    turn: int  # its number within the session, from 1
    asked: float
    question: str
    excerpt: str  # of the answer, around what was found or from its beginning


def storable(text: str) -> str:
    """Text as SQLite takes it: bytes that were no text become question marks, as they do in a prompt."""
    return text.encode("utf-8", "replace").decode()


def packed(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def unpacked(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 4}I", data)


def pages_of(document: Document) -> tuple[str, bytes]:
    """(sha256 of the pages with their numbers, the pages themselves)."""
    text = json.dumps([[page.number, page.text] for page in document.pages]).encode()
    return hashlib.sha256(text).hexdigest(), zlib.compress(text)


def remarks_of(document: Document) -> str:
    return json.dumps({"broken": document.broken, "notices": document.notices})


def document_of(title: str, source: str, unit: str, remarks: str, pages: bytes) -> Document:
    told = json.loads(remarks)
    return Document(
        title,
        source,
        tuple(Page(number, text) for number, text in json.loads(zlib.decompress(pages))),
        unit,
        tuple(told["broken"]),
        notices=tuple(told["notices"]),
    )


def statistics_of(tally: Tally) -> dict[str, Any]:
    """All of a tally but its text and ids, which lie beside it."""
    return {name: value for name, value in asdict(tally).items() if name not in ("top", "token_ids", "text")}


def tally_of(statistics: str | None, ids: Sequence[int], text: str) -> Tally:
    told = json.loads(statistics) if statistics else {}
    prefill, finished, sourced = (told.get(name) for name in ("prefill", "finished", "sourced"))
    return Tally(
        levels={name: _made(LevelTally, level) for name, level in told.get("levels", {}).items()},
        rebuilds=[_made(Rebuilt, rebuilt) for rebuilt in told.get("rebuilds", ())],
        prefill=_made(Prefilled, prefill) if prefill else None,
        finished=_made(Finished, finished) if finished else None,
        sourced=_sourced(sourced) if sourced else None,
        accepted=told.get("accepted", []),
        rebuilt_in=told.get("rebuilt_in", []),
        token_ids=list(ids),
        text=text,
    )


def _sourced(told: dict[str, Any]) -> Sourced:
    sources = tuple(_made(Source, each) for each in told["sources"])
    citations = tuple(
        _made(Citation, {**each, "found_on": tuple(_made(Place, place) for place in each["found_on"])})
        for each in told["citations"]
    )
    return Sourced(sources, citations, told["seconds"])


def _made(kind: Any, values: dict[str, Any]) -> Any:
    """An event as it was written; what another version of this program knew besides is left out."""
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})
