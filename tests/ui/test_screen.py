"""What is on a terminal's screen while and after a chat is resized, suspended and ended."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.emulated_screen import SeenTerminal, shell
from support.places import SUPPORT
from support.pseudo_terminal import ENTER

from triforce_chat.ui.repl import HINT

CTRL_Z = "\x1a"
DEMO = SUPPORT / "ui_demo.py"
HELD_AT = "names the harbour."
SENTENCES = (
    "What the book says",
    "The captain never names the harbour.",
    "once in the first chapter and once",
    "each time the mate writes it down in the log.",
    "The first chapter has the ship.",
    "The second has the storm, which goes on for many a page and breaks two of the three masts.",
    "return book[-1]",
    "The end.",
)


@pytest.fixture
def opened() -> Iterator[Callable[..., SeenTerminal]]:
    terminals: list[SeenTerminal] = []

    def remember(terminal: SeenTerminal) -> SeenTerminal:
        terminals.append(terminal)
        return terminal

    yield remember
    for terminal in terminals:
        terminal.kill()


def test_an_answer_survives_a_narrower_and_a_wider_window(
    opened: Callable[..., SeenTerminal], tmp_path: Path
) -> None:
    held = {"HELD_AT": "The first chapter has the ship.", "GO_ON": str(tmp_path / "go-on")}
    person = opened(SeenTerminal(DEMO, 0.03, environ=held))
    person.see("/help shows the commands")
    person.send(f"Why?{ENTER}")
    person.see("never names the harbour")
    person.change_size(50, 40)
    person.see_row("The captain never names the harbour. He says it")
    person.see("The first chapter has the ship.")
    at_fifty = [*person.rows]
    person.change_size(120, 40)
    (tmp_path / "go-on").touch()
    person.see("172 tokens")
    person.see(*SENTENCES)
    assert "The captain never names the harbour. He says it" in at_fifty
    assert all(len(row) <= 50 for row in at_fifty)
    for sentence in SENTENCES:
        assert " ".join(person.rows).count(sentence) == 1
    assert "> Why?" in person.scrollback
    person.see_cursor()


def test_an_answer_is_drawn_again_after_fg(opened: Callable[..., SeenTerminal], tmp_path: Path) -> None:
    person = opened(shell(SUPPORT.parent, HELD_AT=HELD_AT, GO_ON=str(tmp_path / "go-on")))
    person.see("shell>")
    person.send(f"{sys.executable} {DEMO} 0.03{ENTER}")
    person.see("/help shows the commands")
    person.send(f"Why?{ENTER}")
    person.see("never names the harbour")
    person.send(CTRL_Z)
    person.see("Stopped")
    person.see_cursor()
    assert not any("╭" in row for row in person.rows)
    person.send(f"echo typ''ed{ENTER}")
    person.see("typed")
    (tmp_path / "go-on").touch()
    person.send(f"fg{ENTER}")
    person.see("172 tokens", *SENTENCES)
    for sentence in SENTENCES:
        assert " ".join(person.rows).count(sentence) == 1
    person.see_cursor()


def test_ctrl_z_at_the_prompt_suspends(opened: Callable[..., SeenTerminal]) -> None:
    person = opened(shell(SUPPORT.parent))
    person.see("shell>")
    person.send(f"{sys.executable} {DEMO} 0{ENTER}")
    person.see("Ctrl-D exits >")
    person.send(CTRL_Z)
    person.see("Stopped")
    person.send(f"fg{ENTER}")
    person.see("ui_demo.py 0 >")
    person.send(f"Why?{ENTER}")
    person.see("The end.")


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_every_signal_leaves_a_usable_terminal(
    opened: Callable[..., SeenTerminal], number: signal.Signals, busy: bool, tmp_path: Path
) -> None:
    person = opened(shell(SUPPORT.parent, HELD_AT=HELD_AT, GO_ON=str(tmp_path / "never")))
    person.see("shell>")
    person.send(f"{sys.executable} {DEMO} 0.03; echo code $?; stty -a{ENTER}")
    person.see("Ctrl-D exits >")
    if busy:
        person.send(f"Why?{ENTER}")
        person.see("never names the harbour")
    person.signal_job(number)
    if number == signal.SIGINT:  # which ends no chat
        person.see("stopped after" if busy else HINT)
        person.send(f"/exit{ENTER}")
    person.see(f"code {0 if number == signal.SIGINT else 128 + number}")
    person.see(" echo ", " icanon ")
    person.see_cursor()
    if busy:
        person.see("The captain never names the harbour.")
