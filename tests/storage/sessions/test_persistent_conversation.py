"""Persistent conversations: what is stored, and when."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
from support.chat_process import book, chat
from support.fakes import answer_events

from triforce_chat.chat.events import ChatEvent, Citation, Comparison, Place, Source, Sourced
from triforce_chat.engine.events import Text
from triforce_chat.errors import DoesNotFit, StateError, UsageError
from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.persistent_conversation import PersistentConversation
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.storage.sessions.values import SessionRecord

LONG = "an answer that comes in several pieces"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    made = SessionStore(tmp_path / "sessions.db")
    yield made
    made.close()


def load_session(store: SessionStore, name: str = "one") -> SessionRecord:
    catalog = Catalog(store)
    return catalog.load(catalog.find(name))


def turns_of(record: SessionRecord) -> list[tuple[str, str]]:
    return [(turn.question, turn.answer) for turn in record.turns]


def ask_and_stop(conversation: PersistentConversation, question: str) -> None:
    """Ctrl-C behind the first piece of the answer."""
    events = conversation.ask(question)
    while not isinstance(next(events), Text):
        pass
    events.close()


def test_a_turn_comes_back_as_it_was(store: SessionStore) -> None:
    conversation, inner = chat(store, LONG, "short", name="one")
    conversation.add(book("A", "page one", ""))
    list(conversation.ask("Why?"))
    conversation.add(book("B", "page"))
    list(conversation.ask("And?"))
    conversation.add(book("C", "page"))
    record = load_session(store)
    assert record.turns == inner.turns
    assert [[each.title for each in stored.documents] for stored in record.stored_turns] == [["A"], ["B"]]
    assert [each.title for each in record.pending] == ["C"]
    assert record.documents == inner.documents
    assert record.system == inner.system
    assert [stored.ended for stored in record.stored_turns] == ["stop", "stop"]
    assert record.stored_turns[0].question_ids == tuple(b"Why?")
    assert (record.stored_turns[0].vocabulary, record.settings) == ("abc", {"temperature": 0.5})


def test_sources_come_back(store: SessionStore) -> None:
    conversation, inner = chat(store, LONG, name="one")
    inner.sourced = Sourced(
        (Source("A", "page", 3, 0.5, "She paid."),),
        (Citation("page", 9, 9, "she paid", False, (Place("A", "page", 3),)),),
        0.1,
    )
    list(conversation.ask("Why?"))
    assert load_session(store).turns == inner.turns
    assert inner.turns[0].tally.sourced == inner.sourced


def test_every_piece_is_kept_before_it_is_shown(store: SessionStore) -> None:
    conversation, _ = chat(store, LONG, name="one")
    shown = ""
    for event in conversation.ask("Why?"):
        shown += event.text if isinstance(event, Text) else ""
        assert turns_of(load_session(store)) == [("Why?", shown)]
    assert shown == LONG


def test_an_answer_that_goes_on_is_one_answer(store: SessionStore) -> None:
    conversation, inner = chat(store, LONG, " and goes on", name="one")
    ask_and_stop(conversation, "Why?")
    begun = inner.turns[0].answer
    shown = ""
    for event in conversation.resume():
        shown += event.text if isinstance(event, Text) else ""
        assert not shown or turns_of(load_session(store)) == [("Why?", begun + shown)]
    assert shown
    assert load_session(store).turns == inner.turns


def test_an_interrupted_answer_is_kept(store: SessionStore) -> None:
    conversation, inner = chat(store, LONG, name="one")
    ask_and_stop(conversation, "Why?")
    assert turns_of(load_session(store)) == [("Why?", LONG[:12])] == [("Why?", inner.turns[0].answer)]
    assert load_session(store).stored_turns[0].ended == "interrupted"
    assert not store.database.query("SELECT 1 FROM pieces")


def test_a_question_whose_reading_is_interrupted_stays_without_an_answer(store: SessionStore) -> None:
    conversation, inner = chat(store, LONG, LONG, name="one")
    inner._say = silent  # type: ignore[method-assign]
    conversation.add(book("A", "page"))
    events = conversation.ask("Why?")
    next(events)
    events.close()
    record = load_session(store)
    assert turns_of(record) == [("Why?", "")]
    assert record.answered == []
    assert [each.title for each in record.pending] == ["A"]


def silent(question: str, events: Sequence[ChatEvent]) -> Generator[ChatEvent, None, None]:  # noqa: ARG001
    """Answers with the reading alone, of which no turn remains."""
    yield from answer_events("")[:4]


def test_a_refused_question_leaves_nothing(store: SessionStore) -> None:
    conversation, _ = chat(store, DoesNotFit("too long"), name="one")
    with pytest.raises(DoesNotFit):
        list(conversation.ask("Why?"))
    with pytest.raises(UsageError):
        list(conversation.retry())
    assert Catalog(store).summaries() == []


def test_who_asks_nothing_leaves_nothing(store: SessionStore) -> None:
    conversation, _ = chat(store, name="one")
    conversation.add(book("A", "page"))
    list(conversation.prefill())
    conversation.set_option("temperature", "1")
    conversation.set_system("Be brief.")
    conversation.clear()
    assert Catalog(store).summaries() == []


def test_another_answer_takes_the_place_of_the_last(store: SessionStore) -> None:
    conversation, _ = chat(store, "first", "second", "third", name="one")
    conversation.add(book("A", "page"))
    list(conversation.ask("Who?"))
    list(conversation.ask("Why?"))
    events = conversation.retry()
    next(events)
    assert turns_of(load_session(store)) == [("Who?", "first"), ("Why?", "second"), ("Why?", "")]
    list(events)
    record = load_session(store)
    assert turns_of(record) == [("Who?", "first"), ("Why?", "third")]
    assert [len(stored.documents) for stored in record.stored_turns] == [1, 0]


def test_another_answer_keeps_the_documents(store: SessionStore) -> None:
    conversation, _ = chat(store, "first", "second", name="one")
    conversation.add(book("A", "page"))
    list(conversation.ask("Who?"))
    conversation.add(book("B", "page"))
    list(conversation.retry())
    record = load_session(store)
    assert turns_of(record) == [("Who?", "second")]
    assert [each.title for each in record.stored_turns[0].documents] == ["A"]
    assert [each.title for each in record.pending] == ["B"]


def test_of_a_comparison_the_hierarchical_answer_is_kept(store: SessionStore) -> None:
    conversation, _ = chat(store, LONG, name="one")
    items = conversation.compare("Why?")
    while not isinstance(next(items), Comparison):
        said_so_far = turns_of(load_session(store))
    assert said_so_far == [("Why?", LONG)]


def test_settings_and_system_text_are_kept_as_they_change(store: SessionStore) -> None:
    conversation, _ = chat(store, name="one")
    list(conversation.ask("Why?"))
    conversation.set_system("Be brief.")
    assert load_session(store).system == "Be brief."


def test_clear_begins_another_session(store: SessionStore) -> None:
    conversation, _ = chat(store, name="one")
    conversation.add(book("A", "page"))
    list(conversation.ask("Why?"))
    first = conversation.session
    conversation.clear()
    assert conversation.session is None
    chat(store, name="one")[0].close()  # the old one is free
    list(conversation.ask("And?"))
    assert conversation.session != first
    assert turns_of(load_session(store)) == [("Why?", "You said: Why?")]
    assert turns_of(load_session(store, "one-2")) == [("And?", "You said: And?")]
    assert [each.title for each in load_session(store, "one-2").documents] == ["A"]


def test_a_chat_without_a_name_is_called_after_its_document(store: SessionStore) -> None:
    conversation, _ = chat(store)
    conversation.add(book("Treasure Island", "page"))
    list(conversation.ask("Why?"))
    assert Catalog(store).last().name.startswith("treasure-island-2")


def test_an_answer_that_cannot_be_written_is_shown_and_complained_about(store: SessionStore) -> None:
    conversation, inner = chat(store, LONG, LONG, LONG, name="one")
    list(conversation.ask("Who?"))
    store.database.query("PRAGMA query_only = ON")
    shown: list[ChatEvent] = []
    with pytest.raises(StateError, match=r"this answer is not saved: .*readonly"):
        shown += conversation.ask("Why?")
    assert inner.turns[-1].answer == LONG
    store.database.query("PRAGMA query_only = OFF")
    list(conversation.ask("And?"))
    assert [question for question, _ in turns_of(load_session(store))] == ["Who?", "And?"]


def test_an_answer_that_could_not_be_written_takes_no_other_with_it(store: SessionStore) -> None:
    conversation, _ = chat(store, "one", "two", "three", name="one")
    conversation.add(book("A", "page"))
    list(conversation.ask("Who?"))
    store.database.query("PRAGMA query_only = ON")
    with pytest.raises(StateError):
        list(conversation.ask("Why?"))
    store.database.query("PRAGMA query_only = OFF")
    list(conversation.retry())
    assert turns_of(load_session(store)) == [("Who?", "one"), ("Why?", "three")]
    assert [[each.title for each in stored.documents] for stored in load_session(store).stored_turns] == [
        ["A"],
        [],
    ]


def test_what_replaces_an_answer_is_there_when_that_is_gone(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = chat(store, "one", "two", name="one")
    conversation.add(book("A", "page"))
    list(conversation.ask("Who?"))

    def full(*_: object) -> None:
        raise StateError("the disk is full")

    monkeypatch.setattr(SessionStore, "add_piece", full)
    with pytest.raises(StateError, match="full"):
        list(conversation.retry())
    record = load_session(store)
    assert record.answered[0].turn.answer == "one"
    assert [each.title for each in record.answered[0].documents] == ["A"]


@pytest.mark.parametrize("work", ["retry", "resume"])
def test_another_answer_that_says_nothing_leaves_nothing(store: SessionStore, work: str) -> None:
    conversation, _ = chat(store, LONG, LONG, name="one")
    list(conversation.ask("Who?"))
    events = getattr(conversation, work)()
    assert not isinstance(next(events), Text)
    events.close()
    assert turns_of(load_session(store)) == [("Who?", LONG)]


def test_a_stopped_answer_that_cannot_be_written_is_complained_about(store: SessionStore) -> None:
    conversation, _ = chat(store, LONG, LONG, name="one")
    list(conversation.ask("Who?"))
    store.database.query("PRAGMA query_only = ON")
    with pytest.raises(StateError, match="not saved"):
        ask_and_stop(conversation, "Why?")
