"""Checking citations: do the pages that an answer names exist, and do they, or any, contain what it quotes?"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triforce_chat.chat.events import Citation, LookedUp, Place
from triforce_chat.documents import Document, Page
from triforce_chat.documents.places import located
from triforce_chat.documents.search import pattern

QUOTED_WORDS = 4  # fewer are a title, a name, or a word that is meant
_NUMBERS = r"(?P<first>\d{1,5})(?:\s*(?:[-–—]|to|and|&)\s*(?P<last>\d{1,5}))?(?![\w]|[.,]\d)"
_REFERENCE = re.compile(
    rf"(?<!\w)(?P<unit>pages?|pp?\.|sections?)\s*(?:no\.\s*|number\s+)?{_NUMBERS}", re.IGNORECASE
)
_QUOTE = re.compile(r"“([^“”]+)”|\"([^\"\n]+)\"|«([^«»]+)»|„([^„“”]+)[“”]|‘([^‘]+?)’(?!\w)")
# A reference in brackets belongs to the sentence before it.
_SENTENCE_END = re.compile(r"[.!?]\s+(?=[^\s(\[])|\n\s*\n")
_ELLIPSIS = re.compile(r"\[?(?:…|\.\s?\.\s?\.)\]?")
_HYPHEN = re.compile(r"(?<=\w)[-‐‑]\s*(?=\w)")  # also at the end of a line
_DROPPED = re.compile(r"['’‘\u00ad\[\]_*]")
_NON_WORDS = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class _Reference:
    """Pages or sections as an answer names them."""

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
class _DocumentPages:
    """The pages of all documents that have the same unit."""

    documents: Sequence[Document]

    def has(self, number: int) -> bool:
        """True if a document has this page."""
        return any(page.number == number for document in self.documents for page in document.pages)

    def places_of(self, quote: str) -> tuple[Place, ...]:
        """The pages on which the quoted words begin; they may continue on the next page."""
        return tuple(
            Place(document.title, document.unit, page.number, where=_where(quote, document, page))
            for document in self.documents
            for page, following in zip(document.pages, [*document.pages[1:], None], strict=True)
            if _begins_on(quote, page, following)
        )

    def holds(self, quote: str, first: int, last: int) -> bool:
        """True if pages ``first`` to ``last`` of one document contain the words.

        The words may begin on the page before or end on the page after, unless those contain all of them.
        """
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


def check_citations(answer: str, documents: Sequence[Document]) -> tuple[Citation, ...]:
    """Check every page that ``answer`` names, once for each quotation beside it.

    A page without a quotation only has to exist. Pages are looked up in documents with pages, sections in documents
    with sections; references to a unit that no document has are ignored.
    """
    by_unit = {
        unit: _DocumentPages([document for document in documents if document.unit == unit])
        for unit in ("page", "section")
    }
    return tuple(
        dict.fromkeys(
            _checked(by_unit[reference.unit], reference, quote)
            for reference, quote in _claims(answer)
            if by_unit[reference.unit].documents
        )
    )


def check_quotes(answer: str, documents: Sequence[Document]) -> tuple[LookedUp, ...]:
    """Look up every quotation of at least ``QUOTED_WORDS`` words beside which the answer names no page."""
    claimed = {quote for _, quote in _claims(answer) if quote is not None}
    pages = _DocumentPages(documents)
    quoted = dict.fromkeys(next(filter(None, match.groups())) for match in _QUOTE.finditer(answer))
    return tuple(
        LookedUp(quote, pages.places_of(quote))
        for quote in quoted
        if quote not in claimed and len(normalized(quote).split()) >= QUOTED_WORDS
    )


def contains(text: str, quote: str) -> bool:
    """True if ``text`` contains the words of ``quote``; "..." stands for any number of words.

    Case, punctuation, quotation marks, hyphens, line ends and ligatures are ignored.
    """
    within, at = normalized(text), 0
    for part in map(normalized, _ELLIPSIS.split(quote)):
        if not part.strip():
            continue
        at = within.find(part, at)
        if at < 0:
            return False
        at += len(part) - 1
    return True


def normalized(text: str) -> str:
    """The words of a text in lower case, each between single spaces; a word divided by a hyphen is one word."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    plain = _HYPHEN.sub("", _DROPPED.sub("", plain))
    return f" {_NON_WORDS.sub(' ', plain).strip()} "


def _checked(pages: _DocumentPages, reference: _Reference, quote: str | None) -> Citation:
    first, last = reference.first, reference.last
    exists = pages.has(first) and pages.has(last)
    if quote is None:
        return Citation(reference.unit, first, last, None, exists, (), exists)
    if pages.holds(quote, first, last):
        return Citation(reference.unit, first, last, quote, True)
    return Citation(reference.unit, first, last, quote, False, pages.places_of(quote), exists)


def _claims(answer: str) -> Iterator[tuple[_Reference, str | None]]:
    """References in reading order, each with the quotations of its sentence that are closest to it."""
    quotes = [match for match in _QUOTE.finditer(answer) if normalized(match[0]).strip()]
    outside = _masked(answer, quotes)
    references = list(_references(outside))
    sentence_ends = [match.end() for match in _SENTENCE_END.finditer(_masked(outside, references))]
    owned: dict[_Reference, list[str]] = {reference: [] for reference in references}
    for quote in quotes:
        sentence = bisect_right(sentence_ends, quote.start())
        candidates = [each for each in references if bisect_right(sentence_ends, each.start()) == sentence]
        if candidates:
            owner = min(
                candidates, key=lambda each: max(each.start() - quote.end(), quote.start() - each.end())
            )
            owned[owner].append(next(filter(None, quote.groups())))
    for reference, own in owned.items():
        if not own:
            yield reference, None
        yield from ((reference, quoted) for quoted in own)


def _masked(text: str, parts: Sequence[_Reference] | Sequence[re.Match[str]]) -> str:
    """The text with zeros in place of these parts, so that nothing in them ends a sentence."""
    for part in parts:
        text = text[: part.start()] + "\0" * (part.end() - part.start()) + text[part.end() :]
    return text


def _references(text: str) -> Iterator[_Reference]:
    for match in _REFERENCE.finditer(text):
        reference = _Reference(match)
        if reference.first <= reference.last:
            yield reference


def _begins_on(quote: str, page: Page, following: Page | None) -> bool:
    if contains(page.text, quote):
        return True
    if following is None or contains(following.text, quote):
        return False
    return contains(_joined([page, following]), quote)


def _where(quote: str, document: Document, page: Page) -> str:
    """The chapter and lines of a quotation up to its first ellipsis; if it ends on another page, of its first words."""
    whole = next(part for part in _ELLIPSIS.split(quote) if normalized(part).strip())
    for words in (whole, " ".join(whole.split()[:QUOTED_WORDS])):
        if found := pattern(words).search(page.text):
            return located(document, page, found.start(), found.end())
    return ""


def _joined(pages: Sequence[Page]) -> str:
    # The line end keeps the last word of a page and the first word of the next one apart.
    return "\n".join(page.text for page in pages)
