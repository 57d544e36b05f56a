"""Small tables; a plain screen gets lines of words instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from triforce_chat.ui.terminal import Screen


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
