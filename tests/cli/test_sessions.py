"""Sessions as a user meets them: chats that go on, and the commands that list, copy, export and delete them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Outcome, run
from support.tiny_models import SPECIAL, VOCABULARY, mute_special_tokens, save_model, save_tokenizer

from triforce_chat.storage.sessions.database import Database
from triforce_chat.storage.sessions.store import SessionStore

NOISE = "\x1b]0;owned\x07\x1b[31mred\x1b[0m"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(2)
    for name in ("tiny", "twin", "foreign"):
        save_model(made / name, max_position_embeddings=4096, initializer_range=0.3)
        mute_special_tokens(made / name)
    save_tokenizer(made / "foreign", [*SPECIAL, *reversed(VOCABULARY[len(SPECIAL) :])])
    (made / "a.txt").write_text("the first text " * 20)
    (made / "b.txt").write_text("the second text " * 20)
    return made


Chat = Callable[..., Outcome]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "triforce-chat" / "sessions.db"


@pytest.fixture
def chat(shelf: Path, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Chat:
    """``triforce-chat chat ...`` with these lines on standard input."""
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent.parent))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def called(*arguments: object, lines: str = "Why?\n") -> Outcome:
        again = {"-c", "--model"} & set(arguments)
        named = [] if again else ["--model", "tiny"]
        short = [] if "-c" in arguments else ["--max-tokens", "8"]
        return run("chat", *named, *short, "--device", "cpu", *arguments, stdin=lines)

    return called


def exported(*name: str) -> dict[str, Any]:
    return run("sessions", "export", *name, "--format", "json").json


def said(record: dict[str, Any]) -> list[str]:
    return [turn["question"] for turn in record["turns"]]


def prompt_tokens(record: dict[str, Any]) -> list[int]:
    """Of every turn; 0 where they were not told."""
    return [turn["usage"]["prompt_tokens"] for turn in record["turns"]]


def names() -> list[str]:
    return [each["name"] for each in run("sessions", "ls", "--json").json["sessions"]]


def test_a_chat_goes_on_as_if_it_had_never_stopped(chat: Chat) -> None:
    whole = chat("a.txt", "--session", "whole", lines="Why?\nHow?\nAnd?\n")
    first = chat("a.txt", "--session", "parts")
    second = chat("-c", lines="How?\n")
    third = chat("-c", "--session", "parts", lines="And?\n")
    third.is_refusal(2, "omit it to name one with --session")
    third = chat("--session", "parts", lines="And?\n")
    assert whole.out == first.out + second.out + third.out
    expected, parts = exported("whole"), exported("parts")
    assert [turn["token_ids"] for turn in parts["turns"]] == [turn["token_ids"] for turn in expected["turns"]]
    assert prompt_tokens(parts) == prompt_tokens(expected)
    assert prompt_tokens(parts)[0] > 250
    assert names() == ["parts", "whole"]


def test_what_was_read_is_not_read_again(chat: Chat) -> None:
    chat("a.txt")
    chat("-c", lines="How?\n")
    assert exported()["turns"][-1]["usage"]["cached_tokens"] > 250


def test_a_file_that_is_gone_is_still_read(chat: Chat, shelf: Path) -> None:
    (shelf / "gone.txt").write_text("soon gone " * 30)
    chat("gone.txt")
    (shelf / "gone.txt").unlink()
    chat("-c", "b.txt", lines="How?\n/pages\n")
    record = exported()
    assert [document["title"] for document in record["documents"]] == ["gone", "b"]
    assert prompt_tokens(record)[1] > prompt_tokens(record)[0] + 250


def test_a_document_that_is_there_already_is_not_added_twice(chat: Chat) -> None:
    chat("a.txt")
    assert chat("-c", "a.txt", lines="How?\n").code == 0
    assert len(exported()["documents"]) == 1


def test_settings_and_system_text_go_on_unless_others_are_given(chat: Chat) -> None:
    chat("--system", "Be brief.", "--temperature", 0.5, "--seed", 3, lines="Why?\n/set top-k 5\n")
    assert chat("-c", "--temperature", 0, lines="How?\n/system\n").err.count("Be brief.") == 1
    record = exported()
    kept = {name: record["settings"][name] for name in ("temperature", "seed", "top_k", "max_tokens")}
    assert kept == {"temperature": 0.0, "seed": 3, "top_k": 5, "max_tokens": 8}
    assert record["system"] == "Be brief."


def test_a_new_chat_has_a_name_of_its_own(chat: Chat) -> None:
    day = time.strftime("%Y-%m-%d")
    chat("a.txt")
    chat("a.txt", lines="Why?\n/clear\nHow?\n/sessions\n")
    chat(lines="Why?\n")
    assert names() == [f"chat-{day}", f"a-{day}-3", f"a-{day}-2", f"a-{day}"]
    assert [said(exported(name)) for name in (f"a-{day}-2", f"a-{day}-3")] == [["Why?"], ["How?"]]


def test_the_chat_lists_the_sessions(chat: Chat) -> None:
    chat("a.txt", "--session", "one")
    done = chat("b.txt", "--session", "two", lines="/sessions\nWhy?\n/sessions\n")
    before, after = done.err.split("this chat is saved as a session once you ask something")
    assert "one" in before
    assert "two *" not in before
    assert "two *" in after
    assert "one *" not in after


def test_another_model_of_the_same_tokens(chat: Chat) -> None:
    chat("a.txt", "--session", "one")
    done = chat("--session", "one", "--model", "twin", lines="How?\n")
    note, *cut = done.err.splitlines()
    assert "tiny; the vocabulary is the same, so its tokens are valid" in note
    assert cut == ["stopped at the limit of 8 tokens", "--max-tokens allows longer answers"]
    tokens = [turn["token_ids"] for turn in exported("one")["turns"]]
    assert chat("--session", "one", "--model", "twin", lines="And?\n").code == 0
    assert [turn["token_ids"] for turn in exported("one")["turns"]][:2] == tokens
    assert [Path(turn["model"]).name for turn in exported("one")["turns"]] == ["tiny", "twin", "twin"]


def test_another_model_of_other_tokens(chat: Chat) -> None:
    chat("a.txt", "--session", "one")
    first = exported("one")["turns"][0]
    done = chat("--session", "one", "--model", "foreign", lines="How?\n/save out.md\n")
    assert "its texts were tokenized again" in done.err
    record = exported("one")
    assert record["turns"][0] == first  # what was kept stays as it was
    assert prompt_tokens(record)[1] > prompt_tokens(record)[0] + 8
    assert Path("out.md").read_text().count(first["text"].strip()) == 1
    Path("out.md").unlink()


def test_a_context_that_is_too_short_for_the_session(chat: Chat) -> None:
    chat("a.txt", "--session", "one")
    chat("-c", "--context", 200, lines="How?\n").is_refusal(4, "tokens, but the context has room for 200")


def test_nothing_to_continue(chat: Chat) -> None:
    chat("-c").is_refusal(2, "there is no session yet")


def test_a_name_that_cannot_be_one(chat: Chat) -> None:
    chat("--session", "a/\x1b[31mb").is_refusal(2, "a session cannot be called 'a/b'")


def test_a_session_that_another_process_has(chat: Chat, state: Path) -> None:
    chat("a.txt", "--session", "one")
    store = SessionStore(state)
    lease = store.lease(1, "one")
    chat("-c").is_refusal(2, "session 'one' is open in another process")
    run("sessions", "rm", "one", "-y").is_refusal(2, "session 'one' is open in another process")
    assert run("sessions", "fork", "one").out == "one-2\n"
    assert chat("-c", lines="How?\n").code == 0
    lease.release()
    store.close()
    assert said(exported("one-2")) == ["Why?", "How?"]
    assert said(exported("one")) == ["Why?"]


def test_where_nothing_can_be_kept(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    done = chat(lines="Why?\n/sessions\n")
    assert done.out
    assert done.err.startswith("this chat is not saved: /dev/null/state/triforce-chat/sessions.db: Not a dir")
    assert "error: this chat is not saved" in done.err
    assert chat("--quiet").err == ""
    chat("-c").is_refusal(1, "Not a directory")
    run("sessions", "ls").is_refusal(1, "Not a directory")


def test_a_chat_on_a_full_disk_goes_on_unsaved(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(_self: Database) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(Database, "_prepare", prepare)
    done = chat()
    assert (done.code, bool(done.out)) == (0, True)
    assert done.err.startswith("this chat is not saved: ")
    assert "database or disk is full" in done.err
    chat("-c").is_refusal(1, "database or disk is full")


@pytest.mark.usefixtures("chat")
@pytest.mark.parametrize(
    "arguments", [["chat", "--device", "cpu"], ["sessions", "ls"], ["sessions", "rm", "x"]]
)
def test_a_damaged_file(state: Path, arguments: list[str]) -> None:
    state.parent.mkdir()
    state.write_bytes(b"junk" * 5000)
    run(*arguments, stdin="Why?\n").is_refusal(1, f"{state} is damaged")
    assert state.read_bytes() == b"junk" * 5000


def test_show_and_export(chat: Chat) -> None:
    system = f"{60 * 'Be brief, '}please."  # longer than the lines of any terminal
    chat("a.txt", "--session", "one", "--system", system)
    markdown = run("sessions", "export").out
    assert markdown.startswith(f"# one\n\n- a: 1 section\n\nSystem: {system}\n\n> Why?\n\n")
    shown = run("sessions", "show", "one").out
    assert markdown in shown
    assert run("sessions", "show", "one", "--json").json == exported("one")
    for command in ("show", "export", "fork"):
        run("sessions", command, "two").is_refusal(2, "there is no session 'two'; there is 'one'")
    record = exported()
    assert (record["schema"], record["name"], record["turns"][0]["finish_reason"]) == (1, "one", "length")
    assert record["documents"][0]["sha256"] == record["turns"][0]["documents"][0]
    assert len(record["turns"][0]["token_ids"]) == 8


def test_rename_and_remove(chat: Chat) -> None:
    assert run("sessions", "ls").err == "there is no session yet: 'triforce-chat chat' begins one\n"
    chat("a.txt", "--session", "one")
    run("sessions", "rm").is_refusal(2, "name the sessions to delete; there is 'one'")
    assert run("sessions", "rename", "one", "two").code == 0
    run("sessions", "rename", "one", "three").is_refusal(2, "there is no session 'one'")
    refused = run("sessions", "rm", "two", stdin="n\n")
    assert (refused.code, "nothing deleted" in refused.err) == (2, True)
    assert run("sessions", "rm", "two", "-y").code == 0
    assert names() == []


def test_search(chat: Chat) -> None:
    chat("--session", "one", lines="Who paid for the lighthouse?\nWhy?\n")
    hits = run("sessions", "search", "lighthouse", "paid", "--json").json["hits"]
    assert [(hit["session"], hit["turn"]) for hit in hits] == [("one", 1)]
    assert run("sessions", "search", "paid for").out.startswith("one, turn 1, ")
    assert run("sessions", "search", "harbour").out == ""
    run("sessions", "search", "?").is_refusal(2, "name a word")


def test_no_escape_sequence_reaches_the_terminal(chat: Chat, state: Path) -> None:
    chat("a.txt", "--session", "one", lines=f"Why {NOISE}?\n")
    store = SessionStore(state)
    store.database.query("UPDATE documents SET title = ?", f"title {NOISE} [bold]")
    store.database.query("UPDATE sessions SET name = ?, model = ?", f"name {NOISE}", f"model {NOISE} [bold]")
    store.database.query("UPDATE turns SET answer = ?", f"answer {NOISE}")
    store.close()
    name = f"name {NOISE}"
    outcomes = [
        run("sessions", *arguments)
        for arguments in (["ls"], ["show"], ["show", name], ["export"], ["search", "why"], ["fork", name])
    ]
    outcomes += [run("sessions", "show", f"{NOISE}x"), chat("--session", "two", lines="/sessions\n")]
    outcomes.append(chat("-c", "--model", "tiny", lines="/pages\n/sessions\n"))
    for outcome in outcomes:
        assert outcome.crash is None
        assert "\x1b" not in outcome.out + outcome.err
    assert "title red [bold]" in outcomes[0].out
    assert "red" in outcomes[4].out


def test_a_real_chat_that_is_killed(shelf: Path, chat: Chat) -> None:
    text = killed(shelf)
    turn = exported()["turns"][0]
    assert turn["text"].startswith(text)
    assert turn["finish_reason"] == "interrupted"
    assert chat("-c", "--max-tokens", 8, lines="How?\n").code == 0
    assert said(exported()) == ["Why?", "How?"]
    assert prompt_tokens(exported())[1] > len(turn["token_ids"])


def killed(shelf: Path) -> str:
    """What a real process shows before it is killed in the middle of an answer."""
    command = [sys.executable, "-m", "triforce_chat", "chat", "--model", "tiny", "--device", "cpu"]
    with subprocess.Popen(
        [*command, "--max-tokens", "3000", "--no-cache"],
        cwd=shelf,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Why?\n")
        process.stdin.flush()
        first = process.stdout.read(40)
        process.kill()
        return (first + process.stdout.read()).decode()
