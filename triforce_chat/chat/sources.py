"""From attention weights to sources: the pages that an answer came from, each with its best sentence."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from triforce_chat.chat.events import Source
from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document, Page
from triforce_chat.documents.places import located
from triforce_chat.documents.sentences import one_line, spans

MAX_SOURCES = 5  # pages


@dataclass(frozen=True, slots=True)
class PageWeights:
    """A page and the attention that the answer paid to each of its tokens."""

    document: Document
    page: Page
    weights: Sequence[float]

    @property
    def total(self) -> float:
        return sum(self.weights)


def top_sources(pages: Sequence[PageWeights], form: ChatFormat) -> tuple[Source, ...]:
    """The pages with the most weight, in descending order; pages without weight are left out."""
    total = sum(each.total for each in pages)
    best = heapq.nlargest(MAX_SOURCES, pages, key=lambda each: each.total)
    return tuple(_source(each, total, form) for each in best if each.total > 0)


def best_sentence(page: PageWeights, ends: Sequence[int]) -> tuple[int, int]:
    """The sentence [start, end) with the most weight; ``ends`` says where each token ends in the page's text."""
    sentences = spans(page.page.text)
    if not sentences:
        return 0, 0
    weights, current = [0.0] * len(sentences), 0
    for end, weight in zip(ends, page.weights, strict=True):
        # By its last character, because a token often begins with the space before it.
        while current + 1 < len(sentences) and sentences[current + 1][0] < max(1, end):
            current += 1
        weights[current] += weight
    return sentences[max(range(len(sentences)), key=weights.__getitem__)]


def _source(found: PageWeights, total: float, form: ChatFormat) -> Source:
    text = found.page.text
    start, end = best_sentence(found, form.token_ends(text))
    return Source(
        document=found.document.title,
        unit=found.document.unit,
        page=found.page.number,
        share=found.total / total,
        sentence=one_line(text[start:end]),
        where=located(found.document, found.page, start, end),
    )
