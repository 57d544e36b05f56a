"""Thoughts on the screen: folded away, dimmed while they are made, and whole when asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NoReturn

import pytest
from rich.console import Console
from support.consoles import written
from support.fakes import ScriptedConversation, answer_events, tally_of

from triforce_chat.chat.conversation import Turn
from triforce_chat.chat.events import ChatEvent
from triforce_chat.engine.events import Text
from triforce_chat.errors import UsageError
from triforce_chat.ui.answer import show_answer
from triforce_chat.ui.answers import Answers, Item, show_answers
from triforce_chat.ui.command_table import Surroundings
from triforce_chat.ui.commands import Commands
from triforce_chat.ui.compare import Columns, show_comparison
from triforce_chat.ui.panel import EnginePanel
from triforce_chat.ui.terminal import Detail, Screen
from triforce_chat.ui.thoughts import FoldedThought

LINES = [f"Thought {number}." for number in range(1, 7)]
CONTROL = "\x1b[2J"  # clears a terminal


def screen(detail: Detail) -> Screen:
    live = detail == "live"
    out = Console(
        file=io.StringIO(),
        width=60,
        height=24,
        force_terminal=live,
        color_system="standard" if live else None,
    )
    return Screen(out, Console(file=io.StringIO(), width=60), detail)


def no_document(_path: str, _pages: str | None) -> NoReturn:
    pytest.fail("reads a document")


def thinking_events() -> list[ChatEvent]:
    """The events of an answer, with a thought in front of its first text."""
    events = answer_events("The harbour.")
    at = next(n for n, event in enumerate(events) if isinstance(event, Text))
    thought = [Text((9, 9), "", f"{line}\n", 2) for line in LINES]
    return [*events[:at], *thought, *events[at:]]


def test_only_the_answer_is_bare() -> None:
    bare = screen("bare")
    show_answer(iter(thinking_events()), bare)
    assert written(bare.out) == "The harbour.\n"
    assert written(bare.err) == ""


def test_plain_says_that_the_model_thinks_and_for_how_long() -> None:
    plain = screen("plain")
    show_answer(iter(thinking_events()), plain)
    assert written(plain.out) == "The harbour.\n"
    lines = written(plain.err).splitlines()
    at = lines.index("thinking")
    assert lines[at + 1].startswith("thought for 12 tokens, 0.")
    assert not any(line in written(plain.err) for line in LINES)


def test_a_line_replaces_the_thought_on_the_live_screen() -> None:
    live = screen("live")
    show_answer(iter(thinking_events()), live)
    shown = written(live.out)
    assert "\x1b[2mthought for 12 tokens, 0." in shown
    assert shown.index("thought for 12 tokens") < shown.rindex("The harbour.")


def test_the_last_lines_of_a_thought_are_dimmed_above_the_panel() -> None:
    panel, console = EnginePanel("", 0), Console(width=60, color_system="standard", force_terminal=True)
    folded = FoldedThought(panel.tally, "the panel")
    for event in thinking_events():
        panel.add(event)
        folded.add(event)
        if len(panel.tally.token_ids) == 2 * len(LINES):
            break
    lines = console.render_lines(folded, pad=False)
    texts = ["".join(part.text for part in line).strip() for line in lines]
    assert [text for text in texts if text] == [*LINES[-2:], "the panel"]
    assert all(part.style and part.style.dim for line in lines[:2] for part in line if part.text.strip())
    for event in thinking_events()[-2:]:
        panel.add(event)
        folded.add(event)
    assert "Thought" not in "".join(part.text for line in console.render_lines(folded) for part in line)


def test_the_first_words_of_the_answer_fold_the_thought() -> None:
    panel = EnginePanel("", 0)
    folded = FoldedThought(panel.tally)
    for event in thinking_events():
        assert not folded.line
        panel.add(event)
        folded.add(event)
        if isinstance(event, Text) and event.text:
            break
    assert folded.line.startswith("thought for 12 tokens, ")
    assert not folded.is_open


def test_a_thought_sends_nothing_to_the_terminal() -> None:
    panel = EnginePanel("", 0)
    folded, console = FoldedThought(panel.tally), Console(file=io.StringIO(), width=60)
    event = Text((9,), "", f"A {CONTROL}lamp.", 1)
    panel.add(event)
    folded.add(event)
    console.print(folded)
    assert "lamp." in written(console)
    assert CONTROL not in written(console)
    notes, conversation = screen("plain"), ScriptedConversation()
    conversation._turns.append(Turn("Where?", "", panel.tally))
    Commands(conversation, no_document, notes, lambda *_: None, Surroundings()).run("/thought")
    assert "lamp." in written(notes.out)
    assert CONTROL not in written(notes.out)


def test_a_thought_that_was_cut_is_folded_too() -> None:
    plain = screen("plain")
    events = [event for event in thinking_events() if not (isinstance(event, Text) and event.text)]
    show_answer(iter(events), plain)
    assert "thought for 12 tokens" in written(plain.err)


def test_an_answer_that_is_stopped_while_it_thinks_leaves_the_line() -> None:
    cut = next(n for n, event in enumerate(thinking_events()) if isinstance(event, Text)) + 3
    places: tuple[tuple[Detail, str], ...] = (("live", "out"), ("plain", "err"))
    for detail, where in places:
        shown = screen(detail)
        show_answer(iter(thinking_events()[:cut]), shown)
        assert written(getattr(shown, where)).count("thought for 6 tokens") == 1


def columns_at(count: int) -> Columns:
    """A comparison after ``count`` events of one of its sides."""
    columns = Columns(0)
    for event in thinking_events()[:count]:
        columns.add("speculative", event)
    return columns


def test_a_comparison_folds_its_thoughts() -> None:
    console = Console(width=100, height=30, color_system="standard", force_terminal=True)
    begun = next(n for n, event in enumerate(thinking_events()) if isinstance(event, Text))
    thinking = console.render_lines(columns_at(begun + len(LINES)), pad=False)
    texts = [part.text.strip() for line in thinking for part in line if part.style and part.style.dim]
    assert [text for text in texts if text.startswith("Thought")] == LINES[-2:]
    columns = columns_at(len(thinking_events()))
    lines = ["".join(part.text for part in line) for line in console.render_lines(columns, pad=False)]
    at = next(n for n, line in enumerate(lines) if "thought for 12 tokens, " in line)
    assert "The harbour." in lines[at + 1]
    assert "Thought 6." not in "".join(lines)


def test_a_stopped_comparison_folds_the_thought_that_it_stopped() -> None:
    live = screen("live")
    cut = next(n for n, event in enumerate(thinking_events()) if isinstance(event, Text)) + 3
    show_comparison((("speculative", event) for event in thinking_events()[:cut]), live)
    last = written(live.out)[written(live.out).rindex("with speculation") :]
    assert "thought for 6 tokens" in last
    assert "Thought" not in last


def several(events: Sequence[ChatEvent]) -> list[Item]:
    return [*((0, event) for event in events), (0, None)]


def test_each_of_several_answers_stands_below_its_folded_thought() -> None:
    details: tuple[Detail, ...] = ("live", "plain")
    for detail in details:
        shown = screen(detail)
        show_answers(iter(several(thinking_events())), ["Where?"], shown)
        said = written(shown.out)
        assert said.index("1. Where?") < said.rindex("thought for 12 tokens, ") < said.rindex("The harbour.")
        assert LINES[-1] not in said
    bare = screen("bare")
    show_answers(iter(several(thinking_events())), ["Where?"], bare)
    assert written(bare.out) == "The harbour.\n"


def test_the_row_of_an_answer_says_that_it_thinks() -> None:
    answers, console = Answers(["Where?"], lambda *_: None), Console(file=io.StringIO(), width=80)
    begun = next(n for n, event in enumerate(thinking_events()) if isinstance(event, Text))
    for event in thinking_events()[: begun + 1]:
        answers.add((0, event))
    console.print(answers)
    assert "thinking · 2 tokens" in written(console)
    answers.interrupted()
    assert answers.thoughts[0].line.startswith("thought for 2 tokens, ")


def test_the_last_thought_can_be_read() -> None:
    notes, conversation = screen("plain"), ScriptedConversation()
    commands = Commands(conversation, no_document, notes, lambda *_: None, Surroundings())
    with pytest.raises(UsageError, match="no thought"):
        commands.run("/thought")
    tally = tally_of(thinking_events())
    conversation._turns.append(Turn("Where?", tally.text, tally))
    commands.run("/thought")
    assert all(line in written(notes.out) for line in LINES)
