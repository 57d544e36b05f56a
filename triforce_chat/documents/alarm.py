"""An alarm clock for one step of the work of a process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Seconds of processor time until it rings again: Python drops an exception that is raised in a destructor.
AGAIN = 0.5


class Late(BaseException):
    """The step took too long; no Exception, because the parsers catch those."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises ``Late`` inside after so many seconds of processor time; on Windows, which has no such alarm, never.

    For the main thread of a process only.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _ring(_number: int, _frame: FrameType | None) -> None:
    raise Late
