"""A live region below a scrollback that is written once.

Settled blocks are printed above the region; only the last block of the answer and the panel are drawn again,
of these only the lines that changed, and over slow links less often.
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

from triforce_chat.ui.markdown import Blocks, Page, recent

REDRAWS = 4  # a second
LINK = 2_400  # bytes a second that redrawing takes at most: half of what 38,400 baud carry
CODES = 10  # bytes of escape codes around a styled piece
CLEAR_LINE_AND_UP = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))


Lines = list[list[Segment]]


class Frame:
    """``above`` clipped to its last lines so that it fits the terminal together with ``below``."""

    def __init__(self, below: RenderableType) -> None:
        self.above: Callable[[], RenderableType] = lambda: ""
        self.lines: Lines = []  # as they were drawn last
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
    """Draws only the lines that changed; the cursor is in the last line before and after."""

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
    """To the beginning of the row so far below (above if negative)."""
    moves = [(ControlType.CURSOR_DOWN if down > 0 else ControlType.CURSOR_UP, abs(down))] if down else []
    return Control(ControlType.CARRIAGE_RETURN, *moves, *([(ControlType.ERASE_IN_LINE, 2)] if clear else []))


def cost(lines: Lines) -> int:
    """About the bytes that drawing these lines takes."""
    pieces = list(chain.from_iterable(lines))
    return sum(len(piece.text.encode()) + (CODES if piece.style else 0) for piece in pieces) + CODES * len(
        lines
    )


class Region(Live):
    """Rich's Live with an atomic ``settle``, and right after the terminal became narrower as well."""

    def __init__(self, console: Console, frame: Frame, clock: Callable[[], float] = time.monotonic) -> None:
        self.frame = frame
        self._clock, self._due = clock, 0.0  # when a redraw is affordable again
        self._width = console.width
        super().__init__(
            frame, console=console, refresh_per_second=REDRAWS, transient=True, vertical_overflow="crop"
        )

    def settle(self, change: Callable[[], Iterable[RenderableType]]) -> None:
        """Make a change and print what it settled, with no frame drawn in between."""
        with self._lock:
            for block in change():
                self.console.print(block)

    def refresh(self) -> None:
        """Draw again if the link can bear it; what is about to be erased is left as it is."""
        resized = self.console.width != self._width
        if resized or (self._started and self._clock() >= self._due):
            with self._lock, self.console:
                self.console.print(Control(), crop=False)  # a patch is one line to Rich, which would cut it

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """What is printed, and the region below it; its changed lines alone where nothing is printed."""
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
        self._due = self._clock() + cost(lines) / LINK

    def _wrapped(self) -> int:
        """Rows that the lines drawn last take in addition since the terminal broke them anew."""
        width = max(1, self.console.width)
        widths = [Segment.get_line_length(line) for line in self.frame.lines]
        return sum(max(0, columns - 1) // width for columns in widths)


class MarkdownTail(AbstractContextManager["MarkdownTail"]):
    """Streams Markdown above ``below``; everything is in the scrollback exactly once when it is left."""

    def __init__(self, console: Console, below: RenderableType) -> None:
        frame = Frame(below)
        frame.above = lambda: self._spaced(recent(self._blocks.tail, console.height))
        self._blocks, self._written = Blocks(), False
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
        self._region.settle(lambda: self._print(self._blocks.feed(text)))

    def _print(self, block: str) -> list[RenderableType]:
        shown = [self._spaced(block)] if block else []
        self._written = self._written or bool(block)
        return shown

    def _spaced(self, text: str) -> RenderableType:
        """The blank line between two blocks belongs to the later one."""
        page = Page(text) if text.strip() else ""
        return Group("", page) if self._written and page else page
