"""The values that a session store holds and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from triforce_chat.chat.conversation import StoredTurn, Turn
from triforce_chat.documents import Document


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that answers, its vocabulary and the settings."""

    model: str
    vocabulary: str  # identifies the tokenizer: token ids are valid wherever this is the same
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session in one line."""

    id: int
    name: str
    model: str
    created: float  # seconds since the epoch
    used: float  # seconds since the epoch
    turns: int
    titles: tuple[str, ...]  # of its documents


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A whole session; implements ``ChatHistory``."""

    summary: SessionSummary
    system: str
    settings: dict[str, Any]
    stored_turns: tuple[StoredTurn, ...]
    pending: tuple[Document, ...]  # documents that belong to the next question

    @property
    def documents(self) -> Sequence[Document]:
        return [document for stored in self.stored_turns for document in stored.documents] + list(
            self.pending
        )

    @property
    def turns(self) -> Sequence[Turn]:
        return [stored.turn for stored in self.stored_turns]

    @property
    def answered(self) -> list[StoredTurn]:
        """The turns that have at least one token of an answer."""
        return [stored for stored in self.stored_turns if stored.turn.tally.token_ids]

    @property
    def unanswered(self) -> str | None:
        """The last question if it has no answer."""
        last = self.turns[-1] if self.stored_turns else None
        return last.question if last and not last.tally.token_ids else None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A turn that a search found."""

    session: str
    turn: int  # its number within the session, from 1
    asked: float  # seconds since the epoch
    question: str
    excerpt: str  # of the answer: around the match, or its beginning if the question matched
