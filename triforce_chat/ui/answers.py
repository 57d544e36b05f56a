"""Answers to several questions at once: a row for each while they run, and every answer, in order, once it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.engine.events import Prefilled
from triforce_chat.ui import formatting, source_lines
from triforce_chat.ui.answer import until_interrupted
from triforce_chat.ui.clean import clean, one_line
from triforce_chat.ui.keyboard import keys_hidden
from triforce_chat.ui.markdown import RenderedMarkdown
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.terminal import Interrupt, Screen

REDRAWS = 4  # per second
MOST_ROWS = 12  # questions that are shown at once

Item = tuple[
    int | None, ChatEvent | None
]  # number of the question, event; no event once the answer has ended
Each = Callable[[int, Tally], object]


class Answers:
    """Folds the events of several answers; passes each to ``whole`` when it and all before it have ended."""

    def __init__(self, questions: Sequence[str], whole: Each) -> None:
        self.questions, self.panels = questions, [EnginePanel("", 0) for _ in questions]
        self.reading: Prefilled | None = None  # of the documents
        self._whole, self._ended, self._passed = whole, [False] * len(questions), 0

    def add(self, item: Item) -> None:
        """Fold one event."""
        number, event = item
        if number is None:
            self.reading = event if isinstance(event, Prefilled) else self.reading
        elif event is None:
            self._ended[number] = True
            self._pass_on()
        else:
            self.panels[number].add(event)

    def interrupted(self) -> None:
        """Pass on what there is of every answer that has begun."""
        for number, panel in enumerate(self.panels):
            panel.interrupted()
            self._ended[number] = self._ended[number] or bool(panel.tally.token_ids)
        for number in range(self._passed, len(self.panels)):
            if self._ended[number]:
                self._whole(number, self.panels[number].tally)

    def _pass_on(self) -> None:
        while self._passed < len(self.panels) and self._ended[self._passed]:
            self._passed += 1
            self._whole(self._passed - 1, self.panels[self._passed - 1].tally)

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
            return formatting.SEPARATOR.join([formatting.count(len(tally.token_ids), "token"), *accepted])
        return "reading" if tally.prefill else "waiting"

    def _totals(self) -> list[str]:
        answered = f"{sum(self._ended):,} of {formatting.count(len(self.panels), 'question')} answered"
        read = self.reading
        if read and read.done < read.total:
            return [answered, f"reading: {formatting.percent(read.done / read.total)}"]
        tallies = [panel.tally for panel in self.panels]
        tokens, rounds = sum(len(each.token_ids) for each in tallies), sum(each.rounds for each in tallies)
        per_round = [f"{tokens / rounds:.1f} tokens/round"] if rounds else []
        return [answered, formatting.count(tokens, "token"), *per_round]


def show_answers(items: Iterator[Item], questions: Sequence[str], screen: Screen) -> list[Tally]:
    """Show the answers to questions; Ctrl-C ends all of them, and what there is of each is shown."""

    def show(number: int, tally: Tally) -> None:
        _show(number, questions[number], tally, screen)

    answers = Answers(questions, show)
    with keys_hidden(), ExitStack() as shown:
        if screen.detail == "live":
            live = Live(answers, console=screen.out, refresh_per_second=REDRAWS, transient=True)
            shown.enter_context(live)
        _fold(items, answers)
    return [panel.tally for panel in answers.panels]


def fold_answers(
    items: Iterator[Item], questions: Sequence[str], each: Callable[[Item], object], whole: Each
) -> list[Tally]:
    """Pass every item to ``each`` and every answer to ``whole``, in order; Ctrl-C works as in ``show_answers``."""
    answers = Answers(questions, whole)
    _fold(items, answers, each)
    return [panel.tally for panel in answers.panels]


def _fold(
    items: Iterator[Item], answers: Answers, each: Callable[[Item], object] = lambda _item: None
) -> None:
    with Interrupt() as interrupt:
        with closing(until_interrupted(interrupt, items)) as given:
            for item in given:
                answers.add(item)
                each(item)
        if interrupt.requested:
            answers.interrupted()


def _show(number: int, question: str, tally: Tally, screen: Screen) -> None:
    """Print one answer with its question, or by itself where only answers are wanted."""
    out, text = screen.out, clean(tally.text).strip()
    if screen.detail == "bare":
        out.file.write(("\n" if number else "") + text + "\n")
        out.file.flush()
        return
    out.print(Text(f"{number + 1}. {one_line(question)}", "bold"), soft_wrap=True)
    out.print(RenderedMarkdown(text) if screen.detail == "live" else Text(text))
    for line, style in [
        ("; ".join(formatting.summary(tally)), "dim"),
        *source_lines.below_answer(tally.sourced),
    ]:
        out.print(Text(line, style), soft_wrap=True)
    out.print()
