"""Where the sentences of a running text begin and end."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

# Behind a stop and the quotes or brackets that close with it; also at blank lines.
_BORDER = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*(?=\s)|\n[ \t]*(?=\n)")
_ABBREVIATED = re.compile(r"\b(?:(?:Mrs?|Ms|Dr|St|Prof|Rev|Capt|Col|Gen|[Vv]ol|pp?|cf|vs)|[A-Z])\.\Z")
_LOOK_BACK = 8  # characters that tell an abbreviation


def spans(text: str) -> list[tuple[int, int]]:
    """The sentences as [start, end) without the white space around them; what is blank belongs to none."""
    borders = [0, *_borders(text), len(text)]
    found = []
    for start, end in pairwise(borders):
        inner = text[start:end]
        if inner.strip():
            found.append((start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())))
    return found


def at(sentences: Sequence[tuple[int, int]], offset: int) -> tuple[int, int]:
    """The sentence at ``offset``, or the one before where it lies between two; there must be one."""
    return sentences[max(0, bisect_right(sentences, offset, key=lambda span: span[0]) - 1)]


def one_line(sentence: str) -> str:
    """A sentence without its line breaks; words that a hyphen divides at one are joined."""
    return " ".join(
        re.sub(r"(?<=\w)[-‐\u00ad]\s*\n\s*(?=[a-zà-ÿ])", "", sentence).replace("\u00ad", "").split()
    )


def _borders(text: str) -> Iterator[int]:
    for match in _BORDER.finditer(text):
        if not _ABBREVIATED.search(text, max(0, match.start() - _LOOK_BACK), match.start()):
            yield match.end()
