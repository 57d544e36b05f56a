"""Passages of the documents, quoted again before a question.

A small model overlooks what stands somewhere in a hundred thousand tokens, but reads what stands just before the
question. The documents themselves stay whole, and so does their cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

from triforce_chat.documents import Document
from triforce_chat.documents.passages import Passage, PassageIndex
from triforce_chat.prompts import prompt

# Tokens of documents from which on a question's passages are quoted again. In half of them a model finds nearly as much
# by itself, and reading the passages takes a CPU some seconds.
LONG = 16_384
KEPT_QUESTIONS = 64
KEPT_INDEXES = 2  # of the documents that were asked about last
# Held while an index is built, so that another thread that needs it waits instead of building it again.
BUILDING = Lock()


def quoted_before(question: str, documents: Sequence[Document], count: int) -> str:
    """The question after its best ``count`` passages; alone if no passage has a word of it."""
    return _quoted(question, tuple(documents), count)


@lru_cache(KEPT_QUESTIONS)  # a server asks for the same more than once, and a search takes some milliseconds
def _quoted(question: str, documents: tuple[Document, ...], count: int) -> str:
    found = index_of(documents).best(question, count)
    if not found:
        return question
    quoted = "\n\n".join(map(_labelled, found))
    return prompt("passages").replace("{passages}", quoted) + "\n\n" + question


def index_of(documents: tuple[Document, ...]) -> PassageIndex:
    """The index of documents, built unless they are those of a recent question."""
    with BUILDING:
        return _index(documents)


@lru_cache(KEPT_INDEXES)  # a long novel takes a tenth of a second
def _index(documents: tuple[Document, ...]) -> PassageIndex:
    return PassageIndex(documents)


def _labelled(passage: Passage) -> str:
    """A passage after its page, unless the document has only one."""
    alone = len(passage.document.pages) == 1
    return passage.text if alone else f"[{passage.document.unit} {passage.page.number}] {passage.text}"
