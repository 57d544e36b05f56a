"""Page numbers as people write them: ``1-80,90`` or ``12-``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from triforce_chat.errors import UsageError

SHOWN_RUNS = 20
_RANGE = re.compile(r"([0-9]{1,9})\s*(?:([-–])\s*([0-9]{1,9})?)?")


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages ``first`` to ``last``, both included; ``last=None`` runs to the end of the document."""

    first: int
    last: int | None

    def within(self, count: int) -> PageRange:
        """The part of it that a document of ``count`` pages has; the last page where it has none."""
        return PageRange(min(self.first, count), min(self.last or count, count))

    def __contains__(self, number: int) -> bool:
        return self.first <= number and (self.last is None or number <= self.last)


def parse_pages(spec: str) -> tuple[PageRange, ...]:
    """Read ``"1-80,90"`` or ``"12-"``; raises ``UsageError`` for anything else."""
    return tuple(_range(part.strip()) for part in spec.split(","))


def _range(part: str) -> PageRange:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise UsageError(f"{part!r} is not a page or a range of pages; write for example 1-80,90 or 12-")
    first = int(match[1])
    last = int(match[3]) if match[3] else None if match[2] else first
    if first < 1:
        raise UsageError("pages count from 1")
    if last is not None and last < first:
        raise UsageError(f"the page range {part!r} runs backwards")
    return PageRange(first, last)


def fold(numbers: Iterable[int]) -> str:
    """``3, 4, 5, 9`` as ``3-5, 9``; after ``SHOWN_RUNS`` runs only the total is given."""
    ordered = sorted(numbers)
    runs = _runs(ordered)
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in islice(runs, SHOWN_RUNS)]
    more = next(runs, None) is not None
    return ", ".join(shown) + (f", ... ({len(ordered)} in all)" if more else "")


def runs(numbers: Iterable[int]) -> str:
    """All of them, as ``parse_pages`` reads it: ``1-1,5-9``."""
    return ",".join(f"{first}-{last}" for first, last in _runs(sorted(numbers)))


def _runs(ordered: Iterable[int]) -> Iterator[tuple[int, int]]:
    run: tuple[int, int] | None = None
    for number in ordered:
        if run and number <= run[1] + 1:
            run = (run[0], number)
            continue
        if run:
            yield run
        run = (number, number)
    if run:
        yield run
