"""Turns and stored turns of a conversation, and the protocols of its history and of a live conversation."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from triforce_chat.chat.events import ChatEvent, Comparison, Side, Tally
from triforce_chat.documents import Document


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer, which is partial if it was interrupted."""

    question: str
    answer: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn from a session store; it has no answer ids if it was never answered."""

    turn: Turn
    documents: tuple[Document, ...]  # placed before the question
    question_ids: tuple[int, ...]
    model: str
    vocabulary: str  # identifies the tokenizer: the ids are valid wherever this is the same
    asked: float  # seconds since the epoch
    ended: str | None  # why; None while it is being answered


@dataclass(frozen=True, slots=True)
class SavedSession:
    """One line of a list of sessions."""

    name: str
    turns: int
    titles: tuple[str, ...]  # of its documents
    used: float  # seconds since the epoch
    current: bool  # this conversation is written to it


class ChatHistory(Protocol):
    """The documents, turns and system prompt of a conversation, live or stored."""

    @property
    def documents(self) -> Sequence[Document]: ...
    @property
    def turns(self) -> Sequence[Turn]: ...
    @property
    def system(self) -> str: ...


class Conversation(ChatHistory, Protocol):
    """A live conversation.

    Every generator below may be closed at any event; the answer up to then stays in the conversation.
    """

    @property
    def context_used(self) -> int:
        """Tokens that the next prompt takes before its question."""
        ...

    @property
    def context_limit(self) -> int:
        """Tokens that prompt and answer may take together; 0: any number."""
        ...

    def ask(self, question: str) -> Generator[ChatEvent, None, None]:
        """Answer a question. Raises DoesNotFit before anything is computed."""
        ...

    def retry(self) -> Generator[ChatEvent, None, None]:
        """Answer the last question again. Raises UsageError if there is none."""
        ...

    def revise(self, question: str) -> Generator[ChatEvent, None, None]:
        """Ask another question in place of the last one. Raises UsageError if there is none."""
        ...

    def undo(self) -> Turn:
        """Take back the last question and its answer; its documents stay. Raises UsageError if there is none."""
        ...

    def resume(self) -> Generator[ChatEvent, None, None]:
        """Continue the last answer where it was stopped or cut. Raises UsageError if it is complete."""
        ...

    def compare(self, question: str) -> Generator[tuple[Side, ChatEvent] | Comparison, None, None]:
        """Answer twice, with and without speculation; yields the events of both, then the ``Comparison``."""
        ...

    def prefill(self) -> Generator[ChatEvent, None, None]:
        """Read the documents into the cache ahead of the first question."""
        ...

    def add(self, document: Document) -> int:
        """Append a document; returns its tokens. Raises DoesNotFit."""
        ...

    def drop(self, number: int) -> Document:
        """Remove the document with this number, from 0; the turns stay. The next question reads the rest again."""
        ...

    def set_system(self, text: str) -> None:
        """Replace the system prompt."""
        ...

    def set_option(self, name: str, value: str) -> None:
        """Change one setting. Raises UsageError, which names the valid ones."""
        ...

    def options(self) -> dict[str, str]:
        """All settings that can be changed, with their values."""
        ...

    def clear(self) -> None:
        """Forget the turns; keep the documents."""
        ...
