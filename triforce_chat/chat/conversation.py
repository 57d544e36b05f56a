"""What the terminal needs of a conversation; ``session.Session`` provides it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from triforce_chat.documents import Document
from triforce_chat.engine.events import Comparison, Event, Side, Tally


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and what was answered (partial when it was interrupted)."""

    question: str
    answer: str
    tally: Tally


class Told(Protocol):
    """What was said, and about what."""

    @property
    def documents(self) -> Sequence[Document]: ...
    @property
    def turns(self) -> Sequence[Turn]: ...
    @property
    def system(self) -> str: ...


class Conversation(Told, Protocol):
    """One that goes on. Every iterator below may be closed at any event: what was said so far is kept."""

    @property
    def context_used(self) -> int: ...
    @property
    def context_limit(self) -> int: ...

    def ask(self, question: str) -> Generator[Event, None, None]:
        """Answer; raises ``DoesNotFit`` before anything is computed."""
        ...

    def retry(self) -> Generator[Event, None, None]:
        """Answer the last question again; raises ``UsageError`` when there is none."""
        ...

    def resume(self) -> Generator[Event, None, None]:
        """Go on with the last answer where it was stopped or cut; ``UsageError`` when it came to its end."""
        ...

    def compare(self, question: str) -> Generator[tuple[Side, Event] | Comparison, None, None]:
        """Answer twice, first hierarchically, then plainly; the ``Comparison`` comes last."""
        ...

    def prefill(self) -> Generator[Event, None, None]:
        """Read the documents into the cache ahead of the first question."""
        ...

    def add(self, document: Document) -> int:
        """Put a document behind what was said; returns its tokens; raises ``DoesNotFit``."""
        ...

    def set_system(self, text: str) -> None: ...
    def set_option(self, name: str, value: str) -> None:
        """Change one setting; raises ``UsageError`` naming the valid ones."""
        ...

    def options(self) -> dict[str, str]:
        """Every setting that /set knows, with its present value."""
        ...

    def clear(self) -> None:
        """Forget the turns, keep the documents."""
        ...
