"""Between 50 and 220 columns no word of a footer, a table or an error is broken."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from support.consoles import written
from support.fakes import LIMIT, answer_events, tally_of

from triforce_chat.chat.events import Citation, Comparison, LookedUp, Place, Source, Sourced
from triforce_chat.cli.sessions import table_of
from triforce_chat.storage.sessions.values import SessionSummary
from triforce_chat.ui.answer import show_answer
from triforce_chat.ui.compare import Columns, summary
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.panel_help import EXPLAINED
from triforce_chat.ui.statistics import show_statistics
from triforce_chat.ui.tables import WholeWords, show_table
from triforce_chat.ui.terminal import Screen

WIDTHS = (50, 51, 64, 80, 109, 120, 160, 220)
EVENTS = answer_events("So it was. " * 20)


class TerminalFile(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(width: int) -> Screen:
    console = Console(file=TerminalFile(), width=width, height=40, force_terminal=True, color_system=None)
    return Screen(console, console, "live")


def words(text: str) -> list[str]:
    return text.replace("─", " ").replace("━", " ").split()


def whole(shown: str, width: int, source: str) -> None:
    """All words that are shown are words of the source, on lines that fit."""
    assert max(map(len, shown.splitlines())) <= width
    known = set(words(source))
    assert [word for word in words(shown) if word not in known] == []


def unlimited(show: Callable[[Screen], object]) -> str:
    on = screen(5_000)
    show(on)
    return written(on.out)


@pytest.mark.parametrize("width", WIDTHS)
def test_statistics_and_help(width: int) -> None:
    def show(on: Screen) -> None:
        show_statistics(tally_of(EVENTS), on)
        show_table(("figure", "meaning"), EXPLAINED, on)

    on = screen(width)
    show(on)
    lines = "level: accepted proposed tested rounds acceptance retrieval: target: , 75 80 %, 45, 55, 15, 11,"
    numbers = " ".join(f"{number}," for number in range(200))
    labels = " ".join(f"{label}: {label}," for label, _ in EXPLAINED)
    shown = "".join(line for line in written(on.out).splitlines(True) if "▁" not in line and "█" not in line)
    whole(shown, width, unlimited(show) + f"{lines} {numbers} {labels} meaning")


@pytest.mark.parametrize("width", WIDTHS)
def test_footers(width: int) -> None:
    isle = Place("treasure-island-and-more", "page", 12)
    sourced = Sourced(
        (Source("treasure-island-and-more", "page", 12, 0.9, "It was."),),
        (Citation("page", 3, 3, "a quotation that is long enough to be wrapped", False, (isle,)),),
        0.1,
        quotes=(LookedUp("and another quotation, that stands nowhere at all", ()),),
    )
    on = screen(width)
    show_answer(iter([*EVENTS, sourced]), on, limit=LIMIT)
    left = written(on.out).rpartition("\x1b[2K")[2]
    shown = left[left.index("tokens ·") - 20 :].splitlines()
    footer = [line for line in shown if "tokens ·" in line]
    assert len(footer) == 1
    known = set(words(unlimited(lambda wide: show_answer(iter([*EVENTS, sourced]), wide, limit=LIMIT))))
    below = "\n".join(shown[shown.index(footer[0]) :])
    assert [word for word in words(below) if word not in known] == []
    assert all(len(line) <= width for line in below.splitlines())


@pytest.mark.parametrize("width", WIDTHS)
def test_sessions(width: int) -> None:
    titles = ("treasure-island", "a second book")
    summary = SessionSummary(1, "treasure-island-2026-11-22", "qwen2.5-coder-1.5b", 0.0, 0.0, 12, titles)
    on = screen(width)
    on.out.print(WholeWords(table_of([summary])))
    source = unlimited(lambda wide: wide.out.print(WholeWords(table_of([summary]))))
    line = "treasure-island-2026-11-22: 12, book, qwen2.5-coder-1.5b, treasure-island, documents model used turns"
    whole(written(on.out), width, f"{source} {line}")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_panel(width: int) -> None:
    panel, wide = EnginePanel("triforce", LIMIT, lambda: 0.0), EnginePanel("triforce", LIMIT, lambda: 0.0)
    for event in EVENTS[:-1]:
        panel.add(event)
        wide.add(event)
    narrow, broad = screen(width), screen(220)
    narrow.out.print(panel)
    broad.out.print(wide)
    shown, source = written(narrow.out), written(broad.out)
    assert "…" not in shown
    bars = " ".join(re.findall("[▁▂▃▄▅▆▇█]+", shown))
    whole(shown, width, f"{source} accepted cache (31 %) per round {bars}")


@pytest.mark.parametrize("width", WIDTHS)
def test_comparisons(width: int) -> None:
    def show(on: Screen) -> None:
        columns = Columns(LIMIT)
        for event in EVENTS:
            columns.add("speculative", event)
            columns.add("autoregressive", event)
        on.out.print(columns)
        on.out.print(summary(Comparison(tally_of(EVENTS), tally_of(EVENTS), identical=True, ties=2)))

    on = screen(width)
    show(on)
    whole(re.sub("[╭╮╰╯├┤┬┴┼│]", " ", written(on.out)), width, unlimited(show))


@pytest.mark.parametrize("width", [50, 80])
def test_errors_of_commands(width: int, tmp_path: Path) -> None:
    keyboard, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, width))
    command = [sys.executable, "-m", "triforce_chat", "ask", str(tmp_path / "no-such-file.txt"), "Why?"]
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run(command, stderr=terminal, stdout=subprocess.PIPE, env=environ, check=False)
    os.close(terminal)
    shown = os.read(keyboard, 4096).decode().replace("\r\n", "\n")
    os.close(keyboard)
    piped = subprocess.run(command, capture_output=True, text=True, env=environ, check=False).stderr
    assert done.returncode == 3
    assert shown.split() == piped.split()
    assert piped.count("\n") == 1
    assert all(len(line) <= width or " " not in line for line in shown.splitlines())
