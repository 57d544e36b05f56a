"""Words looked up in documents, however their lines are broken."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triforce_chat.documents.model import Document
from triforce_chat.documents.places import located
from triforce_chat.documents.sentences import at, one_line, spans
from triforce_chat.errors import UsageError

_BROKEN = r"(?:\u00ad|[-‐]\s*\n\s*)?"  # what a line break may put into a word
_BETWEEN = r"(?:[-‐‑]\s*|\s+)"
_ALIKE = {"'": "['’‘]", "’": "['’‘]", '"': '["“”„«»]', "“": '["“”„]', "”": '["“”„]'}


@dataclass(frozen=True, slots=True)
class Hit:
    """One sentence that holds the words, with how often it does."""

    document: Document
    page: int
    sentence: str
    count: int
    where: str = ""  # its chapter and lines; empty where the page's number tells the place


def pattern(words: str) -> re.Pattern[str]:
    """Matches the words in this order; case, line ends and hyphens do not count. Raises UsageError for none."""
    parts = [part for part in re.split(r"[\s‐‑-]+", words) if part]
    if not parts:
        raise UsageError("there are no words to look for")
    spelled = (_BROKEN.join(_ALIKE.get(char, re.escape(char)) for char in part) for part in parts)
    return re.compile(_BETWEEN.join(spelled), re.IGNORECASE)


def find(documents: Sequence[Document], wanted: re.Pattern[str]) -> Iterator[Hit]:
    """The sentences in which a match begins, in reading order."""
    for document in documents:
        for page in document.pages:
            for start, end, count in _matched(page.text, wanted):
                where = located(document, page, start, end)
                yield Hit(document, page.number, one_line(page.text[start:end]), count, where)


def _matched(text: str, wanted: re.Pattern[str]) -> Iterator[tuple[int, int, int]]:
    """(start, end, matches) of each sentence in which a match begins."""
    matches = list(wanted.finditer(text))
    sentences = spans(text) if matches else []
    counts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for match in matches:
        start, end = at(sentences, match.start())
        counts[start] = counts.get(start, 0) + 1
        ends[start] = max(end, match.end(), ends.get(start, 0))
    for start, count in counts.items():
        yield start, ends[start], count
