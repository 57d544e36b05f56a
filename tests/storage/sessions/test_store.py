"""The database of sessions: its file, its versions, its locks, and what is found in it."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat_process import MODEL_INFO, book, chat
from support.places import SUPPORT

from triforce_chat.engine.events import Text
from triforce_chat.errors import StateError, UsageError
from triforce_chat.storage.sessions import schema
from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.database import Database, Unwritable
from triforce_chat.storage.sessions.lease import InUse
from triforce_chat.storage.sessions.names import check_name, free_name, suggest_name
from triforce_chat.storage.sessions.store import SessionStore

BY_HAND = SUPPORT / "sessions-version-1.sql"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sessions.db"


@pytest.fixture
def store(path: Path) -> Iterator[SessionStore]:
    made = SessionStore(path)
    yield made
    made.close()


@pytest.fixture
def catalog(store: SessionStore) -> Catalog:
    return Catalog(store)


def write_session(
    store: SessionStore, name: str, *turns: tuple[str, str], titles: tuple[str, ...] = ()
) -> None:
    """A session with these questions and answers, over documents whose text is their title."""
    conversation, _ = chat(store, *(answer for _, answer in turns), name=name)
    for title in titles:
        conversation.add(book(title, title))
    for question, _ in turns:
        list(conversation.ask(question))
    conversation.close()


def texts(store: SessionStore) -> int:
    return int(store.database.query("SELECT count(*) FROM texts")[0][0])


# The file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_its_owner_reads_it(path: Path) -> None:
    path.parent.mkdir(mode=0o755)
    path.touch(mode=0o644)
    store = SessionStore(path)
    write_session(store, "one", ("Why?", "So."))
    files = [each for each in path.parent.rglob("*") if each.is_file()]
    assert {each.name for each in files} == {"sessions.db", "sessions.db-wal", "sessions.db-shm", "1"}
    assert {mode(each) for each in files} == {0o600}
    assert {mode(path.parent), mode(path.parent / "locks")} == {0o700}
    store.close()


def test_a_commit_is_in_the_log_at_once_and_survives(path: Path, store: SessionStore) -> None:
    conversation, _ = chat(store, "abc", name="one")
    events = conversation.ask("Why?")
    while not isinstance(next(events), Text):
        pass
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as other:
        assert other.execute("SELECT text FROM pieces").fetchall() == [("abc",)]
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


def test_a_damaged_file_is_named_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all, " * 500)
    before = path.read_bytes()
    with pytest.raises(StateError, match=r"sessions\.db is damaged .* nothing was deleted") as caught:
        SessionStore(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_file_that_is_damaged_inside_is_named(path: Path) -> None:
    store = SessionStore(path)
    for number in range(30):
        write_session(store, f"s{number}", ("Why?", "So. " * 50))
    store.close()
    data = bytearray(path.read_bytes())
    data[8192 : len(data) - 4096] = b"\xff" * (len(data) - 12288)
    path.write_bytes(data)
    with pytest.raises(StateError, match="is damaged"):
        Catalog(SessionStore(path)).summaries()
    assert path.stat().st_size == len(data)


def test_a_later_version_is_left_alone(path: Path) -> None:
    SessionStore(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StateError, match=r"later triforce-chat .version 99, this one knows 1.") as caught:
        SessionStore(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_folder_that_refuses() -> None:
    with pytest.raises(Unwritable, match="Not a directory"):
        SessionStore(Path("/dev/null/state/sessions.db"))


# Versions


def by_hand(path: Path) -> None:
    """A database as the first version of this program wrote it."""
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(BY_HAND.read_text())
    connection.close()


def test_a_database_of_version_1(path: Path) -> None:
    by_hand(path)
    catalog = Catalog(SessionStore(path))
    record = catalog.load(catalog.find("an old one"))
    assert [(turn.question, turn.answer) for turn in record.turns] == [("Who?", "The mate."), ("Why?", "He")]
    assert record.turns[0].tally.token_ids == [7, 8, 70_000]
    assert record.turns[0].tally.finished is not None
    assert record.stored_turns[1].ended == "interrupted"
    assert [(each.title, each.text) for each in record.stored_turns[0].documents] == [
        ("The log", "one\ntwo\n")
    ]
    assert record.settings == {"temperature": 0.5}
    assert [hit.turn for hit in catalog.search("mate")] == [1]
    assert schema.version_of(catalog.store.database._connection) == len(schema.MIGRATIONS)
    write_session(catalog.store, "an old one", ("And?", "It goes on."))
    assert len(catalog.load(catalog.find("an old one")).turns) == 3


def test_a_migration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(path)
    step = ("ALTER TABLE sessions ADD COLUMN mood TEXT", "UPDATE sessions SET mood = 'fine'")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
    for _ in range(2):
        database = Database(path)
        assert [tuple(row) for row in database.query("SELECT name, mood FROM sessions")] == [
            ("an old one", "fine")
        ]
        assert schema.version_of(database._connection) == len(schema.MIGRATIONS)
        database.close()


def test_a_migration_that_fails_leaves_everything(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(path)
    step = ("DELETE FROM sessions", "ALTER TABLE nowhere ADD COLUMN mood TEXT")
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))
        with pytest.raises(StateError, match="no such table: nowhere"):
            Database(path)
    assert len(Catalog(SessionStore(path)).summaries()) == 1


# Who writes


def test_a_session_has_one_writer(path: Path, store: SessionStore) -> None:
    conversation, _ = chat(store, name="one")
    list(conversation.ask("Why?"))
    other = SessionStore(path)
    with pytest.raises(InUse, match=r'one.* is open in another process.*sessions fork "one"'):
        chat(other, name="one")
    with pytest.raises(InUse):
        Catalog(other).remove(Catalog(other).summaries())
    assert Catalog(other).fork("one") == "one-2"
    conversation.close()
    chat(other, name="one")[0].close()


def test_an_answer_of_a_living_process_is_not_ended_by_others(path: Path, store: SessionStore) -> None:
    conversation, _ = chat(store, "a long answer, in several pieces", name="one")
    events = conversation.ask("Why?")
    while not isinstance(next(events), Text):
        pass
    other = Catalog(SessionStore(path))
    record = other.load(other.last())
    assert record.stored_turns[0].ended is None
    assert record.turns[0].answer == "a long answe"
    other.fork("one", "copy")
    copied = other.load(other.find("copy")).stored_turns[0]
    assert (copied.turn.answer, copied.ended) == ("a long answe", "interrupted")
    list(events)
    assert other.load(other.find("one")).turns[0].answer == "a long answer, in several pieces"


# Names


@pytest.mark.parametrize(
    "name", ["", "-x", " x", "x ", "a/b", "a\x1b[31mb", "a\nb", "x" * 81, "a\u202eb", ".x"]
)
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(UsageError, match="a session cannot be called"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "treasure-island-2026-11-21", "Über die See", "v1.2_3+4", "x" * 80])
def test_what_can_be_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("title", "stem"),
    [
        ("Treasure Island", "treasure-island"),
        ("  \x1b]0;x\x07: --", "0-x"),
        ("…", "chat"),
        ("Ü ber_all", "ü-ber-all"),
        ("w" * 99, "w" * 40),
    ],
)
def test_a_suggested_name(title: str, stem: str) -> None:
    name = suggest_name([book(title)])
    assert name.removesuffix(name[-11:]) == stem
    assert check_name(name) == name
    assert suggest_name([]).startswith("chat-2")


def test_a_free_name() -> None:
    taken = {"a", "a-2", "b-7", "x" * 80}
    assert free_name("c", taken.__contains__) == "c"
    assert free_name("a", taken.__contains__) == "a-3"
    assert free_name("a-2", taken.__contains__) == "a-3"
    assert free_name("b-7", taken.__contains__) == "b-7-2"
    assert check_name(free_name("x" * 80, taken.__contains__)) == "x" * 75 + "-2"


def test_rename(store: SessionStore, catalog: Catalog) -> None:
    write_session(store, "one", ("Why?", "So."))
    write_session(store, "two", ("Why?", "So."))
    with pytest.raises(UsageError, match="a session 'two' exists already"):
        catalog.rename("one", "two")
    with pytest.raises(UsageError, match=r"there is no session 'three'; there are 'two', 'one'$"):
        catalog.rename("three", "four")
    with pytest.raises(UsageError, match=r"there is no session 'tow'; did you mean 'two'\?"):
        catalog.find("tow")
    catalog.rename("one", "three")
    assert [summary.name for summary in catalog.summaries()] == ["two", "three"]


def test_an_error_names_the_last_sessions(store: SessionStore, catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="there is no session yet"):
        catalog.find("one")
    write_session(store, "one", ("Why?", "So."))
    assert catalog.which() == "there is 'one'"
    for number in range(7):
        write_session(store, f"chat-{number}", ("Why?", "So."))
    names = ", ".join(f"'chat-{number}'" for number in (6, 5, 4, 3, 2))
    assert catalog.which() == f"there are {names} and 3 more ('triforce-chat sessions ls' lists them)"


# Documents


def test_the_same_text_is_kept_once_and_goes_with_its_last_session(
    store: SessionStore, catalog: Catalog
) -> None:
    write_session(store, "one", ("Why?", "So."), titles=("A", "B"))
    write_session(store, "two", ("Why?", "So."), titles=("B",))
    assert texts(store) == 2
    catalog.fork("one")
    catalog.remove([catalog.find("one")])
    assert texts(store) == 2
    catalog.remove([catalog.find("one-2")])
    assert texts(store) == 1
    record = catalog.load(catalog.find("two"))
    assert record.documents == [book("B", "B")]
    catalog.remove([catalog.find("two")])
    assert (texts(store), catalog.summaries()) == (0, [])


def test_a_fork_is_a_session_of_its_own(store: SessionStore, catalog: Catalog) -> None:
    write_session(store, "one", ("Why?", "So."), titles=("A",))
    assert catalog.fork("one", "two") == "two"
    with pytest.raises(UsageError, match="a session 'two' exists already"):
        catalog.fork("one", "two")
    write_session(store, "two", ("And?", "Also."))
    one, two = (catalog.load(catalog.find(name)) for name in ("one", "two"))
    assert one.turns == two.turns[:1]
    assert one.documents == two.documents == [book("A", "A")]
    assert len(two.turns) == 2
    catalog.remove([one.summary])
    assert catalog.load(catalog.find("two")).documents == [book("A", "A")]


def test_nothing_of_a_deleted_session_stays_in_the_file(
    path: Path, store: SessionStore, catalog: Catalog
) -> None:
    write_session(store, "one", ("a peculiar question", "a marvellous answer"))
    write_session(store, "two", ("Why?", "So."))
    catalog.remove([catalog.find("one")])
    everything = b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())
    assert b"peculiar" not in everything
    assert b"marvellous" not in everything
    assert b"Why?" in everything


# Searching


def test_search(store: SessionStore, catalog: Catalog) -> None:
    write_session(store, "one", ("Who paid?", "The harbour master."), ("When?", "In 1871, in Värra."))
    write_session(store, "two", ("Who paid for it?", "Nobody."))
    assert {(hit.session, hit.turn) for hit in catalog.search("paid")} == {("one", 1), ("two", 1)}
    assert [(hit.session, hit.turn) for hit in catalog.search("varra")] == [("one", 2)]
    assert [hit.excerpt for hit in catalog.search("HARBOUR paid")] == ["The harbour master."]
    assert [hit.session for hit in catalog.search('"paid for"')] == ["two"]
    assert [hit.session for hit in catalog.search("nob*")] == ["two"]
    assert catalog.search("nob") == []
    catalog.remove([catalog.find("two")])
    assert catalog.search("nobody") == []


@pytest.mark.parametrize("text", ["", "?", '""', "* ^ -"])
def test_a_search_for_nothing(catalog: Catalog, text: str) -> None:
    with pytest.raises(UsageError, match="name a word"):
        catalog.search(text)


@pytest.mark.parametrize(
    "text", ['a"', "NEAR(a b)", "a OR", "question:a", "a*b", '"a', "a AND NOT", "x'", "a\0b"]
)
def test_no_operator_breaks_a_search(store: SessionStore, catalog: Catalog, text: str) -> None:
    write_session(store, "one", ("a question", "an answer"))
    assert len(catalog.search(text)) <= 1


def test_odd_characters_are_kept(store: SessionStore, catalog: Catalog) -> None:
    store.create("x", "system \udce9", MODEL_INFO, [book("T\udce9", "lone \ud800 and \0")])[1].release()
    assert catalog.load(catalog.find("x")).system == "system ?"
    write_session(store, "x", ("caf\udce9 \0?", "nul \0 in it"))
    record = catalog.load(catalog.find("x"))
    assert record.documents[0].pages[0].text == "lone \ud800 and \0"
    assert record.documents[0].title == "T?"
    assert (record.turns[0].question, record.turns[0].answer) == ("caf? \0?", "nul \0 in it")
