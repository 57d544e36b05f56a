"""A conversation that writes everything to the session store before it is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from triforce_chat.chat.conversation import Conversation, Turn
from triforce_chat.chat.events import ChatEvent, Comparison, Side
from triforce_chat.documents import Document
from triforce_chat.engine.events import Text
from triforce_chat.storage.sessions.lease import Lease
from triforce_chat.storage.sessions.names import suggest_name
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.storage.sessions.turn_writer import TurnWriter
from triforce_chat.storage.sessions.values import ModelInfo

Item = TypeVar("Item")


class PersistentConversation:
    """A ``Conversation`` around another one, which it writes to a session.

    The session is created with the first question: a chat without any leaves nothing behind.
    """

    def __init__(
        self,
        inner: Conversation,
        store: SessionStore,
        model_info: Callable[[], ModelInfo],
        question_ids: Callable[[str], Sequence[int]],
        name: str | None = None,
        opened: tuple[int, Lease] | None = None,
    ) -> None:
        """``model_info``: called at every write, because settings may change. ``question_ids``: the tokens
        with which a question is asked.

        ``name``: for a new session; None takes it from the documents. ``opened``: id and lease of a session to
        continue.
        """
        self._inner, self._store = inner, store
        self._model_info, self._question_ids = model_info, question_ids
        self._name, self._opened = name, opened
        # Row of the last turn; None if that turn is not stored.
        self._last_row = store.last_answered_turn(opened[0]) if opened else None

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

    def prefill(self) -> Generator[ChatEvent, None, None]:
        return self._inner.prefill()

    def ask(self, question: str) -> Generator[ChatEvent, None, None]:
        return self._written(self._inner.ask(question), _itself, self._writer(question))

    def retry(self) -> Generator[ChatEvent, None, None]:
        last = self._last_turn()
        writer = self._writer(last.question if last else "", replaces=self._last_row)
        return self._written(self._inner.retry(), _itself, writer)

    def revise(self, question: str) -> Generator[ChatEvent, None, None]:
        writer = self._writer(question, replaces=self._last_row)
        return self._written(self._inner.revise(question), _itself, writer)

    def undo(self) -> Turn:
        turn = self._inner.undo()
        if self._opened and self._last_row is not None:
            self._store.delete_turn(self._last_row)  # its documents then belong to the next question
            self._last_row = self._store.last_answered_turn(self._opened[0])
        return turn

    def drop(self, number: int) -> Document:
        document = self._inner.drop(number)
        if self._opened:
            self._store.remove_document(self._opened[0], document)
        return document

    def resume(self) -> Generator[ChatEvent, None, None]:
        last = self._last_turn()
        beginning = Text(tuple(last.tally.token_ids), last.answer) if last else None
        writer = self._writer(last.question if last else "", self._last_row, beginning)
        return self._written(self._inner.resume(), _itself, writer)

    def compare(self, question: str) -> Generator[tuple[Side, ChatEvent] | Comparison, None, None]:
        return self._written(self._inner.compare(question), _speculative, self._writer(question))

    def add(self, document: Document) -> int:
        tokens = self._inner.add(document)
        if self._opened:
            self._store.add_document(self._opened[0], document)
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
        self._last_row = None

    def close(self) -> None:
        """Let other processes continue the session."""
        if self._opened:
            self._opened[1].release()
            self._opened = None

    def _update(self) -> None:
        if self._opened:
            self._store.update(self._opened[0], self.system, self._model_info())

    def _writer(
        self, question: str, replaces: int | None = None, beginning: Text | None = None
    ) -> TurnWriter:
        return TurnWriter(self._store, lambda: self._begin_turn(question), replaces, beginning)

    def _written(
        self, items: Generator[Item, None, None], event_of: Callable[[Item], object], writer: TurnWriter
    ) -> Generator[Item, None, None]:
        """Pass ``items`` on after ``writer`` has stored the event in each."""
        before = self._last_turn()
        try:
            for item in items:
                writer.begin()  # a question that is refused never comes here
                writer.add(event_of(item))
                yield item
        finally:
            items.close()
            after = self._last_turn()
            changed = after is not before
            writer.end(after if changed else None)
            if changed:
                self._last_row = writer.row
            if sys.exc_info()[0] in (None, GeneratorExit):
                writer.raise_failure()

    def _begin_turn(self, question: str) -> int:
        """Store a question, and the session if this is its first one; returns the turn's row."""
        if not self._opened:
            name = self._name or suggest_name(self.documents)
            self._opened = self._store.create(name, self.system, self._model_info(), self.documents)
        ids = self._question_ids(question)
        return self._store.begin_turn(self._opened[0], question, ids, self.system, self._model_info())

    def _last_turn(self) -> Turn | None:
        return self._inner.turns[-1] if self._inner.turns else None


def _itself(event: ChatEvent) -> object:
    return event


def _speculative(item: tuple[Side, ChatEvent] | Comparison) -> object:
    """The event if it belongs to the answer that the conversation keeps."""
    return item[1] if isinstance(item, tuple) and item[0] == "speculative" else None
