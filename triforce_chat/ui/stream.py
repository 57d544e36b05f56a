"""A live region below the scrollback.

Settled blocks are printed above the region, once. Only the last block of the answer and the panel are redrawn: only
their changed lines, and less often over slow links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import chain

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment

from triforce_chat.ui.markdown import BlockSplitter, RenderedMarkdown, last_lines

REDRAWS = 4  # per second
LINK_RATE = 2_400  # bytes per second for redrawing: half of what 38,400 baud carry
ESCAPE_BYTES = 10  # bytes of escape codes around a styled piece
CLEAR_LINE_AND_UP = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))


Lines = list[list[Segment]]


class Frame:
    """The last lines of ``above``, as many as fit on the terminal, and all of ``below``."""

    def __init__(self, below: RenderableType) -> None:
        self.above: Callable[[], RenderableType] = lambda: ""
        self.lines: Lines = []  # as last drawn
        self._below = below

    def draw(self, console: Console) -> None:
        options = console.options
        below = console.render_lines(self._below, options, pad=False)
        lines = console.render_lines(self.above(), options, pad=False)
        room = max(0, options.size.height - len(below) - 1)
        self.lines = [*lines[len(lines) - min(room, len(lines)) :], *below]

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        yield from chain.from_iterable((*line, Segment.line()) for line in self.lines)


class Patch:
    """Draws only the changed lines; the cursor is in the last line before and after."""

    def __init__(self, before: Lines, after: Lines) -> None:
        self.changed = [at for at, line in enumerate(after) if line != before[at]]
        self._after = after

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        row = last = len(self._after) - 1
        for at in self.changed:
            yield _to_row(at - row, clear=True)
            yield from self._after[at]
            row = at
        yield _to_row(last - row)


def _to_row(down: int, clear: bool = False) -> Control:
    """Move the cursor ``down`` rows (up if negative), to the beginning of the row."""
    moves = [(ControlType.CURSOR_DOWN if down > 0 else ControlType.CURSOR_UP, abs(down))] if down else []
    return Control(ControlType.CARRIAGE_RETURN, *moves, *([(ControlType.ERASE_IN_LINE, 2)] if clear else []))


def draw_bytes(lines: Lines) -> int:
    """Estimate of the bytes that drawing these lines takes."""
    pieces = list(chain.from_iterable(lines))
    styled = sum(bool(piece.style) for piece in pieces)
    return sum(len(piece.text.encode()) for piece in pieces) + ESCAPE_BYTES * (styled + len(lines))


class Region(Live):
    """Rich's Live with an atomic ``settle``; it also survives a narrower terminal."""

    def __init__(self, console: Console, frame: Frame, clock: Callable[[], float] = time.monotonic) -> None:
        self.frame = frame
        self._clock, self._due = clock, 0.0  # time of the next redraw that the link can bear
        self._width = console.width
        super().__init__(
            frame, console=console, refresh_per_second=REDRAWS, transient=True, vertical_overflow="crop"
        )

    def settle(self, change: Callable[[], Iterable[RenderableType]]) -> None:
        """Make a change and print the blocks that it settled, without a frame in between."""
        with self._lock:
            for block in change():
                self.console.print(block)

    def refresh(self) -> None:
        """Redraw if the link can bear it; a region that is about to be erased is left alone."""
        resized = self.console.width != self._width
        if resized or (self._started and self._clock() >= self._due):
            with self._lock, self.console:
                self.console.print(Control(), crop=False)  # a patch is one line to Rich, which would cut it

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The printed text and the region below it; only changed lines if nothing is printed."""
        with self._lock:
            before, climb = self.frame.lines, Control(*(CLEAR_LINE_AND_UP * self._wrapped()))
            resized, self._width = self.console.width != self._width, self.console.width
            self.frame.draw(self.console)
            quiet = all(isinstance(each, Control) for each in renderables)
            if quiet and not resized and 0 < len(before) == len(self.frame.lines):
                return self._patched(before)
            self._spend(self.frame.lines)
            return [climb, *super().process_renderables(renderables)]

    def _patched(self, before: Lines) -> list[ConsoleRenderable]:
        patch = Patch(before, self.frame.lines)
        self._spend([self.frame.lines[at] for at in patch.changed])
        return [patch] if patch.changed else []

    def _spend(self, lines: Lines) -> None:
        self._due = self._clock() + draw_bytes(lines) / LINK_RATE

    def _wrapped(self) -> int:
        """Additional rows that the last drawn lines take because the terminal wrapped them again."""
        width = max(1, self.console.width)
        widths = [Segment.get_line_length(line) for line in self.frame.lines]
        return sum(max(0, columns - 1) // width for columns in widths)


class MarkdownTail(AbstractContextManager["MarkdownTail"]):
    """Streams Markdown above ``below``; at the end all of it is in the scrollback exactly once."""

    def __init__(self, console: Console, below: RenderableType) -> None:
        frame = Frame(below)
        frame.above = lambda: self._spaced(last_lines(self._blocks.tail, console.height))
        self._blocks, self._written = BlockSplitter(), False
        self._region = Region(console, frame)

    def __enter__(self) -> MarkdownTail:
        self._region.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            rest = self._print(self._blocks.rest())
        finally:
            self._region.stop()
        for block in rest:
            self._region.console.print(block)

    def write(self, text: str) -> None:
        """Append text."""
        self._region.settle(lambda: self._print(self._blocks.feed(text)))

    def _print(self, block: str) -> list[RenderableType]:
        shown = [self._spaced(block)] if block else []
        self._written = self._written or bool(block)
        return shown

    def _spaced(self, text: str) -> RenderableType:
        """A block, after a blank line unless it is the first one."""
        page = RenderedMarkdown(text) if text.strip() else ""
        return Group("", page) if self._written and page else page
