"""Facts planted into running text at chosen depths, with page marks if wanted."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from triforce_chat.lab.tasks.facts import Fact
from triforce_chat.lab.training.documents import Encode, Pieces

APPENDABLE = 40  # tokens; shorter paragraphs are headings, and no sentence is put at their end
APPENDED_SHARE = 0.5  # of the sentences end a paragraph where they can; the others stand alone
TAIL = 64  # tokens at least that follow the last planted sentence


def plant(
    rng: random.Random,
    paragraphs: Iterable[Sequence[int]],
    facts: Sequence[Fact],
    depths: Sequence[float],
    encode: Encode,
    length: int,
    page_tokens: int | None = None,
) -> tuple[list[int], list[Fact]]:
    """A document of ``length`` tokens with ``facts`` at ``depths`` (fractions of it, in [0, 1)).

    A fact stands where a paragraph ends, as near to its depth as can be; a second sentence goes to a random
    depth of its own. With ``page_tokens`` a line ``[page N]`` starts each page of about so many tokens. Facts
    come back in the order of their first sentences; those of kind "page" have their answers. Raises
    ``ValueError`` when the paragraphs are too few, the length is too small for the facts, or a fact asks for
    its page and there are none.
    """
    if page_tokens is None and any(fact.kind == "page" for fact in facts):
        raise ValueError("a fact asks for its page, but the document has no page marks")
    pieces = Pieces(encode)
    marks = _Marks(pieces, page_tokens, length)
    items = _items(rng, facts, depths, pieces, length, marks.cost)
    document = _Document(rng, length, deque(items), marks, pieces.piece(""))
    for paragraph in paragraphs:
        if document.take(paragraph):
            return document.ids, document.planted
    raise ValueError("the paragraphs are shorter than the document should be")


@dataclass(frozen=True, slots=True)
class _Item:
    """A sentence and the place where it belongs."""

    place: int
    fact: Fact | None  # None for the second sentence of a fact
    alone: list[int]  # its ids as a paragraph
    attached: list[int]  # its ids at the end of one
    cost: int  # the most tokens that it takes, a page mark before it included


def _items(
    rng: random.Random,
    facts: Sequence[Fact],
    depths: Sequence[float],
    pieces: Pieces,
    length: int,
    mark: int,
) -> list[_Item]:
    items = []
    for fact, depth in zip(facts, depths, strict=True):
        for i, sentence in enumerate(fact.sentences):
            place = int((rng.random() if i else depth) * length)
            alone, attached = pieces.piece(sentence), pieces.piece(" " + sentence)
            cost = max(len(alone), len(attached)) + mark
            items.append(_Item(place, None if i else fact, alone, attached, cost))
    return sorted(items, key=lambda item: item.place)


class _Marks:
    """The page marks of a document of ``length`` tokens; none without ``page_tokens``."""

    def __init__(self, pieces: Pieces, page_tokens: int | None, length: int) -> None:
        self.pieces, self.page_tokens = pieces, page_tokens
        self.page, self.start = 0, 0
        self.cost = 0 if page_tokens is None else len(self._mark(length))

    def at(self, position: int) -> list[int]:
        """The mark that belongs at ``position``; empty within a page."""
        if self.page_tokens is None or (self.page and position - self.start < self.page_tokens):
            return []
        self.page, self.start = self.page + 1, position
        return self._mark(self.page)

    def _mark(self, page: int) -> list[int]:
        return self.pieces.piece(f"[page {page}]", "\n")


@dataclass(slots=True)
class _Document:
    """Grows by paragraphs until it is full; sentences go between them."""

    rng: random.Random
    length: int
    items: deque[_Item]
    marks: _Marks
    gap: list[int]
    ids: list[int] = field(default_factory=list)
    planted: list[Fact] = field(default_factory=list)
    reserve: int = 0  # tokens kept for what is not planted yet
    joinable: bool = False  # whether a sentence may end the last paragraph

    def __post_init__(self) -> None:
        self.reserve = sum(item.cost for item in self.items)
        if self.reserve + self.marks.cost + TAIL > self.length:
            raise ValueError(f"{self.length} tokens are too few for {len(self.items)} sentences")

    def take(self, paragraph: Sequence[int]) -> bool:
        """Append a paragraph after the sentences that belong before it; True when the document is full."""
        while self.items and self._belongs_before(paragraph):
            self._plant(self.items.popleft())
        self._add(self.marks.at(len(self.ids)))
        self._add(paragraph)
        self.joinable = len(paragraph) >= APPENDABLE and list(paragraph[-len(self.gap) :]) == self.gap
        return len(self.ids) == self.length

    def _belongs_before(self, paragraph: Sequence[int]) -> bool:
        """Whether its place is nearer to this paragraph's start than to its end, or no room is left after it."""
        behind = len(self.ids) + self.marks.cost + len(paragraph)
        middle = len(self.ids) + len(paragraph) // 2
        return self.items[0].place <= middle or behind + self.reserve + TAIL > self.length

    def _plant(self, item: _Item) -> None:
        if self.joinable and self.rng.random() < APPENDED_SHARE:
            del self.ids[-len(self.gap) :]
            self._add(item.attached)
        else:
            self._add(self.marks.at(len(self.ids)))
            self._add(item.alone)
        self.joinable = False
        self.reserve -= item.cost
        if item.fact:
            self.planted.append(item.fact.on_page(self.marks.page))

    def _add(self, ids: Sequence[int]) -> None:
        self.ids += ids[: self.length - len(self.ids)]
