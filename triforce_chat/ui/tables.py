"""Small tables; a plain screen, and one that is too narrow, gets lines of words instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from triforce_chat.ui.terminal import Screen, print_line

UNLIMITED = 10_000  # columns


class WholeWords:
    """A table, or one line per row where a word of it would not fit into its column."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update_width(UNLIMITED), self._table).minimum
        if needed <= options.max_width:
            yield self._table
            return
        headings = [str(column.header) for column in self._table.columns]
        for row in zip(*(column.cells for column in self._table.columns), strict=True):
            yield Text(_line(headings, [str(cell) for cell in row]))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen) -> None:
    """Print rows under headings, which may be empty; on a plain screen each row is a line of words."""
    if screen.detail == "plain":
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
    screen.notes.print(WholeWords(table))


def _is_number_column(rows: Sequence[Sequence[str]], at: int) -> bool:
    return all(row[at][:1].isdigit() or row[at] == "-" for row in rows)


def _line(headings: Sequence[str], row: Sequence[str]) -> str:
    values = [f"{heading} {value}".strip() for heading, value in zip(headings[1:], row[1:], strict=True)]
    return f"{row[0]}: {', '.join(values)}"
