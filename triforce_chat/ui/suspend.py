"""Ctrl-Z while the program is busy: the terminal is left as a shell wants it, and drawn again after ``fg``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import IO, Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class Suspension:
    """While entered, Ctrl-Z calls ``leave`` before the process stops, and ``come_back`` when it goes on.

    Suspensions may be nested: the inner one leaves first and comes back last.
    """

    def __init__(self, leave: Callable[[], None], come_back: Callable[[], None]) -> None:
        self._leave, self._come_back = leave, come_back
        self._previous: Handler = None
        self._mine = False

    def __enter__(self) -> Suspension:
        on_unix = hasattr(signal, "SIGTSTP") and threading.current_thread() is threading.main_thread()
        # A shell without job control has the signal ignored, which must stay so.
        self._mine = on_unix and signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN
        if self._mine:
            self._previous = signal.signal(signal.SIGTSTP, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mine:
            signal.signal(signal.SIGTSTP, self._previous or signal.SIG_DFL)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._leave()
        if callable(self._previous):
            self._previous(number, frame)
        else:
            _stop_process(number)
        self._come_back()


def write_past_buffers(file: IO[str], codes: str) -> None:
    """Write escape codes although a signal may have interrupted a write to the same file."""
    try:
        os.write(file.fileno(), codes.encode())
    except (OSError, ValueError):  # a file in memory
        file.write(codes)


def _stop_process(number: int) -> None:
    """Stop as the signal does by default; returns when the process is continued."""
    with _line_mode():
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, handler)


@contextmanager
def _line_mode() -> Iterator[None]:
    """The keyboard as a shell's commands expect it: echoed, line by line."""
    try:
        import termios

        keyboard = sys.stdin.fileno()
        ours = termios.tcgetattr(keyboard)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        yield
        return
    usual = [*ours]
    usual[0] |= termios.ICRNL
    usual[3] |= termios.ECHO | termios.ICANON
    termios.tcsetattr(keyboard, termios.TCSANOW, usual)
    try:
        yield
    finally:
        if os.tcgetpgrp(keyboard) == os.getpgrp():  # a job continued by "bg" would be stopped at once
            termios.tcsetattr(keyboard, termios.TCSANOW, ours)
