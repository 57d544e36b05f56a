"""Long pastes, vi's keys, values of settings, notifications and the first start, as a user meets them."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document as Line
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console
from support.consoles import written
from support.fakes import ScriptedConversation

from triforce_chat.documents import Document
from triforce_chat.ui import repl as repl_module
from triforce_chat.ui.notify import notify
from triforce_chat.ui.paste import MOST_CHARACTERS, MOST_LINES, Pastes
from triforce_chat.ui.prompt import SlashCompleter
from triforce_chat.ui.repl import FIRST_HINTS, Labels, Preferences, Repl
from triforce_chat.ui.terminal import Screen

CTRL_D, PASTE = "\x04", "\x1b[200~{}\x1b[201~"
LONG = "\n".join(f"line {number}" for number in range(MOST_LINES + 1))


class TerminalFile(io.StringIO):
    def isatty(self) -> bool:
        return True


def chatting(
    keys: str, history: Path | None = None, preferences: Preferences | None = None
) -> tuple[Repl, list[str], str]:
    """A chat with these keys: itself, its questions, and what it wrote."""
    conversation = ScriptedConversation()
    out = Console(file=TerminalFile(), width=100)
    labels = Labels("model", "stack")

    def read(path: str, _pages: str | None) -> Document:
        return Document(path, path, ())

    repl = Repl(
        conversation, read, Screen(out, out, "plain"), lambda: labels, history, preferences=preferences
    )
    with create_pipe_input() as keyboard:
        keyboard.send_text(keys + CTRL_D)
        repl.run(keyboard, DummyOutput())
    return repl, conversation.questions, written(out)


def test_a_long_line_is_folded() -> None:
    pastes, text = Pastes(), "word " * 20_000
    mark = pastes.fold(text)
    assert mark == "[paste 1: 100,000 characters]"
    assert pastes.unfold(f"What is {mark}?") == f"What is {text}?"


def test_a_long_paste_is_folded() -> None:
    pastes = Pastes()
    short = "\n".join("x" * MOST_LINES)
    assert pastes.fold(short) == short
    assert pastes.fold("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
    mark = pastes.fold(LONG.replace("\n", "\r\n"))
    assert mark == f"[paste 1: {MOST_LINES + 1} lines]"
    assert pastes.unfold(f"Look: {mark}!") == f"Look: {LONG}!"
    assert pastes.unfold("[paste 9: 7 lines]") == "[paste 9: 7 lines]"


def test_a_folded_paste_is_sent_and_remembered_whole(tmp_path: Path) -> None:
    history = tmp_path / "history"
    _, questions, _ = chatting(f"Look: {PASTE.format(LONG)}!\r", history)
    assert questions == [f"Look: {LONG}!"]
    assert "line 0" in history.read_text()
    assert "[paste" not in history.read_text()


def test_a_history_on_a_full_disk_stops_no_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_history: FileHistory, _string: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileHistory, "store_string", full)
    assert chatting("one\rtwo\r", tmp_path / "history")[1] == ["one", "two"]


def test_vi_keys() -> None:
    assert chatting("wrong\x1bddiright\r", preferences=Preferences(vi=True))[1] == ["right"]


def test_values_of_a_setting_complete() -> None:
    commands = chatting("")[0]._commands
    complete = SlashCompleter(commands).get_completions

    def offered(typed: str) -> list[str]:
        found = complete(Line(typed), CompleteEvent(completion_requested=True))
        return [typed[: len(typed) + one.start_position] + one.text for one in found]

    assert "/set stack triforce" in offered("/set stack ")
    assert offered("/set stack str") == ["/set stack streaming"]
    assert offered("/set temperature ") == []
    assert "/help panel" in offered("/help ")


def test_the_first_chat_gets_three_lines(tmp_path: Path) -> None:
    history = tmp_path / "history"
    first, second = chatting("", history)[2], chatting("", history)[2]
    assert all(line in first for line in FIRST_HINTS)
    assert len(FIRST_HINTS) == 3
    assert not any(line in second for line in FIRST_HINTS)


@pytest.mark.parametrize(
    ("how", "codes"),
    [
        ("off", ""),
        ("bell", "\a"),
        ("osc9", "\x1b]9;answered, at last\a"),
        ("osc777", "\x1b]777;notify;triforce-chat;answered, at last\a"),
    ],
)
def test_notifications(how: str, codes: str) -> None:
    out = Console(file=TerminalFile())
    notify(how, "answered;\x1b[2J at last", Screen(out, out, "live"))
    assert written(out) == codes
    pipe = Console(file=io.StringIO())
    notify(how, "answered", Screen(pipe, pipe, "bare"))
    assert written(pipe) == ""


def test_only_what_took_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\a" not in chatting("q\r", preferences=Preferences(notify="bell"))[2]
    monkeypatch.setattr(repl_module, "LONG", 0.0)
    assert chatting("q\r", preferences=Preferences(notify="bell"))[2].count("\a") == 1
