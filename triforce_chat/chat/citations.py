"""Pages that an answer names, checked against the documents: do they exist, do they hold what is quoted?"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triforce_chat.documents import Document, Page
from triforce_chat.engine.events import Citation, Place

_NUMBERS = r"(?P<first>\d{1,5})(?:\s*(?:[-–—]|to|and|&)\s*(?P<last>\d{1,5}))?(?![\w]|[.,]\d)"
_REFERENCE = re.compile(
    rf"(?<!\w)(?P<unit>pages?|pp?\.|sections?)\s*(?:no\.\s*|number\s+)?{_NUMBERS}", re.IGNORECASE
)
_QUOTE = re.compile(r"“([^“”]+)”|\"([^\"\n]+)\"|«([^«»]+)»|„([^„“”]+)[“”]|‘([^‘]+?)’(?!\w)")
_SENTENCE_END = re.compile(
    r"[.!?]\s+(?=[^\s(\[])|\n\s*\n"
)  # a reference in brackets belongs to what precedes
_LEFT_OUT = re.compile(r"\[?(?:…|\.\s?\.\s?\.)\]?")
_JOINED = re.compile(r"(?<=\w)[-‐‑]\s*(?=\w)")  # hyphens, also those that end a line
_DROPPED = re.compile(r"['’‘\u00ad\[\]_*]")
_NO_WORD = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class _Reference:
    """Pages as an answer names them."""

    match: re.Match[str]

    def start(self) -> int:
        return self.match.start()

    def end(self) -> int:
        return self.match.end()

    @property
    def unit(self) -> str:
        return "section" if self.match["unit"].lower().startswith("s") else "page"

    @property
    def first(self) -> int:
        return int(self.match["first"])

    @property
    def last(self) -> int:
        return int(self.match["last"] or self.match["first"])


@dataclass(frozen=True, slots=True)
class _Text:
    """The pages of all documents of one unit, ready to be searched."""

    documents: Sequence[Document]

    def has(self, number: int) -> bool:
        return any(page.number == number for document in self.documents for page in document.pages)

    def found(self, quote: str) -> tuple[Place, ...]:
        """Where the quoted words stand; at a page's end they may run on to the next page."""
        return tuple(
            Place(document.title, document.unit, page.number)
            for document in self.documents
            for page, behind in zip(document.pages, [*document.pages[1:], None], strict=True)
            if _begins_on(quote, page, behind)
        )

    def holds(self, quote: str, first: int, last: int) -> bool:
        """Whether pages ``first`` to ``last`` of one document hold the words; borders may be crossed."""
        for document in self.documents:
            near = [page for page in document.pages if first - 1 <= page.number <= last + 1]
            inner = [page for page in near if first <= page.number <= last]
            if not inner:
                continue
            if contains(_joined(inner), quote):
                return True
            outer = [
                pages for pages in (near[: near.index(inner[0])], near[near.index(inner[-1]) + 1 :]) if pages
            ]
            if contains(_joined(near), quote) and not any(contains(_joined(pages), quote) for pages in outer):
                return True
        return False


def check(answer: str, documents: Sequence[Document]) -> tuple[Citation, ...]:
    """Every page that ``answer`` names, once per quotation beside it; without one only the page must exist.

    Pages are looked for in documents that have pages, sections in those that have sections; what names
    neither's unit is left alone.
    """
    texts = {
        unit: _Text([document for document in documents if document.unit == unit])
        for unit in ("page", "section")
    }
    return tuple(
        dict.fromkeys(
            _judged(texts[reference.unit], reference, quote)
            for reference, quote in _claims(answer)
            if texts[reference.unit].documents
        )
    )


def contains(text: str, quote: str) -> bool:
    """Whether the words of ``quote`` stand in ``text``; "..." leaves out any number of words.

    Case, punctuation, quotation marks, hyphens, line ends and ligatures do not count.
    """
    within, at = words(text), 0
    for part in map(words, _LEFT_OUT.split(quote)):
        if not part.strip():
            continue
        at = within.find(part, at)
        if at < 0:
            return False
        at += len(part) - 1
    return True


def words(text: str) -> str:
    """The words alone, in lower case, with one space around each; a word divided by a hyphen is one."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    plain = _JOINED.sub("", _DROPPED.sub("", plain))
    return f" {_NO_WORD.sub(' ', plain).strip()} "


def _judged(text: _Text, reference: _Reference, quote: str | None) -> Citation:
    first, last = reference.first, reference.last
    exists = text.has(first) and text.has(last)
    if quote is None:
        return Citation(reference.unit, first, last, None, exists, (), exists)
    if text.holds(quote, first, last):
        return Citation(reference.unit, first, last, quote, True)
    return Citation(reference.unit, first, last, quote, False, text.found(quote), exists)


def _claims(answer: str) -> Iterator[tuple[_Reference, str | None]]:
    """References in reading order, each with the quotations of its sentence that are nearest to it."""
    quotes = [match for match in _QUOTE.finditer(answer) if words(match[0]).strip()]
    outside = _masked(answer, quotes)
    references = list(_references(outside))
    borders = [match.end() for match in _SENTENCE_END.finditer(_masked(outside, references))]
    owned: dict[_Reference, list[str]] = {reference: [] for reference in references}
    for quote in quotes:
        sentence = bisect_right(borders, quote.start())
        near = [each for each in references if bisect_right(borders, each.start()) == sentence]
        if near:
            owner = min(near, key=lambda each: max(each.start() - quote.end(), quote.start() - each.end()))
            owned[owner].append(next(filter(None, quote.groups())))
    for reference, own in owned.items():
        if not own:
            yield reference, None
        yield from ((reference, quoted) for quoted in own)


def _masked(text: str, parts: Sequence[_Reference] | Sequence[re.Match[str]]) -> str:
    """The text with as many zeros instead of these parts: what is in them ends no sentence."""
    for part in parts:
        text = text[: part.start()] + "\0" * (part.end() - part.start()) + text[part.end() :]
    return text


def _references(text: str) -> Iterator[_Reference]:
    for match in _REFERENCE.finditer(text):
        reference = _Reference(match)
        if reference.first <= reference.last:
            yield reference


def _begins_on(quote: str, page: Page, behind: Page | None) -> bool:
    if contains(page.text, quote):
        return True
    return (
        behind is not None and contains(_joined([page, behind]), quote) and not contains(behind.text, quote)
    )


def _joined(pages: Sequence[Page]) -> str:
    # A line end, where a page has none of its own: the last and the first word of two pages are two words.
    return "\n".join(page.text for page in pages)
