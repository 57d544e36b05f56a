"""A model's thought: its last lines while it is made, one line afterwards, and all of it when asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.engine.events import Finished
from triforce_chat.engine.events import Text as TextEvent
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import clean

SHOWN_LINES = 3  # of a thought that is being made
SHOWN_CHARACTERS = 2000  # of its end, more than those lines take on any terminal
STYLE = "dim"
NOTHING = Group()


class FoldedThought:
    """Folds a thought away; Rich draws the end of one that is being made, above ``below``."""

    def __init__(
        self, tally: Tally, below: RenderableType = NOTHING, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``tally``: of the answer; it must have folded an event before ``add`` gets it."""
        self._tally, self._below, self._clock = tally, below, clock
        self._began: float | None = None
        self.line = ""  # that the thought left behind, once it is over

    @property
    def is_open(self) -> bool:
        """True while the model thinks."""
        return self._began is not None and not self.line

    def add(self, event: ChatEvent) -> str:
        """Note an event; returns what ``fold`` does when it ends the thought."""
        if isinstance(event, TextEvent) and event.thought_tokens and self._began is None:
            self._began = self._clock()
        over = isinstance(event, Finished) or (isinstance(event, TextEvent) and event.text)
        return self.fold() if over else ""

    def fold(self) -> str:
        """End an open thought; returns the line that it leaves behind, or nothing if none is open."""
        if self._began is None or self.line:
            return ""
        self.line = folded_line(self._tally, self._clock() - self._began)
        return self.line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.is_open:
            text = Text(clean(self._tally.thought[-SHOWN_CHARACTERS:]) or "thinking", STYLE)
            yield from (line for line in text.wrap(console, options.max_width)[-SHOWN_LINES:])
        yield self._below


def folded_line(tally: Tally, seconds: float) -> str:
    """What stands in place of a thought."""
    return f"thought for {formatting.count(tally.thought_tokens, 'token')}, {formatting.duration(seconds)}"
