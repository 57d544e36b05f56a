"""Progress of a batch: a bar on a terminal, now and then a line in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from triforce_chat.chat.events import ChatEvent
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.ui import formatting
from triforce_chat.ui.clean import one_line

REDRAWS = 2  # per second
LINE_EVERY = 10.0  # seconds between two lines of a log
NAME_WIDTH = 40  # columns
STOPPING = "stopping after this answer; Ctrl-C again stops at once"


class BatchView:
    """Counts what a batch does and shows nothing of it; used as a context manager.

    ``names``: those of the lines to answer, in their order; lines about one book have the same. ``has_books``: count
    books, too.
    """

    def __init__(
        self, names: Sequence[str], has_books: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._started = clock, clock()
        self._lines, self._books, self._has_books = len(names), len(set(names)), has_books
        self._begun: set[str] = set()
        self._name = ""
        self._decoded = 0  # tokens of the running answer
        self.done = self.failed = self.tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Show the state in which the batch has ended."""

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock() - self._started

    def begin(self, name: str) -> None:
        """A line of this name is answered next."""
        self._name = name
        self._begun.add(name)
        self.show()

    def add(self, event: ChatEvent) -> None:
        """Something happened in the running answer."""
        if isinstance(event, Text):
            self._decoded += len(event.token_ids)
        elif isinstance(event, Prefilled):
            self.reading(event)

    def answered(self, tokens: int, failed: bool) -> None:
        """The running answer has ended."""
        self.done, self.failed = self.done + 1, self.failed + failed
        self.tokens, self._decoded = self.tokens + tokens, 0
        self.show()

    def stopping(self) -> None:
        """Ctrl-C was pressed once."""

    def reading(self, event: Prefilled) -> None:
        """The prompt of the running answer is being read."""

    def show(self) -> None:
        """Show the present state."""

    def status(self) -> list[str]:
        """The state in words, the most important ones first."""
        words = [
            f"{self.done:,} of {formatting.count(self._lines, 'question' if self._has_books else 'request')}"
        ]
        if self._has_books:
            finished = len(self._begun) - (self.done < self._lines and bool(self._begun))
            words.append(f"{finished:,} of {formatting.count(self._books, 'book')}")
        words.append(formatting.token_rate(self.tokens + self._decoded, self.seconds))
        words += [f"{self.failed:,} failed"] if self.failed else []
        if 0 < self.done < self._lines:
            left = self.seconds / self.done * (self._lines - self.done)
            words.append(f"{formatting.duration(left)} left")
        return words


class BatchLines(BatchView):
    """A line at the beginning, at the end, and every ten seconds if there is news."""

    def __init__(
        self,
        names: Sequence[str],
        has_books: bool,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(names, has_books, clock)
        self._console, self._said, self._line = console, clock() - LINE_EVERY, ""

    def __exit__(self, *_error: object) -> None:
        self._say(formatting.SEPARATOR.join(self.status()))

    def show(self) -> None:
        if self._clock() - self._said >= LINE_EVERY:
            self._say(formatting.SEPARATOR.join(self.status()))

    def reading(self, event: Prefilled) -> None:
        if self._clock() - self._said >= LINE_EVERY:
            share = formatting.percent(event.done / event.total if event.total else None)
            self._say(f"reading {one_line(self._name)}: {share}")

    def stopping(self) -> None:
        self._say(STOPPING)

    def _say(self, line: str) -> None:
        self._said = self._clock()
        if line != self._line:
            self._line = line
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class BatchBar(BatchView):
    """A bar that is redrawn, with the book that is read or asked about."""

    def __init__(self, names: Sequence[str], has_books: bool, console: Console) -> None:
        super().__init__(names, has_books)
        columns = (BarColumn(bar_width=16), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=console, refresh_per_second=REDRAWS, transient=True)
        self._task = self._bar.add_task("", total=len(names))
        self._doing = self._warning = self.description = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()
        self._bar.console.print(formatting.SEPARATOR.join(self.status()), markup=False, highlight=False)

    def begin(self, name: str) -> None:
        self._doing = formatting.shorten(one_line(name), NAME_WIDTH)
        super().begin(name)

    def reading(self, event: Prefilled) -> None:
        share = formatting.percent(event.done / event.total if event.total else None)
        reading = f", {share} read" if event.done < event.total else ""
        self._doing = f"{formatting.shorten(one_line(self._name), NAME_WIDTH)}{reading}"
        self.show()

    def stopping(self) -> None:
        self._warning = STOPPING

    def show(self) -> None:
        words = [self._warning] if self._warning else [*self.status(), self._doing]
        self.description = formatting.SEPARATOR.join(words)
        self._bar.update(self._task, completed=self.done, description=self.description)


def batch_view(
    names: Sequence[str], has_books: bool, console: Console, quiet: bool, plain: bool
) -> BatchView:
    """Nothing if ``quiet``, a bar on a terminal, else and if ``plain`` whole lines; all on ``console``."""
    if quiet:
        return BatchView(names, has_books)
    try:
        is_terminal = console.file.isatty()
    except (AttributeError, ValueError):
        is_terminal = False
    drawable = is_terminal and not console.is_dumb_terminal and not console.no_color and not plain
    return (BatchBar if drawable else BatchLines)(names, has_books, console)
