"""A chat that goes on with another model or in another session, and one that is continued."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from support.commands import Outcome, run
from support.consoles import written
from support.tiny_models import mute_special_tokens, save_model

from triforce_chat.cli.chat import begin
from triforce_chat.settings.options import Options
from triforce_chat.storage.sessions.session_opener import Restored
from triforce_chat.ui.terminal import Screen

Chat = Callable[..., Outcome]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    for name, seed in (("tiny", 2), ("other", 3)):
        torch.manual_seed(seed)
        save_model(made / name, max_position_embeddings=4096, initializer_range=0.3)
        mute_special_tokens(made / name)
    (made / "a.txt").write_text("It was night. " * 20)
    return made


@pytest.fixture
def chat(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def start(lines: str, *arguments: str) -> Outcome:
        flags = ("--device", "cpu", "--no-cache", "--max-tokens", "8")
        return run("chat", *arguments, *flags, stdin=lines)

    return start


def test_another_model_takes_documents_and_turns_along(chat: Chat, shelf: Path) -> None:
    done = chat(
        "Why?\n/model other\n/model\n/pages\nWhy not?\n/export out.json\n", "a.txt", "--model", "tiny"
    )
    assert done.code == 0, done.err
    (shelf / "out.json").unlink()
    assert "other" in done.err
    assert "a: 1 section" in done.err
    assert "wrote 2 turns" in done.err
    models = {turn["model"].rpartition("/")[2] for turn in run("sessions", "show", "--json").json["turns"]}
    assert models == {"tiny", "other"}


def test_before_the_first_question_the_documents_move(chat: Chat) -> None:
    done = chat("/model other\n/pages\n", "a.txt", "--model", "tiny")
    assert (done.code, "a: 1 section" in done.err) == (0, True)


def test_a_model_that_is_not_there_changes_nothing(chat: Chat) -> None:
    done = chat("/model nowhere-7b\n/model\nWhy?\n", "--model", "tiny")
    assert done.code == 5
    assert "nowhere-7b" in done.err
    assert "\ntiny\n" in f"\n{done.err}"
    assert done.out.strip()


def test_a_model_that_cannot_be_loaded_leaves_the_chat_as_it_was(chat: Chat, shelf: Path) -> None:
    (shelf / "broken").mkdir(exist_ok=True)
    (shelf / "broken" / "config.json").write_text("{}")
    done = chat("Why?\n/model broken\n/tokens\n/pages\nWhy not?\n", "a.txt", "--model", "tiny")
    assert "a: 1 section" in done.err
    assert len(run("sessions", "show", "--json").json["turns"]) == 2


def test_another_session_and_back(chat: Chat) -> None:
    lines = "Why?\n/session second\n/pages\nWho?\n/session first\n/pages\nWhen?\n"
    done = chat(lines, "a.txt", "--model", "tiny", "--session", "first")
    assert done.code == 2  # the second session has no document
    assert "no document yet" in done.err
    assert "a: 1 section" in done.err
    found = {each["name"]: each["turns"] for each in run("sessions", "ls", "--json").json["sessions"]}
    assert found == {"first": 2, "second": 1}


def test_what_a_session_is_called_already(chat: Chat) -> None:
    done = chat("Why?\n/session first\n/session <bad>\n", "--model", "tiny", "--session", "first")
    assert "this chat is already the session first" in done.err
    assert "cannot be called" in done.err


def test_a_role_from_a_file(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "role.md").write_text("Answer in verse.")
    assert "Answer in verse." in chat("/system\n", "--model", "tiny", "--role", str(tmp_path / "role.md")).err
    refused = chat("", "--model", "tiny", "--role", "cook")
    refused.is_refusal(2, "no role and no file 'cook'")


def test_a_search_without_hits_says_so(chat: Chat) -> None:
    chat("Why?\n", "--model", "tiny")
    found = run("sessions", "search", "zzyzx")
    assert (found.code, found.out) == (0, "")
    assert "contains all of these words" in found.err


def test_a_file_is_no_question(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf)
    (shelf / "b.txt").write_text("Another one.")
    run("ask", "a.txt", "b.txt").is_refusal(2, 'triforce-chat ask a.txt b.txt "QUESTION"')


@pytest.mark.parametrize(
    ("begun", "restored", "told"),
    [
        ("lighthous", None, "lighthous is a new session; /sessions lists the others\n"),
        (None, None, ""),
        (None, Restored("lighthouse", 2, 0.0, (), False, None), "session lighthouse: 2 turns, last used "),
    ],
)
def test_whoever_mistypes_the_name_of_a_session_is_told_that_a_new_one_begins(
    begun: str | None, restored: Restored | None, told: str
) -> None:
    session: Any = SimpleNamespace(turns=[])
    opener: Any = SimpleNamespace(
        begun=begun, conversation=lambda given: given, restore=lambda _: restored, has=lambda _: False
    )
    err = Console(file=io.StringIO(), width=100)
    begin(opener, session, [], Options(), Screen(Console(file=io.StringIO()), err, "plain"))
    said = written(err)
    assert said.startswith(told)
    assert bool(said) == bool(told)
