"""A time limit for foreign code that runs inside this program, in any thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TimeOver(Exception):
    """The program took too long."""


@contextmanager
def time_limited(seconds: float) -> Iterator[None]:
    """Raise TimeOver in what the block calls once this thread has worked in it for so many seconds.

    The clock is looked at before every line of Python, so only Python code is stopped, but in threads as well, where no
    signal arrives.
    """
    end = time.thread_time() + seconds

    def look(_frame: FrameType, _event: str, _argument: object) -> Any:
        if time.thread_time() > end:
            raise TimeOver
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
