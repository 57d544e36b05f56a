"""Sets of questions in a user's folder, and those that come with the program to train and to validate."""

from __future__ import annotations

from importlib import resources
from itertools import combinations
from pathlib import Path

import pytest

from triforce_chat.errors import UsageError
from triforce_chat.lab import tasks
from triforce_chat.lab.tasks.book_questions import KINDS, QuestionSet, question_sets, sets_in

FOLDER = Path(str(resources.files(tasks))) / "questions"
TRAINING, VALIDATION, TEST = sets_in(FOLDER), sets_in(FOLDER / "validation"), list(question_sets())
HEAD = 'title = "T"\nauthor = "A"\n'
ONE = '[[question]]\nkind = "who"\nquestion = "Who?"\nreply = "He."\nevidence = ["a"]\n'


def test_sets_come_in_the_order_of_their_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.toml").write_text(HEAD.replace("T", name.upper()) + ONE)
    (tmp_path / "notes.txt").write_text("no set")
    found = sets_in(tmp_path)
    assert [each.title for each in found] == ["A", "B"]
    assert [question.reply for question in found[0].questions] == ["He."]


def test_a_folder_without_sets_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=r"contains no \.toml files with questions"):
            sets_in(folder)


@pytest.mark.parametrize(
    "text",
    [
        "not TOML",
        "",
        HEAD,
        HEAD + ONE.replace("kind", "sort"),
        'author = "A"\n' + ONE,
        HEAD + 'question = "Who?"\n',
        HEAD + ONE.replace('["a"]', "5"),
        "\ufeff\0",
    ],
)
def test_a_file_that_holds_no_set_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "good.toml").write_text(HEAD + ONE)
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(UsageError, match=r"wrong\.toml contains no set of questions"):
        sets_in(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"wrong\.toml contains no set of questions"):
        sets_in(tmp_path)


def titles(sets: list[QuestionSet]) -> set[str]:
    return {each.title.casefold() for each in sets}


def texts(sets: list[QuestionSet]) -> set[str]:
    return {" ".join(question.text.casefold().split()) for each in sets for question in each.questions}


def test_no_book_trains_and_evaluates() -> None:
    """Nothing may have been seen of what models are compared by."""
    for some, others in combinations((TRAINING, VALIDATION, TEST), 2):
        assert not titles(some) & titles(others)
        assert not texts(some) & texts(others)
    for sets, count in ((TRAINING, 12), (VALIDATION, 2), (TEST, 8)):
        assert len(titles(sets)) == len(sets) == count
    # Not under another title either: what has no quote in common is another book.
    quotes = [
        {quote for each in sets for q in each.questions for quote in q.evidence} for sets in (TRAINING, TEST)
    ]
    assert not quotes[0] & quotes[1]


@pytest.mark.parametrize("one", [*TRAINING, *VALIDATION], ids=lambda one: one.title)
def test_every_question_has_its_kind_and_its_passages(one: QuestionSet) -> None:
    asked = [question.text for question in one.questions]
    assert len(set(asked)) == len(asked) >= 30
    for question in one.questions:
        assert question.kind in KINDS
        assert question.text.strip()
        assert 1 <= len(question.evidence) <= (1 if question.absent else 2)
        assert all(quote.strip() for quote in question.evidence)


@pytest.mark.parametrize("one", TRAINING, ids=lambda one: one.title)
def test_every_question_to_train_on_has_a_reply(one: QuestionSet) -> None:
    assert [question.text for question in one.questions if not question.reply.strip()] == []
    assert [question.text for question in one.questions if question.answers] == []
    assert any(question.absent for question in one.questions)


@pytest.mark.parametrize("one", VALIDATION, ids=lambda one: one.title)
def test_every_question_to_validate_with_can_be_judged(one: QuestionSet) -> None:
    assert [question.text for question in one.questions if bool(question.answers) == question.absent] == []
    assert all(answer.strip() for question in one.questions for answer in question.answers)
    assert any(question.absent for question in one.questions)
