"""Noticing that an answer goes in circles: its end repeats one passage again and again."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Sequence
from contextlib import closing

from triforce_chat.engine.events import Event, Finished, Prefilled, Text

FEWEST = 2  # copies
SPAN = 72  # tokens, or words, that the copies have together at least: a few may be repeated for a reason
LONGEST = 256  # tokens, or words, of a passage
SPACES = re.compile(r"\s+")


def goes_in_circles(ids: Sequence[object], copies: int) -> bool:
    """True if the last tokens, or words, are ``copies`` or more of the same passage, with nothing between them."""
    wanted = max(copies, FEWEST)
    return any(_repeats(ids, period, max(wanted * period, SPAN)) for period in _periods(ids, wanted))


def _periods(ids: Sequence[object], copies: int) -> list[int]:
    """The distances at which the last token stands before, as far as that matters."""
    if len(ids) < SPAN:
        return []
    most = min(LONGEST, len(ids) // copies)
    return [period for period in range(1, most + 1) if ids[-1 - period] == ids[-1]]


def _repeats(ids: Sequence[object], period: int, span: int) -> bool:
    """True if each of the last ``span`` tokens is the one ``period`` before it."""
    if len(ids) < span:
        return False
    end = ids[len(ids) - span :]
    return end[period:] == end[:-period]


def stopped_in_circles(
    events: Generator[Event, None, None], prompt: int, copies: int
) -> Generator[Event, None, None]:
    """The events of an answer to ``prompt`` tokens, which ends as soon as it repeats itself.

    ``copies``: of a passage, that make a repetition; 0: the answer may go on.
    """
    ids: list[int] = []
    words: list[str] = []
    word = ""  # the last one, which may go on
    read, began, first = Prefilled(0, 0, 0, 0.0), time.perf_counter(), 0.0
    with closing(events):
        for event in events:
            yield event
            if isinstance(event, Prefilled):
                read = event
            elif isinstance(event, Text):
                first = first or time.perf_counter()
                ids += event.token_ids
                # A word has another token after a line end than after a space, and a wrapped text ends its lines
                # elsewhere in each copy. Where there are no spaces between words, tokens tell.
                *ended, word = SPACES.split(word + event.text)
                words += filter(None, ended)
                # Most tokens end no word, and then the words are those of the last time.
                if copies and (goes_in_circles(ids, copies) or (ended and goes_in_circles(words, copies))):
                    break
        else:
            return
    spent = time.perf_counter() - began - read.seconds
    yield Finished("repetition", prompt, read.cached, len(ids), read.seconds, first - began, spent)
