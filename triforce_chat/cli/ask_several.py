"""``ask --questions``: many questions about the same documents, answered at once, with and without speculation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from triforce_chat.cli.ask import opened
from triforce_chat.cli.ending import end
from triforce_chat.cli.output import print_json, print_line
from triforce_chat.cli.run_info import planned
from triforce_chat.errors import ExactnessError, Interrupted, TriforceError
from triforce_chat.settings.options import Options

if TYPE_CHECKING:
    from triforce_chat.chat.events import Comparison, Side, Tally
    from triforce_chat.chat.session import ChatSession
    from triforce_chat.chat.together import Item
    from triforce_chat.ui.answers import Answered
    from triforce_chat.ui.terminal import Screen


def answer_several(
    documents: list[str],
    path: Path,
    parallel: int,
    options: Options,
    compare: bool,
    schema: dict[str, Any] | None,
) -> None:
    """Answer all questions of a file, each by itself; answers come in the order of the questions.

    What goes wrong with one question is said in its place, and ends the command once the others are answered.
    """
    from triforce_chat.batch.books import read_lines
    from triforce_chat.chat.records import answer_object
    from triforce_chat.chat.together import ask_all

    questions = read_lines(path)
    session, options, screen, run_info = opened(documents, options, min(parallel, len(questions)))
    session.schema = schema
    asked = [(session, question) for question in questions]
    as_json = options.json or options.jsonl
    if compare:
        compare_several(session, questions, parallel, options, screen, lambda: planned(run_info, session))
        return

    def print_answer(number: int, tally: Tally, error: TriforceError | None) -> None:
        if options.json:
            made = answer_object(tally, planned(run_info, session), error)
            print_json({"question": questions[number], **made})

    items = ask_all(asked, parallel, as_json or screen.detail != "bare")
    end(answered(items, questions, options, screen, print_answer), as_schema=schema is not None)


def answered(
    items: Iterator[Item],
    questions: Sequence[str],
    options: Options,
    screen: Screen,
    print_answer: Callable[[int, Tally, TriforceError | None], object],
    side: Side = "speculative",
) -> list[Answered]:
    """Show the answers, or print their events or records."""
    from triforce_chat.chat.records import event_object, failure_object
    from triforce_chat.ui.answers import fold_answers, show_answers

    def print_event(item: Item) -> None:
        number, event = item
        if isinstance(event, TriforceError):
            if options.jsonl:
                print_json({**failure_object(event, side), "question": number})
        elif options.jsonl and event is not None:
            print_json({**event_object(event, side), "question": number})

    if options.json or options.jsonl:
        return fold_answers(items, questions, print_event, print_answer)
    return show_answers(items, questions, screen)


def compare_several(
    session: ChatSession,
    questions: Sequence[str],
    parallel: int,
    options: Options,
    screen: Screen,
    run_info: Callable[[], Any],
) -> None:
    """Answer all questions with speculation and then without. Raises ExactnessError."""
    from triforce_chat.chat.records import answer_object, comparison_object
    from triforce_chat.chat.together import ask_all, compared

    asked = [(session, question) for question in questions]
    times = []
    made: list[list[Answered]] = []
    sides: tuple[Side, Side] = ("speculative", "autoregressive")
    for side in sides:
        if not (options.json or options.jsonl):
            print_line(screen.out, "without speculation:" if made else "with speculation:")
        watch = Stopwatch(ask_all(asked, parallel, sources=False, plain=bool(made)))
        made.append(answered(iter(watch), questions, options, screen, lambda *_: None, side))
        times.append(watch.seconds)
        if not all(each.whole for each in made[-1]):
            raise typer.Exit(Interrupted.exit_code)
    results: list[Comparison] = []
    for question, fast, plain in zip(questions, *made, strict=True):
        error = fast.error or plain.error
        if error is None:
            results.append(compared(session, question, fast.tally, plain.tally))
        if options.json:
            about = run_info()
            record = (
                answer_object(fast.tally, about, error) if error else comparison_object(results[-1], about)
            )
            print_json({"question": question, **record})
    if not (options.json or options.jsonl):
        print_line(screen.out, total(results, *times))
    if mismatches := sum(each.mismatches for each in results):
        raise ExactnessError(f"{mismatches} tokens differ from plain decoding beyond rounding")
    end(made[0], as_schema=session.schema is not None)


class Stopwatch:
    """Passes items on and measures from the first one of a question to the last."""

    def __init__(self, items: Iterator[Item]) -> None:
        self.items, self.seconds = items, 0.0

    def __iter__(self) -> Iterator[Item]:
        began: float | None = None
        for item in self.items:
            if began is None and item[0] is not None:
                began = time.perf_counter()
            yield item
        self.seconds = 0.0 if began is None else time.perf_counter() - began


def total(results: Sequence[Comparison], fast_s: float, plain_s: float) -> str:
    """One line about all questions: seconds of both sides, and how many answers are the same."""
    same = sum(each.identical for each in results)
    times = f"{fast_s:.1f} s with speculation, {plain_s:.1f} s without"
    speedup = f": {plain_s / fast_s:.2f}x" if fast_s else ""
    return f"all answers: {times}{speedup}; {same:,} of {len(results):,} have the same tokens"
