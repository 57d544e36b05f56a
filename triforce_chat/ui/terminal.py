"""The terminal: how much may be shown on it, and Ctrl-C during an answer."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO, Literal

from rich.console import Console
from rich.text import Text

from triforce_chat.ui.clean import clean

Detail = Literal["live", "plain", "bare"]


class OutputConsole(Console):
    """Raises BrokenPipeError where Rich itself would end the process, with another exit code than other writers."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass(frozen=True, slots=True)
class Screen:
    """The consoles of answers (``out``) and remarks (``err``), and the level of detail.

    ``live``: Markdown with the panel below; ``plain``: whole lines one after the other, for screen readers and
    simple terminals; ``bare``: only the answer on ``out``. ``quiet``: nothing about a whole answer on ``err`` either.
    """

    out: Console
    err: Console
    detail: Detail
    quiet: bool = False

    @classmethod
    def of(cls, out: Console, err: Console, *, plain: bool = False, quiet: bool = False) -> Screen:
        """Choose the detail: bare if stdout is not a terminal, or if ``quiet`` is set."""
        if quiet or not is_terminal(out.file):
            return cls(out, err, "bare", quiet)
        drawable = not out.is_dumb_terminal and out.encoding.startswith("utf")
        return cls(out, err, "live" if drawable and not plain else "plain")

    @property
    def is_terminal(self) -> bool:
        """True if answers go to a terminal."""
        return is_terminal(self.out.file)

    @property
    def notes(self) -> Console:
        """The console for the output of slash commands."""
        return self.err if self.detail == "bare" else self.out

    def note(self, *lines: str) -> None:
        """Print lines of a slash command, without escape sequences."""
        for line in lines:
            print_line(self.notes, Text(clean(line)))


def print_line(console: Console, line: Text) -> None:
    """Print one line, which a terminal gets wrapped between words and a pipe or a file gets whole."""
    console.print(line, soft_wrap=not is_terminal(console.file), highlight=False)


def is_terminal(stream: IO[str]) -> bool:
    """True if somebody sees what is written there."""
    # Not console.is_terminal: FORCE_COLOR makes that true for a pipe.
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


class Leave(KeyboardInterrupt):
    """A second Ctrl-C within two seconds: the user wants to leave the program."""


class Interrupt:
    """While entered, Ctrl-C sets ``requested``; a second Ctrl-C within ``WINDOW`` seconds raises ``Leave``."""

    WINDOW = 2.0

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self._notify = notify
        self._last = -self.WINDOW

    def __enter__(self) -> Interrupt:
        # Only the main thread may handle signals; other threads have no user at the keyboard.
        self._mine = threading.current_thread() is threading.main_thread()
        if self._mine:
            self._previous = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, self._previous or signal.SIG_DFL)

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        again = self.requested and now - self._last < self.WINDOW
        self.requested, self._last = True, now
        if again:
            raise Leave
        self._notify()
