"""A program on a pseudo-terminal, and what a person would see on it: rows, scrollback and cursor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyte

from support.pseudo_terminal import PATIENCE, Terminal

SCROLLBACK = 2_000  # rows


class SeenTerminal(Terminal):
    """A terminal whose screen can be looked at; like xterm it cuts its rows where it becomes narrower."""

    def __init__(self, *arguments: object, size: tuple[int, int] = (120, 40), **others: Any) -> None:
        self._screen = pyte.HistoryScreen(*size, history=SCROLLBACK)
        self._stream = pyte.Stream(self._screen)
        super().__init__(*arguments, size=size, **others)

    @property
    def rows(self) -> list[str]:
        """The rows that are on the screen."""
        return [row.rstrip() for row in self._screen.display]

    @property
    def scrollback(self) -> list[str]:
        """The rows above the screen."""
        columns = range(self._screen.columns)
        return ["".join(row[at].data for at in columns).rstrip() for row in self._screen.history.top]

    def change_size(self, columns: int, rows: int) -> None:
        """Resize the window behind everything that was written so far."""
        while self._read(0.0):
            pass
        self._screen.resize(rows, columns)
        self.resize(columns, rows)

    def see(self, *texts: str) -> None:
        """Wait until each text is on the screen, which may have wrapped it."""
        for text in texts:
            self._wait(partial(self._shows, text), text)

    def see_row(self, text: str) -> None:
        """Wait until a row of the screen is exactly this text."""
        self._wait(lambda: text in self.rows, text)

    def see_cursor(self) -> None:
        """Wait until the cursor is visible."""
        self._wait(lambda: not self._screen.cursor.hidden, "the cursor")

    def _shows(self, text: str) -> bool:
        return text in " ".join(" ".join(self.rows).split())

    def _wait(self, seen: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not seen():
            assert time.monotonic() < end, f"{what} is not on the screen:\n" + "\n".join(self.rows)
            self._read(0.1)

    def signal_job(self, number: int) -> None:
        """Send a signal to what runs in the foreground."""
        os.killpg(os.tcgetpgrp(self._terminal), number)

    def _read(self, seconds: float) -> bool:
        before = len(self.written)
        found = super()._read(seconds)
        self._stream.feed(self.written[before:])
        return found


def shell(folder: Path, **environ: str) -> SeenTerminal:
    """A shell with job control."""
    start = "import os; os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"
    return SeenTerminal("-c", start, cwd=folder, environ={"PS1": "shell> ", **environ})
