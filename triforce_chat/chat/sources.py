"""From attention weights to sources: the pages that an answer came from, each with its best sentence."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from triforce_chat.chat.events import Source
from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document, Page
from triforce_chat.documents.sentences import at, one_line, spans

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
    return tuple(
        Source(
            document=each.document.title,
            unit=each.document.unit,
            page=each.page.number,
            share=each.total / total,
            sentence=best_sentence(each, form.token_ends(each.page.text)),
        )
        for each in best
        if each.total > 0
    )


def best_sentence(page: PageWeights, ends: Sequence[int]) -> str:
    """The sentence with the most weight; ``ends`` says where each token ends in the page's text."""
    text = page.page.text
    sentences = spans(text)
    if not sentences:
        return ""
    weights = dict.fromkeys(sentences, 0.0)
    for end, weight in zip(ends, page.weights, strict=True):
        # By its last character, because a token often begins with the space before it.
        weights[at(sentences, max(0, end - 1))] += weight
    start, end = max(sentences, key=weights.__getitem__)
    return one_line(text[start:end])
