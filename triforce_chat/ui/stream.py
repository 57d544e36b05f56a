"""A live region below a scrollback that is written once.

Settled blocks are printed above the region; only the last block of the answer and the panel are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import chain

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment

from triforce_chat.ui.markdown import Blocks, Page, recent

REDRAWS = 10  # a second
CLEAR_LINE_AND_UP = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))


class Frame:
    """``above`` clipped to its last lines so that it fits the terminal together with ``below``."""

    def __init__(self, below: RenderableType) -> None:
        self.above: Callable[[], RenderableType] = lambda: ""
        self.widths: list[int] = []  # columns of each line drawn last
        self._below = below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        below = console.render_lines(self._below, options, pad=False)
        lines = console.render_lines(self.above(), options, pad=False)
        room = max(0, options.size.height - len(below) - 1)
        shown = [*lines[len(lines) - min(room, len(lines)) :], *below]
        self.widths = [Segment.get_line_length(line) for line in shown]
        yield from chain.from_iterable((*line, Segment.line()) for line in shown)


class Region(Live):
    """Rich's Live with an atomic ``settle``, and right after the terminal became narrower as well."""

    def __init__(self, console: Console, frame: Frame) -> None:
        self.frame = frame
        super().__init__(
            frame, console=console, refresh_per_second=REDRAWS, transient=True, vertical_overflow="crop"
        )

    def settle(self, change: Callable[[], Iterable[RenderableType]]) -> None:
        """Make a change and print what it settled, with no frame drawn in between."""
        with self._lock:
            for block in change():
                self.console.print(block)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        climb = Control(*(CLEAR_LINE_AND_UP * self._wrapped()))
        return [climb, *super().process_renderables(renderables)]

    def _wrapped(self) -> int:
        """Rows that the lines drawn last take in addition since the terminal broke them anew."""
        width = max(1, self.console.width)
        return sum(max(0, columns - 1) // width for columns in self.frame.widths)


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
            self._region.settle(lambda: self._print(self._blocks.rest()))
        finally:
            self._region.stop()

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
