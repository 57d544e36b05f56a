"""Small tables; a plain screen gets lines of words instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from triforce_chat.ui.terminal import Screen, print_line

GAP = 2  # columns between two columns


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen) -> None:
    """Print rows under headings, which may be empty.

    On a plain screen, and where a word would not fit into its column, each row is a line of words.
    """
    if screen.detail == "plain" or _narrowest(headings, rows) > screen.notes.width:
        for row in rows:
            print_line(screen.notes, Text(_line(headings, row)))
        return
    named = any(headings)
    table = Table(box=box.SIMPLE_HEAD if named else None, pad_edge=False, show_header=named)
    for at, heading in enumerate(headings):
        to_the_right = at and named and _is_number_column(rows, at)
        table.add_column(heading, justify="right" if to_the_right else "left", no_wrap=not at)
    for row in rows:
        table.add_row(*map(Text, row))
    screen.notes.print(table)


def _is_number_column(rows: Sequence[Sequence[str]], at: int) -> bool:
    return all(row[at][:1].isdigit() or row[at] == "-" for row in rows)


def _narrowest(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns that the table needs if no word of it is to be broken; the first column is never wrapped."""
    first, *others = zip(headings, *rows, strict=True)
    words = [
        max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in others
    ]
    return max(map(cell_len, first)) + sum(words) + GAP * len(others)


def _line(headings: Sequence[str], row: Sequence[str]) -> str:
    values = [f"{heading} {value}".strip() for heading, value in zip(headings[1:], row[1:], strict=True)]
    return f"{row[0]}: {', '.join(values)}"
