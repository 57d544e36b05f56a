"""Reports tell what is asked of them, once, and not what is absent; everyday questions are nobody's test."""

from __future__ import annotations

import random
import re

import pytest
from support.long_texts import messages, spelled
from support.trained_models import builder_of, load, save_target

from triforce_chat.lab.evaluation.questions import QUESTIONS
from triforce_chat.lab.tasks.conversations import ABSENT_SHARE, ExampleBuilder
from triforce_chat.lab.tasks.facts import ABSENT_ANSWER, slots
from triforce_chat.lab.tasks.fillers import FILLERS
from triforce_chat.lab.tasks.reports import ASPECTS, SUBJECTS, reports
from triforce_chat.lab.tasks.wordings import ABSENT_REPLY
from triforce_chat.lab.training.everyday import everyday


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> ExampleBuilder:
    return builder_of(load(save_target(tmp_path_factory.mktemp("target"))))


def test_aspects_are_whole() -> None:
    for aspect in ASPECTS:
        assert len(aspect.sentences) == 3
        assert len(aspect.questions) >= 3
        for statement in aspect.sentences:
            assert aspect.answer in slots(statement)
            assert set(slots(statement)) <= {"it", *FILLERS}
        assert all(set(slots(question)) <= {"it"} for question in aspect.questions)
    asked = [question for aspect in ASPECTS for question in aspect.questions]
    assert len(set(asked)) == len(asked)
    assert len(set(SUBJECTS)) == len(SUBJECTS)


@pytest.mark.parametrize("seed", range(20))
def test_a_report_holds_its_answers_once(seed: int) -> None:
    made = list(reports(random.Random(seed), 1 + seed % 3))
    assert len({fact.question for report in made for fact in report.stated}) == sum(
        len(report.stated) for report in made
    )
    for report in made:
        text = "\n\n".join(report.paragraphs)
        assert "{" not in text
        assert len(report.stated) + len(report.absent) == len(ASPECTS)
        for fact in report.stated:
            assert text.count(fact.sentences[0]) == 1
            assert fact.answer in fact.sentences[0]
            assert fact.answer in fact.reply
            assert "{" not in fact.question
        answers = [fact.answer for fact in report.stated]
        assert len(set(answers)) == len(answers)
        assert {(fact.answer, fact.reply, fact.sentences) for fact in report.absent} == {
            (ABSENT_ANSWER, ABSENT_REPLY, ())
        }


def test_questions_name_their_subject_where_there_are_several() -> None:
    made = list(reports(random.Random(0), 4))
    subjects = [
        re.findall(rf"\bthe (?:{'|'.join(SUBJECTS)})\b", fact.question) for r in made for fact in r.stated
    ]
    assert all(subjects)
    alone = next(iter(reports(random.Random(0), 1)))
    assert any(not re.search("|".join(SUBJECTS), fact.question) for fact in alone.stated)


@pytest.mark.parametrize("seed", range(6))
def test_documents_with_reports_have_their_length_and_hold_what_is_asked(
    builder: ExampleBuilder, seed: int
) -> None:
    example = builder.with_reports(random.Random(seed), 6_000, 10)
    assert len(example.ids) == 6_000
    spoken = messages(spelled(builder.format, example.ids))
    said = [text for role, text in spoken if role == "assistant"]
    assert len(said) == len(example.answers) == 10
    assert said.count(ABSENT_REPLY) == round(10 * ABSENT_SHARE)
    document = next(text for role, text in spoken if role == "user")
    for reply in said:
        if reply != ABSENT_REPLY:
            answer = re.sub(r"^(the|an?) ", "", reply.removeprefix("The answer is ").removesuffix("."))
            assert answer in document


def test_reports_need_room(builder: ExampleBuilder) -> None:
    with pytest.raises(ValueError, match="do not hold"):
        builder.with_reports(random.Random(0), 700, 2)


def test_everyday_questions_are_not_those_of_the_evaluation() -> None:
    rng = random.Random(0)
    made = {everyday(rng) for _ in range(20_000)}
    assert len(made) > 1_000
    assert made.isdisjoint(question.text for question in QUESTIONS)
    assert not [question for question in made if "{" in question]
