"""Progress of a batch: a bar on a terminal, now and then a line in a log file."""

from __future__ import annotations

import time
from collections import Counter
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
STOPPING = "finishing the running answers; Ctrl-C again stops at once"


class BatchView:
    """Counts what a batch does and shows nothing of it; used as a context manager.

    ``names``: those of the lines to answer, in their order; lines about one book have the same. ``has_books``: count
    books, too.
    """

    def __init__(
        self, names: Sequence[str], has_books: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._started = clock, clock()
        self._lines, self._has_books = len(names), has_books
        self._left = Counter(names)  # lines without an answer, by their name
        self._names: dict[int, str] = {}  # of what workers are answering
        self._decoded: Counter[int] = Counter()  # tokens of these answers
        self._noted: set[str] = set()
        self.done = self.failed = self.tokens = 0
        self.load_s = 0.0  # the longest loading of a model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Show the state in which the batch has ended."""

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock() - self._started

    def begin(self, worker: int, name: str) -> None:
        """A worker answers lines of this name next."""
        if not self._names:
            self._started = self._clock()  # the models are loaded
        self._names[worker], self._decoded[worker] = name, 0
        self.show()

    def add(self, worker: int, event: ChatEvent) -> None:
        """Something happened in the answer of a worker."""
        if isinstance(event, Text):
            self._decoded[worker] += len(event.token_ids)
        elif isinstance(event, Prefilled):
            self.reading(worker, event)

    def dropped(self, worker: int) -> None:
        """The answers of a worker were lost."""
        self._decoded[worker] = 0

    def answered(self, worker: int, tokens: int, failed: bool) -> None:
        """An answer of a worker has ended, or one that it would have been given."""
        self.done, self.failed, self.tokens = self.done + 1, self.failed + failed, self.tokens + tokens
        self._decoded[worker] = max(0, self._decoded[worker] - tokens)
        self._left[self._names[worker]] -= 1
        self.show()

    def note(self, line: str) -> None:
        """Say something to the user, once."""
        if line not in self._noted:
            self._noted.add(line)
            self.say(line)

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def stopping(self) -> None:
        """Ctrl-C was pressed once."""

    def reading(self, worker: int, event: Prefilled) -> None:
        """The prompt of a worker's answer is being read."""

    def show(self) -> None:
        """Show the present state."""

    def status(self) -> list[str]:
        """The state in words, the most important ones first."""
        words = [
            f"{self.done:,} of {formatting.count(self._lines, 'question' if self._has_books else 'request')}"
        ]
        if self._has_books:
            finished = sum(not left for left in self._left.values())
            words.append(f"{finished:,} of {formatting.count(len(self._left), 'book')}")
        words.append(formatting.token_rate(self.tokens + self._decoded.total(), self.seconds))
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
        self._console, self._shown_at, self._line = console, clock() - LINE_EVERY, ""

    def __exit__(self, *_error: object) -> None:
        self._say(formatting.SEPARATOR.join(self.status()))

    def show(self) -> None:
        if self._clock() - self._shown_at >= LINE_EVERY:
            self._say(formatting.SEPARATOR.join(self.status()))

    def reading(self, worker: int, event: Prefilled) -> None:
        if self._clock() - self._shown_at >= LINE_EVERY:
            share = formatting.percent(event.done / event.total if event.total else None)
            self._say(f"reading {one_line(self._names[worker])}: {share}")

    def stopping(self) -> None:
        self._say(STOPPING)

    def say(self, line: str) -> None:
        self._console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)

    def _say(self, line: str) -> None:
        self._shown_at = self._clock()
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

    def begin(self, worker: int, name: str) -> None:
        self._doing = formatting.shorten(one_line(name), NAME_WIDTH)
        super().begin(worker, name)

    def reading(self, worker: int, event: Prefilled) -> None:
        share = formatting.percent(event.done / event.total if event.total else None)
        reading = f", {share} read" if event.done < event.total else ""
        self._doing = f"{formatting.shorten(one_line(self._names[worker]), NAME_WIDTH)}{reading}"
        self.show()

    def say(self, line: str) -> None:
        self._bar.console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)

    def stopping(self) -> None:
        self._warning = STOPPING
        self.show()

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
    drawable = is_terminal and not console.is_dumb_terminal and not plain
    return (BatchBar if drawable else BatchLines)(names, has_books, console)
