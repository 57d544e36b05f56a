"""Refusing what does not fit into the context, with advice on what would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from triforce_chat.chat.transcript import TokenizedDocument
from triforce_chat.documents import Document, runs
from triforce_chat.errors import DoesNotFit

QUESTION_ROOM = 64  # tokens kept free for a question when a document is added
CERTAIN = 3  # characters for each token of the context: shorter documents may fit and are not counted ahead
LONGEST_TOKENS = 16  # characters each; the tokens of no text are longer on average
OTHERWISE = (
    "choose a longer --context or a model that has one; in chat, ask and summarize --endless streaming reads "
    "all of it but remembers only the end (lossy)"
)
PAGES_AT_ONCE = 64  # that are tokenized together, on all cores, although the first of them may be too long
SHORTEST_ANSWER = 16  # tokens; a smaller --max-tokens is not worth suggesting


def check_document(added: TokenizedDocument, used: int, max_tokens: int, limit: int) -> None:
    """Raise DoesNotFit unless a question and an answer of ``max_tokens`` still fit after a document.

    ``used``: tokens of the prompt, the document included. ``limit``: tokens of the context.
    """
    reserve = QUESTION_ROOM + max_tokens
    needed = used + reserve
    if needed <= limit:
        return
    total = len(added.ids)
    room = max(0, limit - (needed - total))
    raise DoesNotFit(
        f"{added.document.title}: {total:,} tokens do not fit: {_room(room, limit, reserve)}; "
        f"{_advice(added, room)}"
    )


def check_before_weights(
    documents: Sequence[Document],
    encode_each: Callable[[Sequence[str]], list[list[int]]],
    max_tokens: int,
    limit: int,
) -> None:
    """Raise DoesNotFit for documents so long that the rest of the prompt does not matter.

    Their tokens are counted as far as the context reaches and estimated after that; what may just fit is left to
    ``check_document``, so that a document of ordinary length is tokenized once.
    """
    if sum(len(page.text) for document in documents for page in document.pages) <= CERTAIN * limit:
        return
    reserve, used = QUESTION_ROOM + max_tokens, 0
    for document in documents:
        room = max(0, limit - reserve - used)
        tokens: list[list[int]] = []
        # One page may be a whole book.
        pages = tuple(replace(page, text=page.text[: LONGEST_TOKENS * limit]) for page in document.pages)
        starts = range(0, len(pages), PAGES_AT_ONCE)
        groups = ([page.text for page in pages[at : at + PAGES_AT_ONCE]] for at in starts)
        for at, ids in enumerate(chain.from_iterable(map(encode_each, groups)), 1):
            tokens.append(ids)
            used += len(tokens[-1])
            if used > limit - reserve:
                counted, read = sum(map(len, tokens)), sum(len(page.text) for page in pages[:at])
                total = counted * len(document.text) // read
                begun = TokenizedDocument(replace(document, pages=pages), [], tokens, [])
                raise DoesNotFit(
                    f"{document.title}: about {total:,} tokens do not fit: {_room(room, limit, reserve)}; "
                    f"{_advice(begun, room)}"
                )


def check_question(prompt_tokens: int, max_tokens: int, limit: int) -> None:
    """Raise DoesNotFit unless the prompt and an answer of ``max_tokens`` fit into the context."""
    if prompt_tokens + max_tokens <= limit:
        return
    free = limit - prompt_tokens
    choices = (
        f"--max-tokens {free} (in the chat: /set max-tokens {free}), " if free >= SHORTEST_ANSWER else ""
    )
    raise DoesNotFit(
        f"the conversation has {prompt_tokens:,} tokens and the answer may take {max_tokens:,}, but the "
        f"context has room for {limit:,}; choose {choices}a shorter question, /clear, or fewer pages"
    )


def _room(room: int, limit: int, reserve: int) -> str:
    return (
        f"{room:,} of the context's {limit:,} are free ({reserve:,} are reserved for a question and its answer, fewer "
        f"with a smaller --max-tokens)"
    )


def _advice(added: TokenizedDocument, room: int) -> str:
    """The pages that would fit into ``room`` tokens, as an option to type; if not even one, how much of the first."""
    used, fitting = len(added.heading) + len(added.ending), 0
    for page in added.pages:
        used += len(page)
        if used > room:
            break
        fitting += 1
    if not fitting:
        unit, first = added.document.unit, len(added.document.pages[0].text)
        share = f", only about {first * room // len(added.pages[0]):,} characters of it do" if room else ""
        return f"its first {unit} alone does not fit{share}: shorten it, or {OTHERWISE}"
    pages = added.document.pages
    numbers = runs(page.number for page in pages[:fitting])
    return (
        f"--pages {numbers} would fit ({fitting:,} of {len(pages):,} {added.document.unit}s), or {OTHERWISE}"
    )
