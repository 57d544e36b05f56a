"""A conversation that is written down: it stands between the terminal and the one who answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from triforce_chat.chat.conversation import Conversation, Turn
from triforce_chat.documents import Document
from triforce_chat.engine.events import Comparison, Event, Side, Text
from triforce_chat.errors import StateError
from triforce_chat.storage.sessions import names
from triforce_chat.storage.sessions.lease import Lease
from triforce_chat.storage.sessions.store import Store
from triforce_chat.storage.sessions.values import Answerer

Item = TypeVar("Item")
Encode = Callable[[str], Sequence[int]]


class Recorded:
    """Implements ``ui.conversation.Conversation``: passes everything on and writes it down before it is shown.

    A session begins with its first question: who only looks leaves nothing behind.
    """

    def __init__(
        self,
        inner: Conversation,
        store: Store,
        answerer: Callable[[], Answerer],
        encode: Encode,
        name: str | None = None,
        opened: tuple[int, Lease] | None = None,
    ) -> None:
        """``name`` is for a new session, ``opened`` the one that is continued."""
        self._inner, self._store = inner, store
        self._answerer, self._encode = answerer, encode
        self._name, self._opened = name, opened
        self._last = store.last_answered(opened[0]) if opened else None  # row of the last turn, if it has one

    @property
    def session(self) -> int | None:
        """The session's id; None before its first question."""
        return self._opened[0] if self._opened else None

    @property
    def documents(self) -> Sequence[Document]:
        return self._inner.documents

    @property
    def turns(self) -> Sequence[Turn]:
        return self._inner.turns

    @property
    def system(self) -> str:
        return self._inner.system

    @property
    def context_used(self) -> int:
        return self._inner.context_used

    @property
    def context_limit(self) -> int:
        return self._inner.context_limit

    def options(self) -> dict[str, str]:
        return self._inner.options()

    def prefill(self) -> Generator[Event, None, None]:
        return self._inner.prefill()

    def ask(self, question: str) -> Generator[Event, None, None]:
        return self._written(question, self._inner.ask(question), _itself)

    def retry(self) -> Generator[Event, None, None]:
        question = self._inner.turns[-1].question if self._inner.turns else ""
        return self._written(question, self._inner.retry(), _itself, again=True)

    def resume(self) -> Generator[Event, None, None]:
        last = self._newest()
        said = Text(tuple(last.tally.token_ids), last.answer) if last else None
        return self._written(
            last.question if last else "", self._inner.resume(), _itself, again=True, said=said
        )

    def compare(self, question: str) -> Generator[tuple[Side, Event] | Comparison, None, None]:
        return self._written(question, self._inner.compare(question), _hierarchical)

    def add(self, document: Document) -> int:
        tokens = self._inner.add(document)
        if self._opened:
            self._store.add(self._opened[0], document)
        return tokens

    def set_system(self, text: str) -> None:
        self._inner.set_system(text)
        self._update()

    def set_option(self, name: str, value: str) -> None:
        self._inner.set_option(name, value)
        self._update()

    def clear(self) -> None:
        """Begin a new session over the same documents; the old one stays as it is."""
        self._inner.clear()
        self.close()
        self._last = None

    def close(self) -> None:
        """Others may go on with the session."""
        if self._opened:
            self._opened[1].release()
            self._opened = None

    def _update(self) -> None:
        if self._opened:
            self._store.update(self._opened[0], self.system, self._answerer())

    def _written(
        self,
        question: str,
        items: Generator[Item, None, None],
        event_of: Callable[[Item], object],
        again: bool = False,
        said: Text | None = None,
    ) -> Generator[Item, None, None]:
        before = self._newest()
        scribe = Scribe(self._store, self._last if again else None, said)
        try:
            for item in items:
                if not scribe.begun:  # a question that is refused never comes here
                    scribe.attempt(self._begin, scribe, question)
                scribe.attempt(scribe.hear, event_of(item))
                yield item
        finally:
            items.close()
            kept = self._newest()
            scribe.attempt(scribe.end, kept if kept is not before else None)
            if kept is not before:
                self._last = scribe.row
            if sys.exc_info()[0] in (None, GeneratorExit):
                scribe.complain()

    def _begin(self, scribe: Scribe, question: str) -> None:
        session, ids = self._current(), self._encode(question)
        scribe.turn = self._store.begin(session, question, ids, self.system, self._answerer())

    def _newest(self) -> Turn | None:
        return self._inner.turns[-1] if self._inner.turns else None

    def _current(self) -> int:
        if not self._opened:
            name = self._name or names.suggested(self.documents)
            self._opened = self._store.create(name, self.system, self._answerer(), self.documents)
        return self._opened[0]


class Scribe:
    """Writes one answer down. If that fails the answer goes on, and the user is told at its end."""

    def __init__(self, store: Store, instead: int | None, said: Text | None) -> None:
        """``instead`` is the turn that this one replaces as soon as something is said, after ``said``."""
        self._store, self._instead, self._said = store, instead, said
        self.turn: int | None = None  # once it is begun
        self._pieces = 0
        self._failure: StateError | None = None

    def attempt(self, work: Callable[..., None], *arguments: object) -> None:
        if self._failure is None:
            try:
                work(*arguments)
            except StateError as error:
                self._failure = error

    @property
    def begun(self) -> bool:
        return self.turn is not None or self._failure is not None

    @property
    def row(self) -> int | None:
        """The turn, if all of it could be written."""
        return None if self._failure else self.turn

    def hear(self, event: object) -> None:
        if self.turn is None or not isinstance(event, Text):
            return
        if self._pieces:
            self._store.say(self.turn, self._pieces, event)
            self._pieces += 1
        else:
            first = [piece for piece in (self._said, event) if piece]
            self._store.begin_answer(self.turn, first, self._instead)
            self._pieces = len(first)

    def end(self, kept: Turn | None) -> None:
        """``kept`` is what the conversation remembers of it; None: nothing."""
        if self.turn is not None and kept is not None:
            self._store.end(self.turn, kept)
        elif self.turn is not None and self._instead is not None:
            self._store.forget(self.turn)
        elif self.turn is not None:
            self._store.unanswered(self.turn)

    def complain(self) -> None:
        """Raises StateError if something could not be written."""
        if self._failure:
            raise StateError(f"this answer is not kept: {self._failure}") from self._failure


def _itself(event: Event) -> object:
    return event


def _hierarchical(item: tuple[Side, Event] | Comparison) -> object:
    """The event if it belongs to the answer that stays."""
    return item[1] if isinstance(item, tuple) and item[0] == "speculative" else None
