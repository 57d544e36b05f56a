"""Showing a comparison: one question answered with and without speculation, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import zip_longest

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from triforce_chat.chat.events import ChatEvent, Comparison, Side, Tally
from triforce_chat.ui import formatting
from triforce_chat.ui.answer import VIEWS, View, until_interrupted
from triforce_chat.ui.clean import clean
from triforce_chat.ui.keyboard import keys_hidden
from triforce_chat.ui.markdown import RenderedMarkdown
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.stream import Frame, Region
from triforce_chat.ui.terminal import Interrupt, Screen
from triforce_chat.ui.theme import BORDER
from triforce_chat.ui.thoughts import STYLE as THOUGHT
from triforce_chat.ui.thoughts import FoldedThought

HEADINGS: Mapping[Side, str] = {"speculative": "with speculation", "autoregressive": "without"}
WAITING = Text("waiting: the two run one after the other", "dim")
EDGES = 7  # rows that the borders, the headings in two lines and the cursor need
ONE_LINE = 72  # columns; below, the speeds stand under the names
Items = Iterator[tuple[Side, ChatEvent] | Comparison]


def show_comparison(items: Items, screen: Screen, *, limit: int = 0) -> Comparison | None:
    """Show both answers while they are made, then the measurements; returns None if the user stopped it.

    Ctrl-C closes ``items``; a second Ctrl-C raises ``Leave``.
    """
    show = _show_live if screen.detail == "live" else _show_plain
    with keys_hidden(), Interrupt() as interrupt, closing(until_interrupted(interrupt, items)) as stream:
        result = show(stream, screen, limit)
    if result is None:
        screen.notes.print(Text("comparison stopped", "bold"))
    return result


def fold_comparison(items: Items, each: Callable[[Side, ChatEvent], object]) -> Comparison | None:
    """Pass every event to ``each``; returns the comparison, or None if the user stopped it."""
    with Interrupt() as interrupt, closing(until_interrupted(interrupt, items)) as stream:
        for item in stream:
            if isinstance(item, Comparison):
                return item
            each(*item)
    return None


def _show_live(items: Items, screen: Screen, limit: int) -> Comparison | None:
    columns = Columns(limit)
    try:
        with Region(screen.out, Frame(columns)):
            result = _fill(items, columns)
    finally:
        columns.end()
        screen.out.print(columns)
    if result is not None:
        screen.out.print(summary(result))
    return result


def _fill(items: Items, columns: Columns) -> Comparison | None:
    for item in items:
        if isinstance(item, Comparison):
            return item
        columns.add(*item)
    return None


class Columns:
    """Two growing answers in columns, each with its speed and its last lines."""

    def __init__(self, limit: int) -> None:
        self._complete = False  # show all lines, however many
        self._sides: dict[Side, Column] = {}
        self._limit = limit

    def add(self, side: Side, event: ChatEvent) -> None:
        self._sides.setdefault(side, Column(self._limit)).add(event)

    def end(self) -> None:
        """From now on show all lines, and no thought."""
        self._complete = True
        for column in self._sides.values():
            column.thought.fold()

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.ROUNDED, expand=True, border_style=BORDER)
        between = "  " if options.max_width >= ONE_LINE else "\n"
        for side in HEADINGS:
            table.add_column(self._heading(side, between), ratio=1)
        rows = None if self._complete else options.size.height - EDGES
        table.add_row(*(LastLines(self._sides.get(side, WAITING), rows) for side in HEADINGS))
        yield table

    def _heading(self, side: Side, between: str) -> Text:
        heading = Text(HEADINGS[side], "bold", no_wrap=True, overflow="ellipsis")
        speed = self._sides[side].panel.speed if side in self._sides else []
        return heading.append(f"{between}{speed[0]}" if speed else "", "none")


class Column:
    """One growing answer, below its thought."""

    def __init__(self, limit: int) -> None:
        self.panel = EnginePanel("", limit)
        self.thought = FoldedThought(self.panel.tally)

    def add(self, event: ChatEvent) -> None:
        self.panel.add(event)
        self.thought.add(event)

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        read = self.panel.tally.prefill
        if self.panel.reading and read:
            yield Text(f"reading {read.done:,} / {read.total:,} tokens", "dim")
            return
        yield self.thought
        if self.thought.line:
            yield Text(self.thought.line, THOUGHT)
        yield RenderedMarkdown(clean(self.panel.tally.text))


class LastLines:
    """The last ``rows`` lines of a renderable; all lines if ``rows`` is None."""

    def __init__(self, inner: RenderableType, rows: int | None) -> None:
        self._inner, self._rows = inner, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._inner, options.update(height=None), new_lines=True)
        for line in lines if self._rows is None else lines[-max(1, self._rows) :]:
            yield from line


def _show_plain(items: Items, screen: Screen, limit: int) -> Comparison | None:
    views: dict[Side, View] = {}
    with ExitStack() as open_view:
        for item in items:
            if isinstance(item, Comparison):
                open_view.close()
                _print_lines(screen, [*_as_lines(item), *conclusions(item)])
                return item
            side, event = item
            if side not in views:
                open_view.close()
                _print_lines(screen, [f"{HEADINGS[side]}:"])
                views[side] = open_view.enter_context(VIEWS[screen.detail](screen, EnginePanel("", limit)))
            views[side].add(event)
    return None


def _as_lines(result: Comparison) -> list[str]:
    names = list(HEADINGS.values())
    return [f"{name}: {names[0]} {left}, {names[1]} {right}" for name, left, right in speed_rows(result)]


def _print_lines(screen: Screen, lines: Iterable[str]) -> None:
    screen.out.file.write("".join(f"{line}\n" for line in lines))
    screen.out.file.flush()


def speed_rows(result: Comparison) -> list[tuple[str, str, str]]:
    """The measurements of both sides: (name, with speculation, without)."""
    fast, plain = result.speculative, result.autoregressive
    return [
        ("tokens/s", _per_second(fast), _per_second(plain)),
        ("ms/token", f"{fast.ms_per_token:.1f}", f"{plain.ms_per_token:.1f}"),
        ("tokens", f"{len(fast.token_ids):,}", f"{len(plain.token_ids):,}"),
    ]


def _per_second(tally: Tally) -> str:
    return f"{1000 / tally.ms_per_token:.1f}" if tally.ms_per_token else "-"


def speed_table(result: Comparison) -> Table:
    """The measurements of both sides."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right")
    for row in speed_rows(result):
        table.add_row(*row)
    return table


def summary(result: Comparison) -> Group:
    """The measurements of both sides and the conclusions."""
    return Group(speed_table(result), *map(Text, conclusions(result)), "")


def conclusions(result: Comparison) -> list[str]:
    """Speedups, acceptance and equality of the tokens, one line each."""
    fast = result.speculative
    done = fast.finished
    reading = f"with {formatting.duration(done.prefill_s)} of reading included" if done else "end to end"
    lines = [f"decoding: {result.decode_speedup:.2f}x", f"{reading}: {result.end_to_end_speedup:.2f}x"]
    lines += formatting.acceptance_rates(fast)
    return [*lines, f"tokens: {_equality(result)}"]


def _equality(result: Comparison) -> str:
    if result.ties is None:
        return "sampled, so the two sequences are not comparable token by token"
    ties = "no near ties"
    if result.ties:
        ties = f"{formatting.count(result.ties, 'near tie')} where rounding may decide"
    if result.identical:
        return f"identical, {len(result.speculative.token_ids):,} of them; {ties}"
    return f"different from token {_first_difference(result):,} on; {ties}"


def _first_difference(result: Comparison) -> int:
    """Number of the first different token, from 1; one answer may be a prefix of the other."""
    pairs = zip_longest(result.speculative.token_ids, result.autoregressive.token_ids)
    return next((at for at, (left, right) in enumerate(pairs, 1) if left != right), 0)
