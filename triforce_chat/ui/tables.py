"""Small tables, and the course of an answer; words instead of drawings on a plain screen."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.table import Table
from rich.text import Text

from triforce_chat.engine.events import Tally
from triforce_chat.ui import formatting
from triforce_chat.ui.terminal import Screen

LABEL = 10  # columns of the words before the bars


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen) -> None:
    """Rows under headings, which may be empty; on a plain screen a line each: its name, then the values."""
    if screen.detail == "plain":
        for row in rows:
            screen.notes.print(Text(_line(headings, row)), soft_wrap=True)
        return
    named = any(headings)
    table = Table(box=box.SIMPLE_HEAD if named else None, pad_edge=False, show_header=named)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at and named else "left", no_wrap=not at)
    for row in rows:
        table.add_row(*map(Text, row))
    screen.notes.print(table)


def _line(headings: Sequence[str], row: Sequence[str]) -> str:
    values = [f"{heading} {value}".strip() for heading, value in zip(headings[1:], row[1:], strict=True)]
    return f"{row[0]}: {', '.join(values)}"


def course(tally: Tally, screen: Screen) -> list[str]:
    """How many drafted tokens were accepted in each round of the target, and in which the cache was built."""
    accepted, rounds = tally.accepted, len(tally.accepted)
    if not accepted:
        return []
    built = sorted({min(at, rounds - 1) for at in tally.rebuilt_in})
    if screen.detail == "plain":
        told = f"accepted per round: {fmean(accepted):.1f} of {rounds:,} rounds, {min(accepted)} to {max(accepted)}"
        return [told, *([f"cache built in round: {', '.join(str(at + 1) for at in built)}"] if built else [])]
    bars, marks = formatting.sparkline(accepted, built, screen.notes.width - LABEL)
    head = f"accepted in each of {formatting.count(rounds, 'round')}, {min(accepted)} to {max(accepted)}"
    lines = [head, f"{'':<{LABEL}}{bars}"]
    return [*lines, f"{'built':<{LABEL}}{marks}"] if built else lines
