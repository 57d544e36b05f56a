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
    """Suppress warnings, log lines and transformers' progress bars within the block."""
    from transformers.utils import logging as bars

    had_bars, log_level = bars.is_progress_bar_enabled(), logging.root.manager.disable
    # transformers' own switch does not affect the progress bar of its GGUF reader.
    muted = cast(TextIO, _StreamMutedForThread(sys.stderr))
    with warnings.catch_warnings(), redirect_stderr(muted):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        bars.disable_progress_bar()
        try:
            yield
        finally:
            logging.disable(log_level)
            if had_bars:
                bars.enable_progress_bar()
