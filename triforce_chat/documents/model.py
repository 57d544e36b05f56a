"""Titles, pages, and what has to be said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from triforce_chat.documents.ranges import PageRange, fold
from triforce_chat.errors import DocumentError, UsageError

GARBLED = "characters that the fonts do not identify: try --ocr"
MAX_TEXT = (
    64 << 20
)  # characters; the longest novels have five million, and for longer texts an error says what would fit


@dataclass(frozen=True, slots=True)
class Page:
    """One page (or section, for formats without pages); ``number`` counts from 1 as a reader would."""

    number: int
    text: str

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading on a page, from its character ``start`` on; ``level`` 1 is the highest."""

    title: str
    level: int
    page: int
    start: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a format's parser found: texts in reading order; ``broken`` and ``garbled`` count from 1 like pages."""

    texts: Sequence[str]
    title: str = ""
    unit: str = "section"
    broken: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()
    garbled: tuple[int, ...] = ()
    headings: tuple[Heading, ...] = ()  # in reading order
    has_lines: bool = False  # the lines are the file's own

    def bounded(self) -> Parsed:
        """Itself; raises ``DocumentError`` for more text than any model reads."""
        check_length(sum(map(len, self.texts)))
        return self


def check_length(characters: int) -> None:
    if characters > MAX_TEXT:
        raise DocumentError(f"too long: the limit is {MAX_TEXT >> 20} million characters; split it")


@dataclass(frozen=True, slots=True)
class Document:
    """A title and its pages in reading order.

    ``broken`` names the pages that could not be read, ``garbled`` those with characters that nothing tells.
    """

    title: str
    source: str
    pages: tuple[Page, ...]
    unit: str = "page"  # or "section"
    broken: tuple[int, ...] = ()
    notices: tuple[str, ...] = field(default=(), kw_only=True)
    garbled: tuple[int, ...] = field(default=(), kw_only=True)
    headings: tuple[Heading, ...] = field(default=(), kw_only=True)
    has_lines: bool = field(default=False, kw_only=True)

    @property
    def text(self) -> str:
        """All pages joined; they carry their own line ends."""
        return "".join(page.text for page in self.pages)

    @property
    def empty_pages(self) -> tuple[int, ...]:
        """Numbers of the pages without text, damaged ones included."""
        return tuple(page.number for page in self.pages if page.is_empty)

    @property
    def warning(self) -> str | None:
        """One line that names everything the reader of these pages would miss, or None."""
        silent = [number for number in self.empty_pages if number not in (*self.broken, *self.garbled)]
        lines = [
            self._notice(silent, "contains no text: scanned?", "contain no text: scanned?"),
            self._notice(self.broken, "is damaged and left out", "are damaged and left out"),
            self._notice(self.garbled, f"has {GARBLED}", f"have {GARBLED}"),
            *self.notices,
        ]
        return "; ".join(line for line in lines if line) or None

    def select(self, pages: Sequence[PageRange]) -> Document:
        """Keep the named pages under their own numbers, in reading order.

        Raises ``UsageError`` for a page that does not exist, ``DocumentError`` when those kept hold no text.
        """
        for chosen in pages:
            self._require(chosen.last or chosen.first)
        kept = tuple(page for page in self.pages if any(page.number in chosen for chosen in pages))
        if not kept:
            raise UsageError(f"{self.title}: none of these {self.unit}s is in the document")
        broken, garbled = (
            tuple(page.number for page in kept if page.number in named)
            for named in (self.broken, self.garbled)
        )
        numbers = {page.number for page in kept}
        headings = tuple(heading for heading in self.headings if heading.page in numbers)
        return replace(self, pages=kept, broken=broken, garbled=garbled, headings=headings).with_text()

    def with_text(self) -> Document:
        """Itself; raises ``DocumentError`` when no page holds text."""
        if not all(page.is_empty for page in self.pages):
            return self
        raise DocumentError(f"{self.title}: {self._silence()}")

    def _silence(self) -> str:
        numbers = [page.number for page in self.pages]
        if self.broken and len(self.broken) == len(numbers):
            return f"damaged, none of its {len(numbers)} {self.unit}(s) can be read"
        if self.unit != "page":
            return "contains no text"
        if self.garbled:
            return self._notice(numbers, f"has {GARBLED}", f"have {GARBLED}")
        advice = "no text; if this is a scan, try --ocr or run OCR on it first"
        return self._notice(numbers, f"contains {advice}", f"contain {advice}")

    def _notice(self, numbers: Sequence[int], one: str, many: str) -> str:
        if not numbers:
            return ""
        return f"{self.unit}{'s' * (len(numbers) > 1)} {fold(numbers)} {many if len(numbers) > 1 else one}"

    def _require(self, number: int) -> None:
        last = max(page.number for page in self.pages)
        if number > last:
            count = f"{last} {self.unit}{'s' * (last > 1)}"
            raise UsageError(f"{self.unit} {number} is out of range: {self.title} has {count}")
