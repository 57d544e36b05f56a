"""Keeps libraries from writing to the user's screen."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, TextIO, cast


class _StreamMutedForThread:
    """A stream that drops the writes of the thread that created it and passes on those of other threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._muted = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._muted:
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def silence_logs() -> Iterator[None]:
    """Suppress warnings, log lines and progress bars within the block."""
    log_level = logging.root.manager.disable
    muted = cast(TextIO, _StreamMutedForThread(sys.stderr))
    with warnings.catch_warnings(), redirect_stderr(muted):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(log_level)
