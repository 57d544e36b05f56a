"""Showing one answer: consume its events, stop at Ctrl-C, return the tally."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Protocol, Self, TypeVar

from rich.text import Text

from triforce_chat.chat.conversation import Turn
from triforce_chat.chat.events import ChatEvent, Tally
from triforce_chat.engine.events import Calibrated, Finished, Prefilled
from triforce_chat.engine.events import Text as TextEvent
from triforce_chat.ui import formatting, source_lines
from triforce_chat.ui.clean import Cleaner, clean
from triforce_chat.ui.keyboard import keys_hidden
from triforce_chat.ui.markdown import RenderedMarkdown, unsettled_part
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.stream import MarkdownTail
from triforce_chat.ui.terminal import Detail, Interrupt, Screen, print_line
from triforce_chat.ui.thoughts import STYLE as THOUGHT
from triforce_chat.ui.thoughts import FoldedThought

Item = TypeVar("Item")
QUESTION_LINES, QUESTION_CHARACTERS = (
    5,
    1000,
)  # shown of a question that was asked before, which may be a long paste
SENTENCE_END = re.compile(r"[.!?…:;]\s|\n|[。！？]")  # or the end of a line


class View(Protocol):
    """A form in which an answer is shown; used as a context manager."""

    panel: EnginePanel

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def resume_from(self, previous: str) -> None:
        """Prepare for an answer that continues ``previous``; called before the first event is added."""
        ...

    def add(self, event: ChatEvent) -> None:
        """Show one event."""
        ...


class BareView:
    """The text of the answer and a final line end, without escape codes; on ``err``, if it was cut short."""

    def __init__(self, screen: Screen, panel: EnginePanel) -> None:
        self.panel = panel
        self._screen, self._cleaner = screen, Cleaner()
        self._open = False  # the cursor is on a line that has no end yet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._write(self._cleaner.rest())
        if self._open:
            self._write("\n")
        for line in self._below():
            self._remark(line)

    def resume_from(self, previous: str) -> None:
        """Nothing to do: the previous text is above already."""

    def add(self, event: ChatEvent) -> None:
        self.panel.add(event)
        if isinstance(event, TextEvent):
            self._write(self._cleaner.feed(event.text))
        self._open = self._open or (isinstance(event, Finished) and not self.panel.tally.text)

    def _below(self) -> list[str]:
        """Lines about the answer."""
        return [] if self._screen.quiet else [formatting.cut_short(self.panel.tally)]

    def _remark(self, line: str) -> None:
        if line:
            print_line(self._screen.err, Text(line))

    def _write(self, text: str) -> None:
        if text:
            self._open = not text.endswith("\n")
            self._screen.out.file.write(text)
            self._screen.out.file.flush()


class PlainView(BareView):
    """The text of the answer sentence by sentence, with lines about a long prefill and about the answer."""

    def __init__(self, screen: Screen, panel: EnginePanel) -> None:
        super().__init__(screen, panel)
        self._quarters, self._held = formatting.QuarterProgress(), ""
        self._thought = FoldedThought(panel.tally)

    def __exit__(self, *error: object) -> None:
        self._remark(self._thought.fold())
        self._write(self._cleaner.rest())
        super()._write(self._held)
        self._held = ""
        super().__exit__(*error)

    def _below(self) -> list[str]:
        tally = self.panel.tally
        sources = [line for line, _ in source_lines.below_answer(tally.sourced)]
        return ["; ".join(formatting.summary(tally)), *sources]

    def add(self, event: ChatEvent) -> None:
        was_open = self._thought.is_open
        super().add(event)
        self._remark(self._thought.add(event))
        if self._thought.is_open and not was_open:
            self._remark("thinking")
        if isinstance(event, Prefilled):
            new, total = event.done - event.cached, event.total - event.cached
            if percent := self._quarters.reached(new, total):
                self._remark(
                    f"reading: {percent} %, {event.done:,} of {formatting.count(event.total, 'token')}"
                )

        elif isinstance(event, Calibrated) and not event.done:
            self._remark(formatting.MEASURING)

    def _write(self, text: str) -> None:
        text = self._held + text
        end = max((found.end() for found in SENTENCE_END.finditer(text)), default=0)
        self._held = text[end:]
        super()._write(text[:end])


class LiveView:
    """Markdown with the engine's panel below; at the end a line of figures replaces the panel."""

    def __init__(self, screen: Screen, panel: EnginePanel) -> None:
        self.panel = panel
        self._out, self._cleaner = screen.out, Cleaner()
        self._thought = FoldedThought(panel.tally, panel)
        self._tail = MarkdownTail(screen.out, self._thought)

    def __enter__(self) -> Self:
        self._tail.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._remark(self._thought.fold())
            self._tail.write(self._cleaner.rest())
        finally:
            self._tail.__exit__(*error)
        line = formatting.fit_line(formatting.summary(self.panel.tally), self._out.width)
        if line:
            print_line(self._out, Text(line, "dim"))
        for line, style in source_lines.below_answer(self.panel.tally.sourced):
            print_line(self._out, Text(line, style))

    def resume_from(self, previous: str) -> None:
        """Show the last block again, because Markdown is parsed from the beginning of a block."""
        self._tail.write(unsettled_part(clean(previous)))

    def add(self, event: ChatEvent) -> None:
        self.panel.add(event)
        self._remark(self._thought.add(event))
        if isinstance(event, TextEvent):
            self._tail.write(self._cleaner.feed(event.text))

    def _remark(self, line: str) -> None:
        if line:
            self._tail.remark(Text(line, THOUGHT))


VIEWS: Mapping[Detail, Callable[[Screen, EnginePanel], View]] = {
    "live": LiveView,
    "plain": PlainView,
    "bare": BareView,
}


def show_answer(
    events: Iterator[ChatEvent],
    screen: Screen,
    *,
    title: str = "",
    limit: int = 0,
    most: int = 0,
    previous: str = "",
) -> Tally:
    """Show the events of one answer and return their tally.

    ``title`` (the stack), ``limit`` (tokens of the context) and ``most`` (of the answer) are for the panel;
    ``previous`` is the text that the answer continues.

    Ctrl-C closes ``events`` and ends the tally with ``Finished("interrupted", ...)``; a second
    Ctrl-C raises ``Leave``.
    """
    view = VIEWS[screen.detail](screen, EnginePanel(title, limit, most=most))
    with keys_hidden(), Interrupt(partial(_stopping, view.panel)) as interrupt, view:
        with closing(until_interrupted(interrupt, events)) as answer:
            for n, event in enumerate(answer):
                if not n:  # only now is it certain that there is an answer
                    view.resume_from(previous)
                view.add(event)
        if interrupt.requested:
            view.panel.interrupted()
    return view.panel.tally


def show_turn(turn: Turn, screen: Screen) -> None:
    """Show a question that was answered before, with its answer."""
    if screen.detail == "bare":
        return
    question = formatting.beginning(clean(turn.question), QUESTION_LINES, QUESTION_CHARACTERS)
    print_line(screen.out, Text(f"> {question}", "bold"))
    text = clean(turn.answer).strip()
    screen.out.print(RenderedMarkdown(text) if screen.detail == "live" else Text(text))
    if screen.detail == "live":
        screen.out.print()


def fold_answer(events: Iterator[ChatEvent], each: Callable[[ChatEvent], object]) -> Tally:
    """Pass every event to ``each`` and return their tally; Ctrl-C works as in ``show_answer``."""
    panel = EnginePanel("", 0)

    def add(event: ChatEvent) -> None:
        panel.add(event)
        each(event)

    fold(events, add, panel.interrupted)
    return panel.tally


def fold(items: Iterator[Item], add: Callable[[Item], object], interrupted: Callable[[], object]) -> None:
    """Pass every item to ``add``; Ctrl-C closes ``items``, and then ``interrupted`` is called."""
    with Interrupt() as interrupt:
        with closing(until_interrupted(interrupt, items)) as given:
            for item in given:
                add(item)
        if interrupt.requested:
            interrupted()


def _stopping(panel: EnginePanel) -> None:
    panel.stopping = True


def until_interrupted(interrupt: Interrupt, items: Iterator[Item]) -> Generator[Item]:
    """The items up to an interrupt; the source is always closed, so that it keeps what it made."""
    try:
        for item in items:
            yield item
            if interrupt.requested:
                return
    finally:
        if isinstance(items, Generator):
            items.close()
