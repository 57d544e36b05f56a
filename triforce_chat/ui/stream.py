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
from rich.text import Text

from triforce_chat.ui.markdown import BlockSplitter, RenderedMarkdown, last_lines
from triforce_chat.ui.suspend import Suspension, write_past_buffers

REDRAWS = 4  # per second
LINK_RATE = 2_400  # bytes per second for redrawing: half of what 38,400 baud carry
ESCAPE_BYTES = 10  # bytes of escape codes around a styled piece
CLEAR_LINE_AND_UP = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
ERASE_LINE, UP = "\x1b[2K", "\x1b[A"
# A line whose characters take more columns than Rich counts is cut at the margin, as it would end a row too low.
NO_WRAP, WRAP = (Segment(code, None, [(ControlType.CURSOR_FORWARD, 0)]) for code in ("\x1b[?7l", "\x1b[?7h"))
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"

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
        yield from chain.from_iterable((*in_one_row(line), Segment.line()) for line in self.lines)


class Patch:
    """Draws only the changed lines; the cursor is in the last line before and after."""

    def __init__(self, before: Lines, after: Lines) -> None:
        self.changed = [at for at, line in enumerate(after) if line != before[at]]
        self._after = after

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        row = last = len(self._after) - 1
        for at in self.changed:
            yield _to_row(at - row, clear=True)
            yield from in_one_row(self._after[at])
            row = at
        yield _to_row(last - row)


def in_one_row(line: list[Segment]) -> list[Segment]:
    """The pieces of a line such that it takes one row of a terminal, which may know other widths than Rich.

    They differ for emoji of several characters, flags and whatever a Unicode standard has added.
    """
    plain = all(piece.text.isascii() for piece in line)
    return line if plain else [NO_WRAP, *line, WRAP]


def _to_row(down: int, clear: bool = False) -> Control:
    """Move the cursor ``down`` rows (up if negative), to the beginning of the row."""
    moves = [(ControlType.CURSOR_DOWN if down > 0 else ControlType.CURSOR_UP, abs(down))] if down else []
    return Control(ControlType.CARRIAGE_RETURN, *moves, *([(ControlType.ERASE_IN_LINE, 2)] if clear else []))


def draw_bytes(lines: Lines) -> int:
    """Estimate of the bytes that drawing these lines takes."""
    pieces = list(chain.from_iterable(lines))
    styled = sum(bool(piece.style) for piece in pieces)
    return sum(len(piece.text.encode()) for piece in pieces) + ESCAPE_BYTES * (styled + len(lines))


class Redraw:
    """Moves what is on the screen into the scrollback, the lines of a region left out, and goes to the top.

    How many rows those lines take is known for sure only on terminals that do not wrap them again, and there it is the
    fewest; on the others a part of them stays, and no text is lost anywhere.
    """

    def __init__(self, region_lines: int, height: int) -> None:
        self._climb, self._push = max(0, region_lines - 1), height

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        yield Control(ControlType.CARRIAGE_RETURN, *(CLEAR_LINE_AND_UP * self._climb))
        yield Control((ControlType.ERASE_IN_LINE, 2))
        yield from (Segment.line() for _ in range(self._push))
        yield Control(ControlType.HOME)


class Region(Live):
    """Rich's Live with an atomic ``settle``, which draws everything again after a resize or a suspension."""

    def __init__(self, console: Console, frame: Frame, clock: Callable[[], float] = time.monotonic) -> None:
        self.frame = frame
        self._clock, self._due = clock, 0.0  # time of the next redraw that the link can bear
        self._settled: list[ConsoleRenderable] = []
        self._width = self._seen = console.width  # for which the screen was drawn; at the last refresh
        self._suspended = False  # others have written below the region
        self._suspension = Suspension(self.leave, self.come_back)
        super().__init__(
            frame, console=console, refresh_per_second=REDRAWS, transient=True, vertical_overflow="crop"
        )

    def settle(self, change: Callable[[], Iterable[ConsoleRenderable]]) -> None:
        """Make a change and print the blocks that it settled, without a frame in between."""
        with self._lock:
            for block in change():
                self.console.print(block)
                self._settled.append(block)

    def start(self, refresh: bool = False) -> None:
        self._suspension.__enter__()
        super().start(refresh)

    def stop(self) -> None:
        """Erase the region, after a redraw if the screen is not as it was drawn."""
        self._seen = self.console.width
        super().stop()
        self._suspension.__exit__(None, None, None)

    def leave(self) -> None:
        """Take the region off the screen, because the process is about to be stopped."""
        with self._lock:
            self._suspended = True
            lines = max(1, len(self.frame.lines))
            write_past_buffers(
                self.console.file, f"\r{ERASE_LINE}{f'{UP}{ERASE_LINE}' * (lines - 1)}{SHOW_CURSOR}"
            )

    def come_back(self) -> None:
        """Go on after the process was continued; the next refresh draws everything."""
        write_past_buffers(self.console.file, HIDE_CURSOR)

    def refresh(self) -> None:
        """Redraw if the link can bear it; a region that is about to be erased is left alone.

        While the user drags the window's edge nothing is drawn.
        """
        dragged, self._seen = self.console.width != self._seen, self.console.width
        if not dragged and (self._stale or (self._started and self._clock() >= self._due)):
            with self._lock, self.console:
                self.console.print(Control(), crop=False)  # a patch is one line to Rich, which would cut it

    @property
    def _stale(self) -> bool:
        return self._suspended or self.console.width != self._width

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The printed text and the region below it; only changed lines if nothing is printed."""
        with self._lock:
            before, again = self.frame.lines, self._again() if self._stale else []
            self.frame.draw(self.console)
            quiet = all(isinstance(each, Control) for each in renderables)
            if quiet and not again and 0 < len(before) == len(self.frame.lines):
                return self._patched(before)
            self._spend(self.frame.lines)
            return super().process_renderables([*again, *renderables])

    def _again(self) -> list[ConsoleRenderable]:
        """All that was printed so far, where nothing can be below it; the cursor moves there first."""
        lines = 0 if self._suspended else len(self.frame.lines)
        self._suspended, self._width = False, self.console.width
        self._live_render._shape = None  # Rich would go up by the lines that it drew last
        return [Redraw(lines, self.console.height), *self._settled]

    def _patched(self, before: Lines) -> list[ConsoleRenderable]:
        patch = Patch(before, self.frame.lines)
        self._spend([self.frame.lines[at] for at in patch.changed])
        return [patch] if patch.changed else []

    def _spend(self, lines: Lines) -> None:
        self._due = self._clock() + draw_bytes(lines) / LINK_RATE


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

    def remark(self, line: Text) -> None:
        """Print a line of its own above what is still to come."""
        self._region.settle(lambda: [line])
        self._written = True

    def _print(self, block: str) -> list[ConsoleRenderable]:
        shown = [self._spaced(block)] if block else []
        self._written = self._written or bool(block)
        return shown

    def _spaced(self, text: str) -> ConsoleRenderable:
        """A block, after a blank line unless it is the first one."""
        if not text.strip():
            return Text()
        page = RenderedMarkdown(text)
        return Group("", page) if self._written else page
