"""Libraries that comment on every flaw of a file are kept off the user's screen while they work."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

TALKATIVE = ("pypdf", "fontTools", "charset_normalizer", "bs4")
SILENT = logging.CRITICAL + 1


@contextmanager
def quiet() -> Iterator[None]:
    """Within: no Python warnings and no log lines of the parsers; afterwards all is as it was."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(SILENT)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
