"""What a model is examined with: planted documents with one question each, everyday questions, and grading."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.long_texts import messages, sent, spelled, three_books

from triforce_chat.lab.evaluation.questions import QUESTIONS, Question, items, sentences
from triforce_chat.lab.evaluation.tasks import ABSENT_QUESTIONS, KINDS, Case, grade, planted_set
from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.tasks.facts import make_facts
from triforce_chat.lab.tasks.fillers import WORDS, in_split
from triforce_chat.prompts import prompt

LENGTH = 3000


@pytest.fixture(scope="module")
def builder() -> ExampleBuilder:
    return three_books()


@pytest.fixture(scope="module")
def cases(builder: ExampleBuilder) -> list[Case]:
    return planted_set(builder, LENGTH)


def test_every_depth_is_asked_for_in_every_document(cases: list[Case]) -> None:
    assert len(cases) == 10
    for case in cases:
        assert len(case.prefix) == LENGTH
        where = [asked.depth for asked in case.questions]
        assert where == [i / 10 for i in range(10)] + [None] * ABSENT_QUESTIONS
        assert [asked.kind == "absent" for asked in case.questions] == [depth is None for depth in where]


def test_every_depth_has_all_kinds(cases: list[Case]) -> None:
    seen = Counter((asked.depth, asked.kind) for case in cases for asked in case.questions)
    assert len(seen) == 10 * len(KINDS) + 1
    assert all(1 <= count <= 2 for (depth, _), count in seen.items() if depth is not None)


def test_a_question_is_what_a_session_sends(builder: ExampleBuilder, cases: list[Case]) -> None:
    form = builder.format
    for asked in cases[0].questions:
        ids = cases[0].prefix + asked.suffix
        text = spelled(form, ids)
        start = "<|im_start|>assistant\n"
        assert text.endswith(start)
        spoken = messages(f"{text}{asked.answer}<|im_end|>\n")
        assert [role for role, _ in spoken] == ["system", "user", "assistant"]
        assert spoken[0][1] == prompt("system")
        assert spoken[1][1].endswith(f"\n\n{asked.question}")
        theirs = sent(form, spoken)
        assert spelled(form, theirs) == text
        assert theirs[:-100] == ids[: len(theirs) - 100]  # the document's last word may be split otherwise
        assert theirs[-len(asked.suffix) :] == asked.suffix


def test_answers_stand_at_their_depths(builder: ExampleBuilder, cases: list[Case]) -> None:
    places = []
    for case in cases:
        document = spelled(builder.format, case.prefix)
        for asked in case.questions:
            if asked.kind == "absent":
                assert asked.question not in document
            elif asked.kind != "two-step":  # whose answer is in the second sentence
                place = document.index(asked.answer) / len(document)
                if document.count(asked.answer) == 1:
                    places.append(abs(place - (asked.depth or 0.0)))
    assert len(places) > 70
    assert max(places) < 0.2  # the system's text and whole paragraphs before it
    assert sum(places) / len(places) < 0.08


def test_pages_can_be_asked_for(builder: ExampleBuilder) -> None:
    case = planted_set(builder, LENGTH, documents=1, page_tokens=150)[0]
    pages = [asked for asked in case.questions if asked.kind == "page"]
    document = spelled(builder.format, case.prefix)
    assert pages
    assert all(asked.answer.isdigit() and f"[page {asked.answer}]\n" in document for asked in pages)


def test_cases_follow_from_the_seed(builder: ExampleBuilder, cases: list[Case]) -> None:
    assert planted_set(builder, LENGTH)[3] == cases[3]
    assert planted_set(builder, LENGTH, documents=1, seed=1)[0] != cases[0]


def test_questions_use_words_that_training_never_had(cases: list[Case]) -> None:
    learnt = [city for i, city in enumerate(WORDS["cities"]) if in_split(i, "train")]
    asked = " ".join(asked.question for case in cases for asked in case.questions)
    assert not [city for city in learnt if city in asked]
    assert [city for city in WORDS["cities"] if city in asked]


# Grading


@pytest.mark.parametrize(
    ("said", "expected", "kind"),
    [
        ("It is 12345.", "12345", "number"),
        ("12,345 crowns", "12345", "number"),
        ("He saved 12345 crowns", "12,345", "number"),
        ("1,234,567", "1234567", "number"),
        ("The code is **AB-12**.", "ab-12", "number"),
        ("it was ada LINDQVIST", "Ada Lindqvist", "name"),
        ("“Silver\n Heron” it is", "Silver Heron", "name"),
        ("Under the third step!", "under the third step", "place"),
        ("It was March 14th, 1872.", "14 March 1872", "date"),
        ("On 14 March 1872", "March 14, 1872", "date"),
        ("At 7:45.", "7:45", "date"),
        ("That is not in the document.", "not in the document", "absent"),
        ("The document doesn’t mention it.", "not in the document", "absent"),
        ("I could not find any such thing.", "not in the document", "absent"),
    ],
)
def test_right_answers(said: str, expected: str, kind: str) -> None:
    assert grade(said, expected, kind)


@pytest.mark.parametrize(
    ("said", "expected", "kind"),
    [
        ("It is 123456.", "12345", "number"),
        ("12.345", "12345", "number"),
        ("", "7", "number"),
        ("Johann", "Johanne", "name"),
        ("The Silver, a Heron", "Silver Heron", "name"),
        ("On 15 March 1872", "14 March 1872", "date"),
        ("At 17:45.", "7:45", "date"),
        ("That is not in the document.", "Oslo", "place"),
        ("The mayor is Ada Lindqvist.", "not in the document", "absent"),
    ],
)
def test_wrong_answers(said: str, expected: str, kind: str) -> None:
    assert not grade(said, expected, kind)


def test_replies_that_are_taught_are_right() -> None:
    for seed in range(20):
        for fact in make_facts(random.Random(seed), 20):
            told = fact.on_page(17)
            assert grade(told.reply, told.answer, told.kind)
            assert not grade("I am a model.", told.answer, told.kind)


# Everyday questions


def test_everyday_questions_are_complete() -> None:
    assert len(QUESTIONS) == len({question.text for question in QUESTIONS}) == 48
    for question in QUESTIONS:
        assert bool(question.accepts) != bool(question.passes)
        assert all(question.right(f"I think it is {word.upper()}.") for word in question.accepts)
        assert not question.right("")
        assert not question.right("Bananas are xylophones")


def test_words_count_whole() -> None:
    question = Question("What is 10 minus 4?", ("6", "six"))
    assert question.right("10 - 4 = 6.")
    assert question.right("Six!")
    assert not question.right("16")
    assert not question.right("sixteen")


@pytest.mark.parametrize(
    "said", ["1. Apple\n2. Pear\n3. Plum", "- a\n- b\n- c", "Apples, pears and plums.", "One\n\ntwo\nthree"]
)
def test_three_items(said: str) -> None:
    assert items(3)(said)


@pytest.mark.parametrize("said", ["Apple", "1. Apple\n2. Pear", "apples and pears", "\n\n\n", ", ,"])
def test_fewer_items(said: str) -> None:
    assert not items(3)(said)


def test_sentences_about_something() -> None:
    passes = sentences(2, "sea")
    assert passes("The sea is wide. It is blue!")
    assert not passes("The sea is wide")
    assert not passes("The sky is wide. It is blue.")
