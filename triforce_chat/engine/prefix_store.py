"""What an engine asks of a memory that outlives it, and the chunks in which a prompt is read and remembered.

Where the chunks of a prompt end depends on the prompt alone, and a chunk of a text is recalled only in place of
the very forward that would have computed it. So an answer about documents has the same bits with a memory as
without one. Chunks that hold what the model itself said are kept as decoding computed them: a conversation that
is taken up again goes on from the numbers it had, which a prefill would give up to rounding.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from triforce_chat.engine.cache.full import FullCache

ROOT = bytes(hashlib.sha256().digest_size)  # prefix_hash of nothing


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """A text within a prompt that other prompts may begin with as well."""

    end: int  # tokens of the prompt up to its end
    title: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one forward of a prefill."""

    start: int
    ids: tuple[int, ...]
    parent: bytes  # prefix_hash of the chunks before
    prefix_hash: bytes  # the same for the same tokens in the same chunks, from the first token on
    title: str = ""  # of the span that it ends

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


def split_prompt(prompt: Sequence[int], spans: Sequence[DocumentSpan], most: int) -> list[Chunk]:
    """Cut a prompt into chunks of ``most`` tokens; a span ends the chunk that it ends in.

    What would be shorter only because the prompt is over is left out: in a longer prompt it is another chunk.
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
        ids = tuple(prompt[at:end])
        parent, prefix_hash = prefix_hash, hashlib.sha256(prefix_hash + array("q", ids).tobytes()).digest()
        made.append(Chunk(at, ids, parent, prefix_hash, titles.get(end, "")))
        at = end


class PrefixStore(Protocol):
    """Keys and values of chunks. Whatever goes wrong in it, it forgets; it never raises and never invents."""

    def known(self, plan: Sequence[Chunk]) -> int:
        """A prompt begins with ``plan``: how many of these chunks, from the first on, can be recalled."""
        ...

    def recall(self, chunk: Chunk, cache: FullCache) -> bool:
        """Write one chunk into its slots; False where it turns out to be lost."""
        ...

    def keep(self, chunk: Chunk, cache: FullCache) -> None:
        """The slots of ``chunk`` hold it now; they may be read until ``cut``."""
        ...

    def cut(self, length: int) -> None:
        """The slots behind the first ``length`` tokens are about to be written again."""
        ...


class NullStore:
    """Remembers nothing."""

    def known(self, plan: Sequence[Chunk]) -> int:  # noqa: ARG002
        return 0

    def recall(self, chunk: Chunk, cache: FullCache) -> bool:  # noqa: ARG002
        return False

    def keep(self, chunk: Chunk, cache: FullCache) -> None:
        pass

    def cut(self, length: int) -> None:
        pass
