"""Cells of the database with anything in them: who reads a session reads the rest of it, or says so in one line."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.chat_process import book, chat
from support.commands import run

from triforce_chat.cli.sessions import details_of, export_of, record_of, table_of
from triforce_chat.errors import StateError, TriforceError
from triforce_chat.settings.options import Options
from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.cells import damage_reported, time_of
from triforce_chat.storage.sessions.session_opener import SessionOpener
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.ui.export import as_markdown
from triforce_chat.ui.formatting import local_time

COLUMNS = {
    "sessions": "name created used system model settings",
    "turns": "session asked model vocabulary question question_ids answer answer_ids ended statistics",
    "pieces": "turn number text ids",
    "texts": "pages",
    "documents": "session turn title source unit remarks hash",
}
CELLS: tuple[object, ...] = (
    *(None, 2**62, 9e999, "x", "[]", "[" * 100_000),
    *('{"levels": 3}', '{"prefill": {"done": "x"}}', '{"sourced": {"sources": 3}}', '{"rebuilds": [3]}'),
    *('{"broken": ["x"], "notices": [3]}', '{"gamma": "x"}'),
    *(b"abc", b"\xff" * 4096),
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with a session of two turns, the second of which is still being answered, and two documents."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = tmp_path / "triforce-chat" / "sessions.db"
    store = SessionStore(path)
    conversation, _ = chat(store, "alpha beta", "gamma" * 100, name="one")
    conversation.add(book("A book", "text of it"))
    list(conversation.ask("Why?"))
    conversation.add(book("Another", "pending"))
    unfinished = conversation.ask("How?")
    for event in unfinished:
        if event.kind == "text":
            break
    store.database.query("PRAGMA wal_checkpoint (TRUNCATE)")
    kept = path.read_bytes()
    unfinished.close()
    conversation.close()
    store.close()
    path.write_bytes(kept)
    return path


def damaged(path: Path, good: bytes, table: str, column: str) -> Iterator[object]:
    """Put one value after another into the first row's cell of an otherwise good database."""
    where = "number = 0" if table == "pieces" else f"rowid = (SELECT rowid FROM {table} LIMIT 1)"
    for cell in CELLS:
        for each in path.parent.glob("sessions.db*"):
            each.unlink()
        path.write_bytes(good)
        connection = sqlite3.connect(path)
        try:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (cell,))
            connection.commit()
        except sqlite3.IntegrityError:
            continue
        finally:
            connection.close()
        yield cell


def read_everything(path: Path) -> None:
    """What the commands that list, show, search and copy sessions do."""
    store = SessionStore(path)
    try:
        catalog = Catalog(store)
        summaries = catalog.summaries()
        table_of(summaries)
        json.dumps([record_of(summary) for summary in summaries])
        for hit in catalog.search("alpha"):
            local_time(hit.asked)
        for summary in summaries:
            record = catalog.load(summary)
            json.dumps(export_of(record))
            details_of(summary)
            as_markdown(record, summary.name)
            catalog.fork(summary.name)
    finally:
        store.close()


def go_on(_path: Path) -> None:
    """What a chat does that continues the last session."""
    with SessionOpener(None, last=True, warn=lambda _: None) as opener:
        _ = opener.options(Options(), []).settings
        assert opener.record is not None
        assert all(isinstance(turn.question, str) for turn in opener.record.turns)


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, names in COLUMNS.items() for column in names.split()]
)
def test_a_damaged_cell_is_replaced_or_told_in_one_line(path: Path, table: str, column: str) -> None:
    good = path.read_bytes()
    for _ in damaged(path, good, table, column):
        for use in (read_everything, go_on):
            with suppress(TriforceError):  # printed as one line
                use(path)
        assert run("sessions", "rm", "--yes", "one").crash is None


def test_what_can_be_replaced_is_read(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "UPDATE turns SET statistics = '[1', asked = 'never', answer = x'ff41' WHERE ended IS NOT NULL"
    )
    connection.execute("UPDATE sessions SET settings = json_set(settings, '$.temperature', 'hot')")
    connection.commit()
    connection.close()
    warnings: list[str] = []
    with SessionOpener(None, last=True, warn=warnings.append) as opener:
        assert opener.record is not None
        first = opener.record.stored_turns[0]
        assert (first.turn.question, first.turn.answer, first.asked) == ("Why?", "\ufffdA", 0.0)
        assert first.turn.tally.token_ids
        assert opener.options(Options(), []).temperature is None
    assert warnings == ["session 'one': damaged settings are ignored: temperature"]


def test_what_cannot_is_one_line_that_says_how_to_go_on() -> None:
    told = pytest.raises(StateError, match=r"session 'x' is damaged.*KeyError.*sessions rm")
    with told, damage_reported("session 'x'"):
        raise KeyError("pages")


def test_times() -> None:
    assert [time_of(cell) for cell in (1.5, 7, -1, 1e300, float("inf"), "x", None)] == [1.5, 7, 0, 0, 0, 0, 0]
