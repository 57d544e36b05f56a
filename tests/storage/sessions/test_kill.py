"""Everything that was shown is stored: chats are killed at random moments, repeatedly, in one database."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat_process import chat
from support.places import SUPPORT

from triforce_chat.storage.sessions.catalog import Catalog
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.storage.sessions.values import SessionRecord

KILLS = 20
MOST = 3000  # bytes shown before a kill


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SUPPORT / "chat_process.py"), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def killed(starter: subprocess.Popen[str], shown: Path, number: int, after: int) -> None:
    """Start chat ``number`` and kill it once it has shown so many bytes."""
    assert starter.stdin is not None
    assert starter.stdout is not None
    starter.stdin.write(f"{number}\n")
    starter.stdin.flush()
    process = int(starter.stdout.readline())
    deadline = time.monotonic() + 60
    while not shown.exists() or shown.stat().st_size < after:
        assert time.monotonic() < deadline
    os.kill(process, signal.SIGKILL)


def expect(record: SessionRecord, shown: Path) -> None:
    """Every token that was shown is there, and at most one that was not."""
    said: dict[str, list[str]] = {}
    for line in shown.read_text().splitlines():
        question, _, token = line.rpartition(":")
        said.setdefault(question, []).append(token)
    stored = {each.turn.question: each for each in record.stored_turns}
    for question, tokens in said.items():
        kept = stored[question]
        ids = [token for token in tokens if token != "done"]
        assert [*map(str, kept.turn.tally.token_ids)][: len(ids)] == ids
        assert len(kept.turn.tally.token_ids) <= len(ids) + (tokens[-1] != "done")
        assert kept.turn.answer == "".join(f" {token}" for token in kept.turn.tally.token_ids)
        assert kept.ended in (("stop",) if tokens[-1] == "done" else ("stop", "interrupted"))


def is_consistent(store: SessionStore) -> bool:
    rows = store.database.query
    rows(
        "INSERT INTO words (words, rank) VALUES ('integrity-check', 1)"
    )  # raises if it differs from the turns
    return [row[0] for row in rows("PRAGMA integrity_check")] == ["ok"] and not rows(
        "PRAGMA foreign_key_check"
    )


def test_kill_at_any_moment(starter: subprocess.Popen[str], tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(KILLS):
        shown = tmp_path / f"shown-{number}"
        killed(starter, shown, number, after=chance.choice([0, 1, chance.randrange(MOST)]))
        starter_has_seen_it_die(tmp_path)
        store = SessionStore(tmp_path / "sessions.db")
        assert is_consistent(store)
        if store.has_name("work"):
            record = Catalog(store).load(Catalog(store).find("work"))
            expect(record, shown)
            assert len({each.turn.question for each in record.stored_turns}) == len(record.stored_turns)
        store.close()
    store = SessionStore(tmp_path / "sessions.db")
    conversation, _ = chat(store, "It goes on.", name="work")
    list(conversation.ask("And then?"))
    record = Catalog(store).load(Catalog(store).last())
    assert record.turns[-1].answer == "It goes on."
    assert len(record.turns) > KILLS
    assert not store.database.query("SELECT 1 FROM pieces")
    conversation.close()
    store.close()


def starter_has_seen_it_die(folder: Path) -> None:
    """The lock is free once the process is gone."""
    store = SessionStore(folder / "sessions.db")
    if store.has_name("work"):
        summary = Catalog(store).find("work")
        store.lease(summary.id, "work", timeout=60.0).release()
    store.close()
