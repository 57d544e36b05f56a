"""Small tables and the chart of an answer's rounds; a plain screen gets words instead of drawings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.table import Table
from rich.text import Text

from triforce_chat.engine.events import Tally
from triforce_chat.ui import formatting
from triforce_chat.ui.terminal import Screen

LABEL_WIDTH = 10  # columns


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen) -> None:
    """Print rows under headings, which may be empty; on a plain screen each row is a line of words."""
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


def round_chart(tally: Tally, screen: Screen) -> list[str]:
    """The accepted tokens of each round of the target, and the rounds in which the cache was built."""
    accepted, rounds = tally.accepted, len(tally.accepted)
    if not accepted:
        return []
    built = sorted({min(at, rounds - 1) for at in tally.rebuilt_in})
    if screen.detail == "plain":
        line = f"accepted per round: {fmean(accepted):.1f} of {rounds:,} rounds, {min(accepted)} to {max(accepted)}"
        return [line, *([f"cache built in round: {', '.join(str(at + 1) for at in built)}"] if built else [])]
    bars, marks = formatting.sparkline(accepted, built, screen.notes.width - LABEL_WIDTH)
    head = f"accepted in each of {formatting.count(rounds, 'round')}, {min(accepted)} to {max(accepted)}"
    lines = [head, f"{'':<{LABEL_WIDTH}}{bars}"]
    return [*lines, f"{'built':<{LABEL_WIDTH}}{marks}"] if built else lines
