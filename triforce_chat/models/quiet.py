"""Silence for libraries that write to the user's screen by themselves."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, TextIO, cast


class _DeafToOneThread:
    """A stream that drops what the thread which made it writes; a status line of another thread passes."""

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
def quiet() -> Iterator[None]:
    """No warnings, log lines or progress bars of transformers inside; everything as before after it."""
    from transformers.utils import logging as bars

    had_bars, log_level = bars.is_progress_bar_enabled(), logging.root.manager.disable
    # transformers' own switch does not reach the bar of its GGUF reader: hence the deaf stream
    deaf = cast(TextIO, _DeafToOneThread(sys.stderr))
    with warnings.catch_warnings(), redirect_stderr(deaf):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        bars.disable_progress_bar()
        try:
            yield
        finally:
            logging.disable(log_level)
            if had_bars:
                bars.enable_progress_bar()
