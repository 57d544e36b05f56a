"""The passages of documents that share most words with a question, by full-text search."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from triforce_chat.documents.model import Document, Page
from triforce_chat.documents.sentences import one_line, spans

PASSAGE_WORDS = 80  # a passage ends with the sentence that reaches so many
CANDIDATES = 8  # times as many as asked for, because neighbours share sentences
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """Sentences [start, end) of a page, in characters."""

    document: Document
    page: Page
    start: int
    end: int

    @property
    def text(self) -> str:
        """The sentences in one line."""
        return one_line(self.page.text[self.start : self.end])

    def overlaps(self, other: Passage) -> bool:
        """Whether the two share a sentence."""
        return self.page is other.page and self.start < other.end and other.start < self.end


class PassageIndex:
    """The passages of documents, ranked for a question by BM25 over the stems of words.

    So a word counts the more, the fewer passages have it. SQLite's full-text search computes it.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._passages = [each for document in documents for each in _passages(document)]
        # Questions of one conversation may come from several threads, one at a time.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(text, tokenize = 'porter unicode61')"
        )
        self._database.executemany(
            "INSERT INTO passages (rowid, text) VALUES (?, ?)",
            ((number, passage.text) for number, passage in enumerate(self._passages)),
        )

    def best(self, question: str, count: int) -> list[Passage]:
        """At most ``count`` passages that share no sentence, in reading order; none if none has a word of it."""
        chosen: list[Passage] = []
        for passage in self._ranked(question, count * CANDIDATES):
            if len(chosen) < count and not any(passage.overlaps(other) for other in chosen):
                chosen.append(passage)
        return [passage for passage in self._passages if passage in chosen] if chosen else []

    def _ranked(self, question: str, most: int) -> Iterator[Passage]:
        """The best passages, the best first."""
        words = dict.fromkeys(_WORD.findall(question.lower()))
        if not words:
            return
        found = self._database.execute(
            "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), most),
        )
        yield from (self._passages[number] for (number,) in found)


def _passages(document: Document) -> Iterator[Passage]:
    """Overlapping runs of sentences: each begins in the middle of the one before."""
    for page in document.pages:
        sentences = list(_pieces(page.text))
        lengths = [len(_WORD.findall(page.text, start, end)) for start, end in sentences]
        first = 0
        while first < len(sentences):
            last, words = first, lengths[first]
            while last + 1 < len(sentences) and words < PASSAGE_WORDS:
                last += 1
                words += lengths[last]
            yield Passage(document, page, sentences[first][0], sentences[last][1])
            if last + 1 == len(sentences):
                break
            first = max(first + 1, (first + last + 1) // 2)


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """The sentences, and parts of those that alone have more words than a passage, as tables and lists do."""
    for start, end in spans(text):
        words = [word.start() for word in _WORD.finditer(text, start, end)]
        yield from pairwise([start, *words[PASSAGE_WORDS::PASSAGE_WORDS], end])
