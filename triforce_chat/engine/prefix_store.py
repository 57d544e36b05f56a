"""A store of prompt prefixes that outlives the engine, and the chunks in which prompts are prefilled and stored.

Chunk boundaries depend on the prompt alone, and a chunk of text is recalled only in place of the very forward that
would compute it. So an answer about documents has the same bits with a store as without one. Chunks with decoded
tokens are stored as decoding computed them: a resumed conversation continues from the numbers it had, from which a
prefill would differ by rounding.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from triforce_chat.engine.cache.full import FullCache

ROOT = bytes(hashlib.sha256().digest_size)  # prefix hash of the empty prefix


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """The end of a document within a prompt: other prompts may begin with the same text."""

    end: int  # tokens of the prompt up to the document's end
    title: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one forward of a prefill."""

    start: int
    ids: tuple[int, ...]
    parent: bytes  # prefix hash of the chunks before
    prefix_hash: bytes  # equal for equal tokens in equal chunks, counted from the first token
    title: str = ""  # of the document that ends here

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


def split_prompt(
    prompt: Sequence[int], spans: Sequence[DocumentSpan], most: int, known: Sequence[Chunk] = ()
) -> list[Chunk]:
    """Split a prompt into chunks of ``most`` tokens, with a chunk boundary at the end of every document.

    A last chunk that is shorter only because the prompt ends is left out: a longer prompt has another chunk there.
    ``known``: chunks of tokens with which the prompt begins. Where its own are the same, they are not hashed again.
    """
    titles = {span.end: span.title for span in spans}
    borders = sorted(end for end in titles if end > 0)
    made: list[Chunk] = []
    at, prefix_hash = 0, ROOT
    while True:
        border = next((end for end in borders if end > at), at + most)
        end = min(at + most, border)
        if end > len(prompt):
            return made
        mine = known[len(made)] if len(made) < len(known) else None
        if mine is None or (mine.end, mine.parent) != (end, prefix_hash):
            mine = chunk_of(prompt[at:end], at, prefix_hash, titles.get(end, ""))
        made.append(mine)
        at, prefix_hash = end, mine.prefix_hash


def chunk_of(ids: Sequence[int], start: int, parent: bytes, title: str) -> Chunk:
    """The chunk of these tokens, after others with the prefix hash ``parent``."""
    return Chunk(
        start, tuple(ids), parent, hashlib.sha256(parent + array("q", ids).tobytes()).digest(), title
    )


class PrefixStore(Protocol):
    """Keys and values of chunks. After an error a chunk counts as not stored; nothing is raised or made up."""

    def known(self, plan: Sequence[Chunk]) -> int:
        """How many chunks of ``plan``, with which a prompt begins, are stored without a gap from the first one on."""
        ...

    def recall(self, chunks: Sequence[Chunk], cache: FullCache) -> Generator[Chunk, None, None]:
        """Load chunks, one after the other, into their slots of the cache; yields each that is there.

        It ends before one that turns out to be lost or damaged. Another thread than the cache's may run it, which
        touches nothing of the cache but these slots.
        """
        ...

    def keep(self, chunk: Chunk, cache: FullCache) -> None:
        """Store a chunk whose slots are filled; they may be read until the next ``cut``."""
        ...

    def cut(self, length: int) -> None:
        """The slots after the first ``length`` tokens are about to be overwritten."""
        ...


class NullStore:
    """Stores nothing."""

    def known(self, plan: Sequence[Chunk]) -> int:  # noqa: ARG002
        return 0

    def recall(self, chunks: Sequence[Chunk], cache: FullCache) -> Generator[Chunk, None, None]:  # noqa: ARG002
        yield from ()

    def keep(self, chunk: Chunk, cache: FullCache) -> None:
        pass

    def cut(self, length: int) -> None:
        pass
