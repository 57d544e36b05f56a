"""Conversations about parts of books: exact lengths, answers that stand there, denials of what does not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.long_texts import messages, prose, spelled, trained_tokenizer

from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document, Page
from triforce_chat.lab.evaluation.comprehension import says_absent
from triforce_chat.lab.tasks.book_questions import BookQuestion, QuestionSet, ReadBook, read_books
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.tasks.dialogue import Dialogue, Example
from triforce_chat.lab.tasks.reading import DENIALS, MARGIN, TURN_TOKENS, about_part

SHIPS = [f"The ship of number {number} is here." for number in range(20)]
MOST = 3
FOUND, UNSAID = "It is here.", "Nobody tells the owner."


def ship(number: int, text: str = "Where is ship {}?", reply: str = FOUND) -> BookQuestion:
    return BookQuestion("where", text.format(number), (SHIPS[number],), reply=reply)


def both(first: int, second: int) -> BookQuestion:
    return BookQuestion("order", f"{first}, {second}?", (SHIPS[first], SHIPS[second]), reply=FOUND)


QUESTIONS = [
    *map(ship, range(len(SHIPS))),
    *(both(number, number + 3) for number in range(0, 16, 4)),
    both(0, 19),  # too far apart for any part
    BookQuestion("who", "Whose is ship 7?", (SHIPS[7],), absent=True, reply=UNSAID),
]


@pytest.fixture(scope="module")
def form() -> ChatFormat:
    return ChatFormat(trained_tokenizer())


def read(form: ChatFormat, questions: list[BookQuestion], title: str = "Ships") -> ReadBook:
    parts = [part for i, quote in enumerate(SHIPS) for part in (prose(i, 6), quote)]
    document = Document(title, "ships.txt", (Page(1, "\n\n".join([*parts, prose(99, 20)])),))
    return read_books(form, [document], [QuestionSet(title, "A. Nonymous", tuple(questions))])[0]


@pytest.fixture(scope="module")
def book(form: ChatFormat) -> ReadBook:
    return read(form, QUESTIONS)


def made(form: ChatFormat, book: ReadBook, seed: int, length: int, most: int = MOST) -> Example:
    return about_part(Dialogue(form, None, book.title), random.Random(seed), book, length, most)


def turns(form: ChatFormat, example: Example) -> tuple[str, list[tuple[str, str]]]:
    """The shown part, and each question with its reply."""
    said = messages(spelled(form, example.ids))
    shown, first = said[0][1].rsplit("\n\n", 1)
    asked = [first, *(text for _, text in said[2::2])]
    return shown, list(zip(asked, (text for _, text in said[1::2]), strict=True))


@pytest.mark.parametrize("length", [1500, 2300, 4000])
def test_what_is_shown_is_answered_and_what_is_not_is_denied(
    form: ChatFormat, book: ReadBook, length: int
) -> None:
    known = {question.text: question for question in QUESTIONS}
    replies: list[str] = []
    for seed in range(120):
        example = made(form, book, seed, length)
        assert len(example.ids) == length
        shown, asked = turns(form, example)
        assert 1 <= len(asked) <= MOST
        assert len(example.answers) == len(asked)
        for (start, end), (question, reply) in zip(example.answers, asked, strict=True):
            assert spelled(form, example.ids[start:end]) == f"{reply}<|im_end|>"
            there = [quote in shown for quote in known[question].evidence]
            if reply in DENIALS:
                assert not known[question].absent
                assert not any(there)
            else:
                assert reply == known[question].reply
                assert all(there)
            replies.append(reply)
    denied = sum(reply in DENIALS for reply in replies)
    assert 0.05 * len(replies) < denied < 0.3 * len(replies)
    assert {FOUND, UNSAID} < set(replies)


def test_the_part_is_text_of_the_book(form: ChatFormat, book: ReadBook) -> None:
    whole, starts = spelled(form, list(book.ids)), set()
    for seed in range(20):
        shown, _ = turns(form, made(form, book, seed, 2000))
        text = shown.removeprefix("# Ships\n\n").rstrip()
        assert text in whole
        starts.add(whole.index(text))
    assert len(starts) > 15


def test_the_order_is_random_and_the_seed_determines_it(form: ChatFormat, book: ReadBook) -> None:
    examples = [made(form, book, seed, 2300) for seed in range(30)]
    assert examples == [made(form, book, seed, 2300) for seed in range(30)]
    places = {each.question.text: each.first for each in book.placed}
    orders = [[places[question] for question, _ in turns(form, each)[1]] for each in examples]
    ascending = [order == sorted(order) for order in orders]
    assert any(ascending)
    assert not all(ascending)
    assert len({example.ids[300] for example in examples}) > 1


def test_passages_may_stand_at_any_depth(form: ChatFormat, book: ReadBook) -> None:
    asked = replace(book, placed=[each for each in book.placed if each.question.text == "Where is ship 10?"])
    depths = []
    for seed in range(40):
        shown, _ = turns(form, made(form, asked, seed, 2000, 1))
        depths.append(shown.index(SHIPS[10]) / len(shown))
    assert min(depths) < 0.2
    assert max(depths) > 0.6


def test_a_book_that_is_too_short_is_refused(form: ChatFormat, book: ReadBook) -> None:
    tokens = len(book.ids)
    assert len(made(form, book, 0, tokens).ids) == tokens
    with pytest.raises(ValueError, match=f"no part of {tokens + 1:,} holds {MOST} questions"):
        made(form, book, 0, tokens + 1)
    with pytest.raises(ValueError, match="no part of 700 holds 3 questions"):
        made(form, book, 0, 700)


def test_a_part_is_chosen_by_passages_that_fit(form: ChatFormat, book: ReadBook) -> None:
    """The only other questions need more of the book than a part, or stand at its very end."""
    far = next(each for each in book.placed if each.question.text == "0, 19?")
    last = replace(far, first=len(book.ids) - MARGIN, last=len(book.ids) - MARGIN)
    near = next(each for each in book.placed if each.question.text == "Where is ship 10?")
    for seed in range(20):
        _, asked = turns(form, made(form, replace(book, placed=[far, near, last]), seed, 1500, 1))
        assert len(asked) == 1
        assert asked[0][0] == near.question.text or asked[0][1] in DENIALS
    with pytest.raises(ValueError, match="of Ships holds the passages of a question"):
        made(form, replace(book, placed=[far, last]), 0, 1500, 1)


def test_the_smallest_part_that_fits_is_enough(form: ChatFormat, book: ReadBook) -> None:
    far = next(each for each in book.placed if each.question.text == "4, 7?")
    frame = len(Dialogue(form, None, book.title).prefix([])) + TURN_TOKENS
    length = far.last - far.first + MARGIN + 1 + frame
    for seed in range(20):
        shown, asked = turns(form, made(form, replace(book, placed=[far]), seed, length, 1))
        assert asked == [("4, 7?", FOUND)]
        assert all(quote in shown for quote in far.question.evidence)
    with pytest.raises(ValueError, match="holds the passages of a question"):
        made(form, replace(book, placed=[far]), 0, length - 1, 1)


def test_long_questions_are_fewer(form: ChatFormat) -> None:
    """What they take is not taken from the passages."""
    long = "Where, if " + "one may ask " * 12 + "is ship {}?"
    book = read(form, [ship(number, long) for number in range(len(SHIPS))])
    counts = []
    for seed in range(60):
        example = made(form, book, seed, 2500, 6)
        assert len(example.ids) == 2500
        shown, asked = turns(form, example)
        counts.append(len(asked))
        for question, reply in asked:
            number = int(question.removesuffix("?").split()[-1])
            assert (SHIPS[number] in shown) is (reply not in DENIALS)
    assert 1 <= max(counts) < 6


def test_denials_are_recognized_and_differ() -> None:
    assert len(set(DENIALS)) == len(DENIALS) >= 10
    assert [denial for denial in DENIALS if not says_absent(denial)] == []


# As the builder asks for them


def test_a_builder_takes_books_that_are_long_enough(form: ChatFormat, book: ReadBook) -> None:
    short = replace(book, title="Short", ids=book.ids[:1000], placed=book.placed[:3])
    builder = ExampleBuilder(form.tokenizer, [], [short, book])
    for seed in range(20):
        example = builder.with_questions(random.Random(seed), 2000, MOST)
        assert len(example.ids) == 2000
        assert "# Ships\n\n" in spelled(form, example.ids)
        assert example == builder.with_questions(random.Random(seed), 2000, MOST)
    with pytest.raises(ValueError, match="no book with questions has 9,999 tokens"):
        builder.with_questions(random.Random(0), 9999, MOST)
