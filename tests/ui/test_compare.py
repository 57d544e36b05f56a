from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from support.consoles import written
from support.fakes import LIMIT, ScriptedConversation, answer_events, tally_of
from support.terminal_emulator import screen_of

from triforce_chat.chat.events import Comparison
from triforce_chat.ui.compare import Columns, conclusions, show_comparison, speed_rows
from triforce_chat.ui.terminal import Detail, Screen

ANSWER = "A first line.\n\nA second one, \x1b[1mlonger\x1b[0m."


def screen(detail: Detail) -> Screen:
    out = Console(file=io.StringIO(), width=80, height=14, force_terminal=detail == "live", color_system=None)
    return Screen(out, Console(file=io.StringIO(), width=80), detail)


def comparison() -> Comparison:
    fast, plain = tally_of(answer_events("x" * 48)), tally_of(answer_events("x" * 48, level=False))
    return Comparison(fast, plain, identical=True, ties=1)


def test_bare_prints_headings_answers_and_figures() -> None:
    bare = screen("bare")
    result = show_comparison(ScriptedConversation(ANSWER).compare("q"), bare)
    answer = "A first line.\n\nA second one, longer.\n"
    text = written(bare.out)
    assert text.startswith(
        f"with speculation:\n{answer}without:\n{answer}tokens/s: with speculation 50.0, without 20.0\n"
    )
    assert "decoding: 2.50x\n" in text
    assert "\x1b" not in text + written(bare.err)
    assert result is not None
    assert result.identical


def test_live_leaves_both_answers_and_the_figures_once() -> None:
    live = screen("live")
    show_comparison(ScriptedConversation(ANSWER).compare("q"), live, limit=LIMIT)
    lines = screen_of(written(live.out))
    assert sum(line.count("A first line.") for line in lines) == 2
    assert sum("with speculation  50.0 tokens/s" in line for line in lines) == 1
    assert "tokens: identical, 16 of them; 2 near ties where rounding may decide" in lines


def test_long_answers_are_clipped_while_live_and_complete_at_the_end() -> None:
    console = screen("live").out
    columns = Columns(LIMIT)
    for event in answer_events("".join(f"line {number}\n" for number in range(40))):
        columns.add("speculative", event)
    console.print(columns)
    live = written(console)
    assert len(live.splitlines()) < 14
    assert "line 39" in live
    assert "line 3 " not in live
    columns.end()
    console.print(columns)
    assert "line 3 " in written(console)


@pytest.mark.parametrize("size", [(80, 24), (40, 10)])
def test_wide_characters_stay_in_their_columns(size: tuple[int, int]) -> None:
    console = Console(file=io.StringIO(), width=size[0], height=size[1], color_system=None)
    columns = Columns(LIMIT)
    for event in answer_events("彼は港の名前を決して言わない。" * 9 + "👍🏽 e\u0301 क्षि " * 9):
        columns.add("speculative", event)
        columns.add("autoregressive", event)
        lines = console.render_lines(columns, console.options, pad=False)
        assert len(lines) < size[1]
        assert {Segment.get_line_length(line) for line in lines} == {size[0]}
        assert len({column for line in lines for column in borders(line)}) == 3


def borders(line: list[Segment]) -> list[int]:
    """The columns in which a line of a table has its borders."""
    text = "".join(part.text for part in line)
    return [cell_len(text[:at]) for at, char in enumerate(text) if char in "│╭┬╮├┼┤╰┴╯"]


def test_stopped() -> None:
    bare = screen("bare")
    items = (item for item in list(ScriptedConversation(ANSWER).compare("q"))[:9])
    assert show_comparison(items, bare) is None
    assert written(bare.err) == "comparison stopped\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "tokens: identical, 16 of them; 1 near tie where rounding may decide"),
        ({"identical": False}, "tokens: different from token 2 on; 1 near tie where rounding may decide"),
        ({"ties": None}, "tokens: sampled, so the two sequences are not comparable token by token"),
    ],
)
def test_equality(changes: dict[str, Any], said: str) -> None:
    result = replace(comparison(), **changes)
    if not result.identical:
        result.autoregressive.token_ids[1] = -1
    assert conclusions(result)[-1] == said


def test_figures() -> None:
    result = comparison()
    assert speed_rows(result)[1] == ("ms/token", "20.0", "50.0")
    assert conclusions(result)[1] == "with 5.0 s of reading included: 1.09x"
    assert conclusions(result)[2] == "drafts accepted: target 75 %, retrieval 80 %"
