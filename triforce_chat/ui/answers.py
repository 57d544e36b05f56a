"""Answers to several questions at once: a row for each while they run, and every answer, in order, once it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.engine.events import Prefilled
from triforce_chat.errors import TriforceError
from triforce_chat.ui import formatting, source_lines
from triforce_chat.ui.answer import fold
from triforce_chat.ui.clean import clean, one_line
from triforce_chat.ui.keyboard import keys_hidden
from triforce_chat.ui.markdown import RenderedMarkdown
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.terminal import Screen, print_line
from triforce_chat.ui.thoughts import STYLE as THOUGHT
from triforce_chat.ui.thoughts import FoldedThought

REDRAWS = 4  # per second
MOST_ROWS = 12  # questions that are shown at once

# Number of the question, what happened; nothing once the answer has ended.
Item = tuple[int | None, ChatEvent | TriforceError | None]
Heading = Callable[[int], object]
Each = Callable[[int, Tally, TriforceError | None], object]


class Answered(NamedTuple):
    """What became of a question."""

    tally: Tally
    error: TriforceError | None

    @property
    def whole(self) -> bool:
        """Whether it was not interrupted."""
        done = self.tally.finished
        return self.error is not None or (done is not None and done.reason != "interrupted")


class Answers:
    """Folds the events of several answers; passes each to ``whole`` when it and all before it have ended."""

    def __init__(self, questions: Sequence[str], whole: Each) -> None:
        self.questions, self.panels = questions, [EnginePanel("", 0) for _ in questions]
        self.thoughts = [FoldedThought(panel.tally) for panel in self.panels]
        self.reading: Prefilled | None = None  # of the documents
        self.errors: dict[int, TriforceError] = {}
        self._whole, self._ended, self._passed = whole, [False] * len(questions), 0

    def add(self, item: Item) -> None:
        """Fold one event."""
        number, event = item
        if number is None:
            self.reading = event if isinstance(event, Prefilled) else self.reading
        elif event is None:
            self._ended[number] = True
            self._pass_on()
        elif isinstance(event, TriforceError):
            self.errors[number] = event
        else:
            self.panels[number].add(event)
            self.thoughts[number].add(event)

    def interrupted(self) -> None:
        """Pass on what there is of every answer that has begun."""
        for number, panel in enumerate(self.panels):
            panel.interrupted()
            self.thoughts[number].fold()
            self._ended[number] = self._ended[number] or bool(panel.tally.token_ids)
        for number in range(self._passed, len(self.panels)):
            if self._ended[number]:
                self._tell(number)

    def _pass_on(self) -> None:
        while self._passed < len(self.panels) and self._ended[self._passed]:
            self._passed += 1
            self._tell(self._passed - 1)

    def _tell(self, number: int) -> None:
        self._whole(number, *self.made[number])

    @property
    def made(self) -> list[Answered]:
        """What became of each question so far."""
        return [Answered(panel.tally, self.errors.get(i)) for i, panel in enumerate(self.panels)]

    def __rich__(self) -> RenderableType:
        """A row for each question that is not answered yet, and a line of totals."""
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(no_wrap=True, justify="right")
        left = [number for number in range(self._passed, len(self.panels)) if not self._ended[number]]
        for number in left[:MOST_ROWS]:
            table.add_row(f"{number + 1}", Text(one_line(self.questions[number])), Text(self._state(number)))
        more = [Text(f"and {len(left) - MOST_ROWS:,} more", "dim")] if len(left) > MOST_ROWS else []
        return Group(table, *more, Text(formatting.SEPARATOR.join(self._totals()), "dim"))

    def _state(self, number: int) -> str:
        tally = self.panels[number].tally
        if tally.token_ids:
            accepted = [
                f"{formatting.percent(level.acceptance)} accepted"
                for _, level in formatting.levels_from_top(tally)[:1]
                if level.tested
            ]
            thinking = ["thinking"] if self.thoughts[number].is_open else []
            made = formatting.count(len(tally.token_ids), "token")
            return formatting.SEPARATOR.join([*thinking, made, *accepted])
        return "reading" if tally.prefill else "waiting"

    def _totals(self) -> list[str]:
        answered = f"{sum(self._ended):,} of {formatting.count(len(self.panels), 'question')} answered"
        read = self.reading
        if read and read.done < read.total:
            return [answered, f"reading: {formatting.percent(read.done / read.total)}"]
        tallies = [panel.tally for panel in self.panels]
        tokens, rounds = sum(len(each.token_ids) for each in tallies), sum(each.rounds for each in tallies)
        per_round = [f"{tokens / rounds:.1f} tokens per round"] if rounds else []
        return [answered, formatting.count(tokens, "token"), *per_round]


def show_answers(
    items: Iterator[Item], questions: Sequence[str], screen: Screen, heading: Heading | None = None
) -> list[Answered]:
    """Show the answers to questions; Ctrl-C ends all of them, and what there is of each is shown.

    ``heading`` prints what stands above an answer; None for the question, which is left out where only answers are
    wanted.
    """

    def show(number: int, tally: Tally, error: TriforceError | None) -> None:
        if error:
            print_line(screen.err, Text(f"{number + 1}. {one_line(f'{questions[number]}: {error}')}"))
            return
        above(number)
        _show(tally, answers.thoughts[number].line, screen)
        cut = formatting.cut_short(tally)
        if cut and screen.detail == "bare" and not screen.quiet:
            print_line(screen.err, Text(f"{number + 1}. {one_line(f'{questions[number]}: {cut}')}"))

    above = heading or partial(_question_above, questions, screen)
    answers = Answers(questions, show)
    with keys_hidden(), ExitStack() as shown:
        if screen.detail == "live":
            live = Live(answers, console=screen.out, refresh_per_second=REDRAWS, transient=True)
            shown.enter_context(live)
        fold(items, answers.add, answers.interrupted)
    return answers.made


def fold_answers(
    items: Iterator[Item], questions: Sequence[str], each: Callable[[Item], object], whole: Each
) -> list[Answered]:
    """Pass every item to ``each`` and every answer to ``whole``, in order; Ctrl-C works as in ``show_answers``."""
    answers = Answers(questions, whole)

    def add(item: Item) -> None:
        answers.add(item)
        each(item)

    fold(items, add, answers.interrupted)
    return answers.made


def _question_above(questions: Sequence[str], screen: Screen, number: int) -> None:
    if screen.detail != "bare":
        line = Text(f"{number + 1}. {one_line(questions[number])}", "bold")
        screen.out.print(line, soft_wrap=True)
    elif number:
        screen.out.file.write("\n")


def _show(tally: Tally, thought: str, screen: Screen) -> None:
    """Print one answer below the line that its thought left, with its figures and sources.

    Nothing but the answer is printed where only answers are wanted.
    """
    out, text = screen.out, clean(tally.text).strip()
    if screen.detail == "bare":
        out.file.write(text + "\n")
        out.file.flush()
        return
    if thought:
        out.print(Text(thought, THOUGHT), soft_wrap=True)
    out.print(RenderedMarkdown(text) if screen.detail == "live" else Text(text))
    for line, style in [
        ("; ".join(formatting.summary(tally)), "dim"),
        *source_lines.below_answer(tally.sourced),
    ]:
        out.print(Text(line, style), soft_wrap=True)
    out.print()
