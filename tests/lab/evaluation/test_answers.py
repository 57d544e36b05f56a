"""Questions about planted facts and short questions, answered by an engine over a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.labs import Lab, spell
from torch import Tensor

from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.lab.evaluation.answers import FACT_TOKENS, FactAnswer, Score, facts, replies, scores
from triforce_chat.lab.evaluation.questions import Question
from triforce_chat.lab.evaluation.tables import fact_tables
from triforce_chat.lab.evaluation.tasks import Case, TaskQuestion


def asked(suffix: list[int], answer: str, kind: str = "name", depth: float | None = 0.5) -> TaskQuestion:
    return TaskQuestion(depth, kind, suffix, "who?", answer)


def test_answers_are_the_models_own_and_graded(lab: Lab) -> None:
    prefix = lab.text(80)
    told = [spell(lab.greedy([*prefix, *suffix], FACT_TOKENS)) for suffix in ([3, 4], [5])]
    questions = [asked([3, 4], told[0]), asked([5], "somebody"), asked([5], "", "absent", None)]
    found = list(facts(lab.engine("lookup"), 80, [Case(prefix, questions)], Sampling(), ()))
    assert [each.said for each in found] == [told[0], told[1], told[1]]
    assert [each.right for each in found] == [True, False, False]
    assert [(each.context, each.document, each.depth, each.kind) for each in found] == [
        (80, 0, 0.5, "name"),
        (80, 0, 0.5, "name"),
        (80, 0, None, "absent"),
    ]


def test_a_document_is_read_once_for_all_its_questions(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    engine = lab.engine("autoregressive")
    plain = engine.target.prefill

    def counted(ids: Tensor, cache: Any) -> None:
        fed.append(len(ids))
        plain(ids, cache)

    monkeypatch.setattr(engine.target, "prefill", counted)
    first, second = lab.text(80), lab.text(70, seed=9)
    second[0] = (first[0] + 1) % 48
    cases = [Case(prefix, [asked([7, i, 9], "x") for i in range(3)]) for prefix in (first, second)]
    list(facts(engine, 80, cases, Sampling(), ()))
    assert sum(fed) == 80 + 70 + 2 + 2 + 4 * 1  # suffixes but for their last token; "7" is shared as well


def test_a_denial_is_told_from_another_error(lab: Lab) -> None:
    engine = lab.engine("autoregressive")
    engine.decode = lambda ids: "That is not mentioned." if ids else ""
    cases = [Case(lab.text(30), [asked([3], "Rome"), asked([3], "not in the document", "absent", None)])]
    found = list(facts(engine, 30, cases, Sampling(), ()))
    assert [(each.right, each.denied) for each in found] == [(False, True), (True, True)]


class Letters:
    """Stands for a chat format whose only message is its text."""

    stop = ("zzz",)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 48 for letter in text]

    def render(self, messages: Sequence[Any]) -> list[int]:
        return [1, *messages[0].content]


def test_short_questions_are_asked_one_by_one(lab: Lab) -> None:
    form: Any = Letters()
    expected = spell(lab.greedy([1, *form.encode("what?")], 64))
    questions = [Question("what?", (expected,)), Question("who?", ("nobody",))]
    found = list(replies(lab.engine("lookup"), "tiny", form, questions, Sampling()))
    assert [(each.model, each.question, each.right) for each in found] == [
        ("tiny", "what?", True),
        ("tiny", "who?", False),
    ]
    assert found[0].said == expected


def test_right_answers_are_counted_by_what_is_asked_for() -> None:
    def one(context: int, depth: float | None, right: bool) -> FactAnswer:
        kind = "absent" if depth is None else "name"
        return FactAnswer(context, 0, depth, kind, "", "", "", right, False)

    found = [one(8, 0.0, True), one(8, 0.0, False), one(8, None, True), one(32, 0.5, True)]
    assert scores(found, lambda each: (each.context, each.depth)) == {
        (8, 0.0): Score(1, 2),
        (8, None): Score(1, 1),
        (32, 0.5): Score(1, 1),
    }
    by_depth, by_kind = fact_tables(found)
    assert [list(column.cells) for column in by_depth.columns] == [["0%", "50%"], ["1/2", ""], ["", "1/1"]]
    assert [list(column.cells) for column in by_kind.columns] == [
        ["name", "absent"],
        ["1/2", "1/1"],
        ["1/1", ""],
    ]
