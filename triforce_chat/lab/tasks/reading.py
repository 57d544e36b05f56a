"""Conversations about parts of books: some of the questions have their answers elsewhere, or nowhere."""

from __future__ import annotations

import random
from collections.abc import Sequence

from triforce_chat.lab.tasks.book_questions import Placed, ReadBook
from triforce_chat.lab.tasks.dialogue import Dialogue, Example
from triforce_chat.lab.tasks.facts import Fact
from triforce_chat.lab.tasks.text_data import read_lines

MARGIN = 200  # tokens between a passage's beginning and the end of the part, so that the part holds it whole
TURN_TOKENS = 100  # of a question with its answer, about
# Of the questions are about passages that the part lacks. With those that no book answers about a third of all replies
# are denials: the untouched models deny nothing.
OUTSIDE_SHARE = 0.15
DENIALS = read_lines("reading/denials")


def about_part(dialogue: Dialogue, rng: random.Random, book: ReadBook, length: int, most: int) -> Example:
    """A conversation of ``length`` tokens about a random part of a book, with up to ``most`` questions.

    Raises ValueError if the book is shorter than that, or no such part holds the passages of any question.
    """
    room = length - len(dialogue.prefix([])) - most * TURN_TOKENS
    if room <= 2 * MARGIN or len(book.ids) < length:
        raise ValueError(
            f"{book.title} has {len(book.ids):,} tokens; no part of {length:,} holds {most} questions"
        )
    start = _start(rng, book, rng.choice(_fitting(book, room)), room)
    part = range(start, start + room - MARGIN)
    # Short turns leave room for more of the book, on either side; a passage that begins before it may end within.
    near = range(start - most * TURN_TOKENS - MARGIN, start + length)
    asked = _asked(rng, book.placed, part, near, most)
    while (size := length - len(dialogue.whole([], asked).ids)) < room and len(asked) > 1:
        asked.pop()  # long turns take the part's
    start = min(start, len(book.ids) - size)
    return dialogue.whole(book.ids[start : start + size], asked)


def _fitting(book: ReadBook, room: int) -> list[Placed]:
    """The questions whose passages a part of ``room`` tokens can hold. Raises ValueError if there are none."""
    latest = len(book.ids) - MARGIN
    found = [each for each in book.placed if each.last < min(latest, each.first + room - MARGIN)]
    if not found:
        raise ValueError(f"no part of {room:,} tokens of {book.title} holds the passages of a question")
    return found


def _start(rng: random.Random, book: ReadBook, held: Placed, room: int) -> int:
    """Where a part of ``room`` tokens may begin that holds a question's passages at a random depth."""
    latest = min(held.first, len(book.ids) - room)
    earliest = max(0, held.last + MARGIN - room + 1)
    return rng.randint(earliest, latest)


def _asked(rng: random.Random, placed: Sequence[Placed], part: range, near: range, most: int) -> list[Fact]:
    inside = [each for each in placed if each.first in part and each.last in part]
    outside = [
        each
        for each in placed
        if not each.question.absent and each.first not in near and each.last not in near
    ]
    inside = rng.sample(inside, min(most, len(inside)))
    asked = [_fact(each, each.question.reply) for each in inside]
    rng.shuffle(outside)
    for place in range(len(asked)):
        if outside and rng.random() < OUTSIDE_SHARE:
            asked[place] = _fact(outside.pop(), rng.choice(DENIALS))
    rng.shuffle(asked)
    return asked


def _fact(placed: Placed, reply: str) -> Fact:
    return Fact("reading", (), placed.question.text, "", reply)
