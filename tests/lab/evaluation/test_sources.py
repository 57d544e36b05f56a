"""Excerpts of even pages with facts on random ones, and how naming them is scored."""

from __future__ import annotations

import random
from typing import Any

import pytest

from triforce_chat.documents import Document, Page
from triforce_chat.errors import DoesNotFit
from triforce_chat.lab.evaluation.sources import Plan, Score, SourceCheck, cases, excerpt, plant, scores
from triforce_chat.lab.tasks.facts import SINGLE, facts_of

WORDS = 20  # of a paragraph
TEXT = Document("Tale", "", (Page(1, "\n\n".join(f"{n} {'word ' * (WORDS - 1)}" for n in range(400))),))


def count(text: str) -> int:
    return len(text.split())


def test_pages_of_even_size() -> None:
    pages = excerpt(random.Random(1), TEXT, count, 6, 70)
    assert len(pages) == 6
    assert all(3 <= len(page) <= 4 for page in pages)  # 60 or 80 words
    assert 6 * 70 <= sum(count(part) for page in pages for part in page) < 6 * 70 + WORDS
    numbers = [int(part.split()[0]) for page in pages for part in page]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_text_that_is_too_short() -> None:
    with pytest.raises(DoesNotFit, match="Tale is too short for 200 pages of 70 tokens"):
        excerpt(random.Random(1), TEXT, count, 200, 70)


def test_facts_stand_on_their_pages_and_nowhere_else() -> None:
    facts = facts_of(random.Random(2), SINGLE * 2, "test")
    case = plant(random.Random(3), TEXT, excerpt(random.Random(1), TEXT, count, 6, 70), facts)
    assert [fact for fact, _ in case.planted] == facts
    assert len({page for _, page in case.planted}) > 2
    for fact, number in case.planted:
        assert [page.number for page in case.document.pages if fact.sentences[0] in page.text] == [number]


def test_cases_are_the_same_again_and_differ_from_each_other() -> None:
    plan = Plan([600], 4, 5, 70, seed=1)
    first, again = cases([TEXT], count, 600, plan), cases([TEXT], count, 600, plan)
    assert first == again
    assert len({case.document.text for case in first}) == 4
    assert [fact.kind for fact, _ in first[1].planted] == [*SINGLE[1:], SINGLE[0]]
    assert cases([TEXT], count, 600, Plan([600], 4, 5, 70, seed=2)) != first


def answer(
    page: int, *named: int, right: bool = True, kind: str = "name", sentence: bool = False
) -> SourceCheck:
    return SourceCheck(600, "Tale", 10, kind, "?", "x", "x", right, page, named, sentence, 0.5)


def test_only_right_answers_count() -> None:
    found = [
        answer(4, 4, 1, 2, sentence=True),
        answer(4, 1, 2, 4),
        answer(4, 1, 2, 3, 4),
        answer(4, 1, 2, 3),
        answer(4, 4, right=False, sentence=True),
    ]
    assert [each.rank for each in found] == [1, 3, 4, None, 1]
    score = Score.of(found)
    chance: Any = pytest.approx(0.3)
    assert score == Score(5, 4, 1, 2, chance, 1, 0.5)
    assert score.record()["named_of_right"] == 0.5
    assert Score.of([answer(1, 1, right=False)]).record()["named_of_right"] is None


def test_scores_by_group() -> None:
    found = scores([answer(1, 1), answer(2, 1, kind="date")], lambda each: (each.context, each.kind))
    assert {key: score.named for key, score in found.items()} == {(600, "name"): 1, (600, "date"): 0}
