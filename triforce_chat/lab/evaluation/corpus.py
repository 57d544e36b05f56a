"""Documents as one long row of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document


@dataclass(frozen=True, slots=True)
class Part:
    """What was taken of one document, in tokens."""

    title: str
    tokens: int
    used: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents one after the other in the order given; those after the last one needed are not read."""

    ids: list[int]
    parts: list[Part]

    @property
    def words(self) -> str:
        """What was joined, for a reader."""
        return " + ".join(f"{part.title} ({part.used:,} of {part.tokens:,})" for part in self.parts)


def joined(form: ChatFormat, documents: Sequence[Document], most: int) -> Corpus:
    """The first ``most`` tokens of the documents; fewer where they hold fewer."""
    ids: list[int] = []
    parts: list[Part] = []
    for document in documents:
        if len(ids) == most:
            break
        own = form.encode(("\n\n" if ids else "") + document.text)
        used = own[: most - len(ids)]
        parts.append(Part(document.title, len(own), len(used)))
        ids += used
    return Corpus(ids, parts)
