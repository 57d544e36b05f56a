"""The chapters of a document: its headings of the rank that divides it best, each with its text up to the next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from triforce_chat.documents.model import Document, Heading, Page
from triforce_chat.documents.ranges import fold, parse_pages
from triforce_chat.errors import UsageError

SHOWN_TITLE = 40  # characters of a chapter's title in a list of places
_PART = re.compile(r"(?:part|book|volume|teil|buch|band|partie|parte|tome|часть)\b", re.I)
_KIND = re.compile(
    r"(?:chapter|ch\.|kapitel|chapitre|cap[ií]tulo|capitolo|adventure|stave|letter|canto|глава)\s*", re.I
)
_NUMBER = re.compile(r"\[? ?(\d{1,3}|[IVXLC]{1,8})\b(?!\.\d)(?=[.:\s\]]|$)")
_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_ONES = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

Place = tuple[int, int]  # the number of a page, and a character on it


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter from one place to another; ``number`` is what one calls it by, 0 where it has none."""

    number: int
    name: str  # in a list of places, such as "ch. IV"
    title: str
    start: Place
    end: Place | None  # None: the end of the document

    def holds(self, place: Place) -> bool:
        return self.start <= place and (self.end is None or place < self.end)


def chapters_of(document: Document) -> tuple[Chapter, ...]:
    """The chapters in reading order; none where no headings divide the document."""
    level = _level(document.headings)
    above = [heading for heading in document.headings if level is not None and heading.level <= level]
    ends: list[Place | None] = [*((after.page, after.start) for after in above[1:]), None]
    found = [pair for pair in zip(above, ends[: len(above)], strict=True) if pair[0].level == level]
    labels = [_label(heading.title) for heading, _ in found]
    own = [numeral(label) or 0 for label in labels]
    rising = any(own) and all(a < b for a, b in pairwise(filter(None, own)))
    return tuple(
        Chapter(
            own[at] if rising else at + 1,
            _name(heading.title, labels[at], at + 1, rising),
            heading.title,
            (heading.page, heading.start),
            end,
        )
        for at, (heading, end) in enumerate(found)
    )


def chapter_at(chapters: Sequence[Chapter], place: Place) -> Chapter | None:
    """The chapter that holds this place."""
    return next((chapter for chapter in chapters if chapter.holds(place)), None)


def chosen(document: Document, wanted: str) -> list[Chapter]:
    """The chapters that are meant by numbers as in 1-4,7 or by a name. Raises ``UsageError`` for none."""
    chapters = chapters_of(document)
    if not chapters:
        raise UsageError(f"{document.title} has no chapters that can be recognized by its headings")
    plain = _KIND.sub("", wanted.strip(), count=1)
    try:
        ranges = parse_pages(plain)
    except UsageError:
        return [_called(document, chapters, plain)]
    found = [each for each in chapters if each.number and any(each.number in one for one in ranges)]
    if not found or any(all(each.number not in one for each in chapters) for one in ranges):
        numbers = fold(each.number for each in chapters if each.number)
        raise UsageError(f"{document.title} has no chapter {wanted.strip()}; it has {numbers}")
    return found


def only(document: Document, chapters: Sequence[Chapter]) -> Document:
    """The text of these chapters, on pages of the same numbers."""
    return _kept(document, [(chapter.start, chapter.end) for chapter in chapters])


def until(document: Document, wanted: str) -> Document:
    """The text up to the end of a page, for a number where there are pages, or of a chapter. Raises ``UsageError``."""
    if document.unit == "page" and wanted.strip().isdecimal():
        return document.select(parse_pages(f"1-{wanted.strip()}"))
    return _kept(document, [((0, 0), chosen(document, wanted)[-1].end)])


def numeral(label: str) -> int | None:
    """The number that digits, Roman digits or an English word stand for."""
    if label.isdecimal():
        return int(label)
    if label and set(label) <= set(_DIGITS):
        return sum(-a if a < b else a for a, b in pairwise([*(_DIGITS[each] for each in label), 0]))
    tens, _, ones = label.lower().partition("-")
    if tens in _TENS:
        return 20 + 10 * _TENS.index(tens) + (_ONES.index(ones) + 1 if ones in _ONES[:9] else 0)
    return _ONES.index(tens) + 1 if tens in _ONES else None


def _level(headings: Sequence[Heading]) -> int | None:
    """The highest level with two headings that are not parts of the chapters below them.

    One is enough if it calls itself a chapter: the others may have been left out. A title that stands twice at the
    beginning, as many programs write it, counts once.
    """
    by_level: dict[int, list[Heading]] = {}
    names = [(each.level, each.title.casefold()) for each in headings[:2]]
    for heading in headings[len(names) - len({*names}) :]:
        by_level.setdefault(heading.level, []).append(heading)
    for level, found in sorted(by_level.items()):
        parts = sum(_PART.match(each.title) is not None for each in found)
        finer = any(len(other) > len(found) for deeper, other in by_level.items() if deeper > level)
        divided = 2 * parts >= len(found) or _parts_alone_hold(headings, level)
        if (len(found) > 1 or _KIND.match(found[0].title)) and not (finer and divided):
            return level
    return None


def _parts_alone_hold(headings: Sequence[Heading], level: int) -> bool:
    """Whether only parts of this level have deeper headings below: the others stand before and after the parts."""
    holders = [one for one, after in pairwise(headings) if one.level == level and after.level > level]
    return len(holders) > 1 and all(_PART.match(each.title) for each in holders)


def _label(title: str) -> str:
    """The number in a heading as it is written; nothing where it has none."""
    kind = _KIND.match(title)
    rest = title[kind.end() :] if kind else title
    if found := _NUMBER.match(rest):
        return found[1]
    word = re.match(r"[A-Za-z-]+", rest) if kind else None
    return word[0] if word and numeral(word[0]) else ""


def _name(title: str, label: str, ordinal: int, rising: bool) -> str:
    if not label:
        return f"“{title}”" if len(title) <= SHOWN_TITLE else f"“{title[:SHOWN_TITLE].rstrip()}…”"
    if not rising:
        return f"ch. {ordinal}"
    return f"ch. {label if label.isdecimal() or set(label) <= set(_DIGITS) else numeral(label)}"


def _called(document: Document, chapters: Sequence[Chapter], name: str) -> Chapter:
    """The chapter with this number or these words in its title."""
    number = numeral(name.upper()) or numeral(name)
    found = [each for each in chapters if each.number == number] if number else []
    found = found or [each for each in chapters if name.casefold() in each.title.casefold()]
    if len(found) != 1:
        many = "several chapters" if found else "no chapter"
        raise UsageError(
            f"{document.title} has {many} called {name!r}; /chapters and --chapters take its number"
        )
    return found[0]


def _kept(document: Document, spans: Sequence[tuple[Place, Place | None]]) -> Document:
    pages, headings, kept = [], [], set()
    for page in document.pages:
        pieces = list(_pieces(page, spans))
        text, own = "", [each for each in document.headings if each.page == page.number]
        for start, stop in pieces:
            shift = len(text) - start
            headings += [
                replace(each, start=each.start + shift) for each in own if start <= each.start < stop
            ]
            text += page.text[start:stop]
        if text or (pieces and not page.text):
            pages.append(Page(page.number, text))
            kept.add(page.number)
    broken, garbled = (
        tuple(number for number in named if number in kept) for named in (document.broken, document.garbled)
    )
    changed = replace(document, pages=tuple(pages), headings=tuple(headings), broken=broken, garbled=garbled)
    return changed.with_text()


def _pieces(page: Page, spans: Sequence[tuple[Place, Place | None]]) -> Iterator[tuple[int, int]]:
    """The parts [start, stop) of a page's text that the spans have."""
    for (first, start), end in spans:
        if page.number < first or (end is not None and page.number > end[0]):
            continue
        stop = end[1] if end is not None and page.number == end[0] else len(page.text)
        if stop or not page.text:
            yield (start if page.number == first else 0), stop
