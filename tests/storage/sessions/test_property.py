"""Random sequences of turns, copies, renames and deletions, against a model in memory."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from support.chat_process import book, chat

from triforce_chat.engine.events import Text
from triforce_chat.errors import StateError
from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.store import SessionStore

texts = st.text(st.characters(codec="utf-8"), max_size=30)
answers = texts.filter(bool)
titles = st.sampled_from("ABC")


class Sessions(RuleBasedStateMachine):
    """The model: for every name its turns, and the titles of its documents."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.opened()
        self.turns: dict[str, list[tuple[str, str]]] = {}
        self.titles: dict[str, list[str]] = {}
        self.made = 0

    def opened(self) -> SessionStore:
        return SessionStore(Path(self.folder.name) / "sessions.db")

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.store)

    def fresh(self) -> str:
        self.made += 1
        return f"name {self.made}"

    @rule(target=names, question=texts, answer=answers)
    def begin(self, question: str, answer: str) -> str:
        name = self.fresh()
        self.turns[name], self.titles[name] = [], []
        self.ask(name, question, answer, None)
        return name

    @rule(name=names, question=texts, answer=answers, title=titles | st.none())
    def ask(self, name: str, question: str, answer: str, title: str | None) -> None:
        conversation, _ = chat(self.store, answer, name=name)
        if title:
            conversation.add(book(title, title))
            self.titles[name].append(title)
        list(conversation.ask(question))
        conversation.close()
        self.turns[name].append((question, answer))

    @rule(name=names, question=texts, answer=answers)
    def die_while_answering(self, name: str, question: str, answer: str) -> None:
        conversation, _ = chat(self.store, answer, name=name)
        events = conversation.ask(question)
        while not isinstance(said := next(events), Text):
            pass
        conversation.close()  # as the system does with the locks of the dead
        self.store.close()
        with suppress(StateError):  # what it would still have written goes nowhere
            events.close()
        self.store = self.opened()
        self.turns[name].append((question, said.text))

    @rule(target=names, name=names)
    def fork(self, name: str) -> str:
        new = self.catalog.fork(name)
        self.turns[new], self.titles[new] = [*self.turns[name]], [*self.titles[name]]
        return new

    @rule(target=names, name=consumes(names))
    def rename(self, name: str) -> str:
        new = self.fresh()
        self.catalog.rename(name, new)
        self.turns[new], self.titles[new] = self.turns.pop(name), self.titles.pop(name)
        return new

    @rule(name=consumes(names))
    def remove(self, name: str) -> None:
        self.catalog.remove([self.catalog.find(name)])
        del self.turns[name], self.titles[name]

    @invariant()
    def the_same_is_kept(self) -> None:
        records = {each.name: self.catalog.load(each) for each in self.catalog.summaries()}
        assert {
            name: [(turn.question, turn.answer) for turn in record.turns] for name, record in records.items()
        } == self.turns
        assert {
            name: [each.title for each in record.documents] for name, record in records.items()
        } == self.titles
        used = {title for titles in self.titles.values() for title in titles}
        assert self.store.database.query("SELECT count(*) FROM texts")[0][0] == len(used)
        self.store.database.query("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=12, stateful_step_count=12, deadline=None, derandomize=True)
