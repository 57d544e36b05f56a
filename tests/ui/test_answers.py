"""Several answers on the screen: rows while they run, whole answers in the order of the questions."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console
from support.consoles import written

from triforce_chat.chat.events import Tally
from triforce_chat.engine.events import Finished, Prefilled, Text, Verified
from triforce_chat.errors import DoesNotFit
from triforce_chat.ui.answers import MOST_ROWS, Answers, Item, show_answers
from triforce_chat.ui.terminal import Detail, Screen

QUESTIONS = ["Who?", "Why, with\na line end?", "Where?"]


def ended(number: int, text: str, reason: str = "stop") -> list[Item]:
    made = Text(tuple(range(len(text))), text)
    done = Finished(reason, 10, 4, len(text), 0.1, 0.2, 0.3)  # type: ignore[arg-type]
    return [(number, Verified("target", 3, 2)), (number, made), (number, done), (number, None)]


def screen_of(detail: Detail) -> Screen:
    out, err = (Console(file=io.StringIO(), width=60) for _ in range(2))
    return Screen(out, err, detail)


def rows_of(answers: Answers) -> list[str]:
    console = Console(file=io.StringIO(), width=60)
    console.print(answers)
    return [" ".join(line.split()) for line in written(console).splitlines()]


def test_answers_come_in_the_order_of_the_questions() -> None:
    passed: list[tuple[int, str]] = []
    answers = Answers(QUESTIONS, lambda number, tally, _error: passed.append((number, tally.text)))
    for item in [*ended(2, "there"), *ended(0, "they")]:
        answers.add(item)
    assert passed == [(0, "they")]
    for item in ended(1, "because"):
        answers.add(item)
    assert passed == [(0, "they"), (1, "because"), (2, "there")]


def test_a_row_for_each_running_answer_and_totals() -> None:
    answers = Answers(QUESTIONS, lambda *_: None)
    answers.add((None, Prefilled(30, 120, 0, 0.1)))
    assert rows_of(answers)[-1] == "0 of 3 questions answered · reading: 25 %"
    answers.add((None, Prefilled(120, 120, 0, 0.1)))
    for item in [*ended(0, "they"), (1, Prefilled(1, 9, 0, 0.0)), *ended(2, "there")[:2]]:
        answers.add(item)
    assert rows_of(answers) == [
        *("2 Why, with a line end? reading", "3 Where? 5 tokens · 67 % accepted"),
        "1 of 3 questions answered · 9 tokens · 4.5 tokens per round",
    ]


def test_many_questions_do_not_fill_the_screen() -> None:
    answers = Answers(["Who?"] * 40, lambda *_: None)
    rows = rows_of(answers)
    assert rows[MOST_ROWS] == "and 28 more"
    assert rows[0] == "1 Who? waiting"


def test_what_is_printed() -> None:
    items = [*ended(1, "because"), *ended(0, "\x1b[31mthey "), *ended(2, "there")]
    bare, plain = screen_of("bare"), screen_of("plain")
    for screen in (bare, plain):
        show_answers(iter(items), QUESTIONS, screen)
    assert written(bare.out) == "they\n\nbecause\n\nthere\n"
    lines = written(plain.out).splitlines()
    assert lines[:2] == ["1. Who?", "they"]
    assert "2. Why, with a line end?" in lines


@pytest.mark.parametrize("quiet", [False, True])
def test_a_pipe_gets_the_answers_and_standard_error_which_were_cut_short(quiet: bool) -> None:
    out, err = (Console(file=io.StringIO(), width=60) for _ in range(2))
    items = [*ended(1, "because", "length"), *ended(0, "they"), *ended(2, "there", "repetition")]
    show_answers(iter(items), QUESTIONS, Screen.of(out, err, quiet=quiet))
    assert written(out) == "they\n\nbecause\n\nthere\n"
    cut = [
        "2. Why, with a line end?: stopped at the limit of 7 tokens",
        "3. Where?: stopped after 5 tokens because the answer repeats itself",
    ]
    assert written(err).splitlines() == ([] if quiet else cut)


def test_an_interrupt_keeps_what_there_is() -> None:
    passed: list[tuple[int, str, str]] = []

    def whole(number: int, tally: Tally, _error: object) -> None:
        assert tally.finished is not None
        passed.append((number, tally.text, tally.finished.reason))

    def items() -> Iterator[Item]:
        yield from [*ended(1, "because"), *ended(0, "they"), *ended(2, "there")[:2]]

    answers = Answers(QUESTIONS, whole)
    for item in items():
        answers.add(item)
    answers.interrupted()
    assert passed == [(0, "they", "stop"), (1, "because", "stop"), (2, "there", "interrupted")]


def test_an_error_is_said_in_the_place_of_its_answer() -> None:
    failed: list[Item] = [(1, DoesNotFit("9 tokens do not fit")), (1, None)]
    plain = screen_of("plain")
    first, second, third = show_answers(
        iter([*failed, *ended(2, "there"), *ended(0, "they")]), QUESTIONS, plain
    )
    assert (first.error, third.error) == (None, None)
    assert isinstance(second.error, DoesNotFit)
    assert first.whole
    assert second.whole
    assert third.whole
    assert written(plain.err) == "2. Why, with a line end?: 9 tokens do not fit\n"
    assert "2. Why" not in written(plain.out)
    assert "3. Where?" in written(plain.out).splitlines()


def test_an_answer_without_an_end_is_not_whole() -> None:
    (only,) = show_answers(iter([]), QUESTIONS[:1], screen_of("bare"))
    assert not only.whole
