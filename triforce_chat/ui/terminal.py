"""Which terminal there is, how much may be shown on it, and what Ctrl-C does while an answer runs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO, Literal

from rich.console import Console

Detail = Literal["live", "plain", "bare"]


@dataclass(frozen=True, slots=True)
class Screen:
    """Where answers (``out``) and remarks (``err``) go.

    ``live``: Markdown with the panel below; ``plain``: whole lines one after the other, for screen readers
    and simple terminals; ``bare``: the answer and nothing else.
    """

    out: Console
    err: Console
    detail: Detail

    @classmethod
    def of(cls, out: Console, err: Console, *, plain: bool = False, quiet: bool = False) -> Screen:
        """Only the answer goes to stdout when that is no terminal, or NO_COLOR or ``quiet`` is set."""
        if quiet or out.no_color or not _is_terminal(out.file):
            return cls(out, err, "bare")
        drawable = not out.is_dumb_terminal and out.encoding.startswith("utf")
        return cls(out, err, "live" if drawable and not plain else "plain")

    @property
    def is_terminal(self) -> bool:
        """Answers go to a terminal."""
        return _is_terminal(self.out.file)

    @property
    def notes(self) -> Console:
        """Where the output of slash commands goes."""
        return self.err if self.detail == "bare" else self.out


def _is_terminal(stream: IO[str]) -> bool:
    # Not console.is_terminal: FORCE_COLOR makes that true for a pipe.
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


class Leave(KeyboardInterrupt):
    """The second Ctrl-C within two seconds: the user wants out of the program."""


class Interrupt:
    """While entered, Ctrl-C sets ``requested``; a second one within ``WINDOW`` seconds raises ``Leave``."""

    WINDOW = 2.0

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self._notify = notify
        self._last = -self.WINDOW

    def __enter__(self) -> Interrupt:
        # Python lets only the main thread handle signals; elsewhere nobody can press a key anyway.
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
