"""From what an answer's tokens attended to, to pages and sentences."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document, Page
from triforce_chat.documents.sentences import at, one_line, spans
from triforce_chat.engine.events import Source

MOST = 5  # pages


@dataclass(frozen=True, slots=True)
class Placed:
    """A page and what the tokens of an answer gave to each of its tokens."""

    document: Document
    page: Page
    weights: Sequence[float]

    @property
    def weight(self) -> float:
        return sum(self.weights)


def sources(pages: Sequence[Placed], form: ChatFormat) -> tuple[Source, ...]:
    """The pages with the most weight, first; none where nothing was given to any."""
    total = sum(placed.weight for placed in pages)
    best = heapq.nlargest(MOST, pages, key=lambda placed: placed.weight)
    return tuple(
        Source(
            document=placed.document.title,
            unit=placed.document.unit,
            page=placed.page.number,
            share=placed.weight / total,
            sentence=sentence(placed, form.ends(placed.page.text)),
        )
        for placed in best
        if placed.weight > 0
    )


def sentence(placed: Placed, ends: Sequence[int]) -> str:
    """The sentence with the most weight; ``ends`` says where each token ends in the page's text."""
    text = placed.page.text
    sentences = spans(text)
    if not sentences:
        return ""
    weights = dict.fromkeys(sentences, 0.0)
    for end, weight in zip(ends, placed.weights, strict=True):
        # By its last character, because a token often begins with the space before it.
        weights[at(sentences, max(0, end - 1))] += weight
    start, end = max(sentences, key=weights.__getitem__)
    return one_line(text[start:end])
