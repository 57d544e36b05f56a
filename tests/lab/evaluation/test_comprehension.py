"""Questions about novels: which part of the book is shown, what counts as right, and the shipped lists."""

from __future__ import annotations

import pytest
from support.long_texts import prose, spelled, trained_tokenizer

from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document, Page
from triforce_chat.errors import UsageError
from triforce_chat.lab.evaluation.comprehension import (
    MARGIN,
    commonest_opening,
    contains,
    excerpts,
    repeated_grams,
    says_absent,
)
from triforce_chat.lab.tasks.book_questions import (
    KINDS,
    BookQuestion,
    QuestionSet,
    ReadBook,
    parse,
    question_sets,
    read_books,
)

SHIPPED = list(question_sets())
QUOTES = [
    f"The {number} ship lay\nat anchor that night." for number in ("first", "second", "third", "fourth")
]


@pytest.fixture(scope="module")
def form() -> ChatFormat:
    return ChatFormat(trained_tokenizer())


@pytest.fixture(scope="module")
def book(form: ChatFormat) -> ReadBook:
    return read_books(form, [document()], [ships()])[0]


def document() -> Document:
    text = "\n\n".join(part for i, quote in enumerate(QUOTES) for part in (prose(i, 40), quote))
    return Document("Ships", "ships.txt", (Page(1, text + "\n\n" + prose(9, 40)),))


def ships() -> QuestionSet:
    quotes = [quote.replace("\n", " ") for quote in QUOTES]
    one = [BookQuestion("what", f"Which ship {i}?", (quote,), ("anchor",)) for i, quote in enumerate(quotes)]
    two = BookQuestion("order", "Which first?", (quotes[0], quotes[1]), ("first ... second",))
    lost = BookQuestion("who", "Who?", ("This stands in another edition only.",), ("nobody",))
    return QuestionSet("Ships", "A. Nonymous", (*one, two, lost))


def test_passages_are_found_across_line_ends(form: ChatFormat, book: ReadBook) -> None:
    assert book.missing == 1
    assert [each.question.text[-2:] for each in book.placed] == ["0?", "t?", "1?", "2?", "3?"]
    for each in book.placed:
        assert spelled(form, list(book.ids[each.first : each.first + 40])).lstrip().startswith("The ")
        assert (each.first == each.last) is (each.question.passages == "one")


def test_every_part_holds_the_passages_of_its_questions(book: ReadBook) -> None:
    most = max(each.last - each.first for each in book.placed) + 2 * MARGIN
    for length in (most, most + 500, 2 * most, len(book.ids), 10 * len(book.ids)):
        parts = list(excerpts(book, length))
        assert [each for part in parts for each in part.placed] == list(book.placed)
        for part in parts:
            assert part.end - part.start == min(length, len(book.ids))
            for each in part.placed:
                assert part.start + MARGIN <= each.first or part.start == 0
                assert each.last + MARGIN <= part.end or part.end == len(book.ids)
    assert len(list(excerpts(book, len(book.ids)))) == 1


def test_a_text_without_questions_is_refused(form: ChatFormat) -> None:
    with pytest.raises(UsageError, match="no questions about Other; there are some about Ships"):
        read_books(form, [Document("Other", "other.txt", (Page(1, prose(5, 30)),))], [ships()])


@pytest.mark.parametrize(
    ("said", "accepted", "right"),
    [
        ("It was Mr. Weston's house.", "Weston", True),
        ("Westonbury, of course", "Weston", False),
        ("She gave it to the post-office clerk.", "post office", True),
        ("First Jane came in, and after her Emma.", "Jane ... Emma", True),
        ("Emma came before Jane.", "Jane ... Emma", False),
        ("Jane and Jane", "Jane ... Jane", True),
        ("Only Jane", "Jane ... Jane", False),
        ("TWENTY-ONE years", "twenty-one", True),
        ("", "Weston", False),
    ],
)
def test_accepted_strings_are_whole_words(said: str, accepted: str, right: bool) -> None:
    assert contains(said, accepted) is right


@pytest.mark.parametrize(
    "said",
    [
        "The name of the coachman's wife is not mentioned in the book.",
        "The document does not explicitly state the name.",
        "It isn’t said who she was.",
        "The text doesn't provide that information.",
        "There is no mention of a sister.",
        "I could not find that in the text.",
        "His first name is unknown.",
        "The book only says that he fell abroad, without naming the country.",
        "It says that he had lunch there but not what he ate.",
        "We never learn the cook's name.",
        "The text gives no name for the child; it says only that he fell.",
        "George says that the cook is to go, but he doesn't name her.",
        "The guard is not identified.",
        "An unidentified guard.",
        "There is no answer to that in the text.",
    ],
)
def test_a_denial_is_recognized(said: str) -> None:
    assert says_absent(said)


@pytest.mark.parametrize(
    "said",
    [
        "Mr. Weston.",
        "She did not tell him because she was afraid.",
        "He had never been to London, but told her about it.",
        "Her name was Anne, and no other sister was there.",
        "He gave no answer and left the room.",
        "She does not love him.",
        "He found nothing in the drawer, and could not be told why.",
    ],
)
def test_an_answer_is_no_denial(said: str) -> None:
    assert not says_absent(said)


def test_repetition_and_openings() -> None:
    assert repeated_grams(["a b c d a b c d", "one two three"]) == pytest.approx(1 / 5)
    assert repeated_grams(["too short"]) == 0
    assert commonest_opening(["The answer is A", "The answer is B", "Emma went home"]) == (
        "The answer is",
        2 / 3,
    )


def test_a_file_of_questions() -> None:
    made = parse(
        'title = "T"\nauthor = "A"\n[[question]]\nkind = "who"\nquestion = "Who?"\nanswers = ["x"]\n'
        'evidence = ["a", "b"]\n[[question]]\nkind = "what"\nquestion = "What?"\nabsent = true\nevidence = ["c"]\n'
    )
    assert [each.passages for each in made.questions] == ["two", "absent"]


def test_the_shipped_lists_are_large_and_mixed() -> None:
    questions = [each for one in SHIPPED for each in one.questions]
    passages = [each.passages for each in questions]
    assert len(SHIPPED) >= 8
    assert len(questions) >= 200
    assert passages.count("two") >= 0.38 * len(questions)
    assert 0.15 * len(questions) <= passages.count("absent") <= 0.25 * len(questions)
    assert {each.kind for each in questions} == set(KINDS)


@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.title)
def test_shipped_questions_do_not_give_their_answers_away(one: QuestionSet) -> None:
    texts = [each.text for each in one.questions]
    assert len(set(texts)) == len(texts)
    for each in one.questions:
        assert all(quote.strip() for quote in each.evidence)
        assert 1 <= len(each.evidence) <= 2
        assert not any(contains(each.text, answer) for answer in each.answers if each.kind != "order")
        assert not says_absent(each.text)
