from __future__ import annotations

import io
from contextlib import suppress
from itertools import count

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from support.consoles import written
from support.terminal_emulator import screen_of

from triforce_chat.ui.markdown import BlockSplitter, RenderedMarkdown, last_lines, settled_length
from triforce_chat.ui.stream import LINK_RATE, MarkdownTail

BLOCKS = (
    "# Title",
    "first *part*\nsecond line",
    "1. one\n\n2. two",
    "```\nx = 1\n\ny = 2\n```",
    "| a |\n|---|\n| 1 |",
    "End",
)
TEXT = "\n\n".join(BLOCKS)


def terminal(width: int = 40, height: int = 12) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def plain(text: str) -> str:
    console = Console(file=io.StringIO(), width=60)
    console.print(RenderedMarkdown(text))
    return "\n".join(line.rstrip() for line in written(console).splitlines())


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("a paragraph", ""),
        ("a paragraph\n", ""),
        ("a paragraph\n\n", "a paragraph\n\n"),
        ("one\n\ntwo", "one\n\n"),
        ("1. one\n\n", ""),
        ("1. one\n\n2", ""),
        ("1. one\n\nafter\n", "1. one\n\n"),
        ("```\ncode\n\n", ""),
        ("```\ncode\n```\n\nx\n", "```\ncode\n```\n\n"),
        ("title\n---\n\n", "title\n---\n\n"),
        ("line\u2028separator\n\nx\n", "line\u2028separator\n\n"),
    ],
)
def test_settled(text: str, done: str) -> None:
    assert text[: settled_length(text)] == done


@given(st.lists(st.integers(1, 9), max_size=40))
def test_blocks_lose_and_repeat_nothing(sizes: list[int]) -> None:
    blocks, out, at = BlockSplitter(), "", 0
    for size in sizes:
        out += blocks.feed(TEXT[at : at + size])
        at += size
    assert out + blocks.feed(TEXT[at:]) + blocks.rest() == TEXT


def test_the_cut_does_not_show() -> None:
    console = terminal()
    with MarkdownTail(console, Text("panel")) as tail:
        for char in TEXT:
            tail.write(char)
    whole = terminal()
    whole.print(RenderedMarkdown(TEXT))
    assert screen_of(written(console)) == screen_of(written(whole))


def test_a_tail_taller_than_the_terminal_is_in_the_scrollback_once() -> None:
    console = terminal(height=8)
    with MarkdownTail(console, Text("panel")) as tail:
        for number in range(40):
            tail.write(f"line {number}\n")
            tail._region.refresh()
    lines = [line for line in screen_of(written(console)) if line]
    assert lines == [f"line {number}" for number in range(40)]


class Counting:
    """A panel as wide as the terminal, one of whose lines changes every time it is drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __rich__(self) -> Panel:
        self.drawn += 1
        return Panel(f"first line\n{self.drawn:,} times\nlast line", title="a title")


def by_hand(tail: MarkdownTail, step: float) -> MarkdownTail:
    """Nothing is drawn but by ``refresh``, before which ``step`` seconds pass each time."""
    tail._region.auto_refresh = False
    ticks = count()
    tail._region._clock = lambda: step * next(ticks)
    return tail


@pytest.mark.parametrize("width", [40, 80])
def test_redrawing_some_lines_leaves_the_whole_frame_on_the_screen(width: int) -> None:
    console = terminal(width, 16)
    console.print("> question")
    with by_hand(MarkdownTail(console, Counting()), 1000.0) as tail:
        for char in TEXT:
            tail.write(char)
            tail._region.refresh()
            shown = screen_of(written(console))
            frame = ["".join(part.text for part in line).rstrip() for line in tail._region.frame.lines]
            assert shown[0] == "> question"
            assert shown[-len(frame) :] == frame
            assert sum("a title" in line for line in shown) == 1


@pytest.mark.parametrize("width", [22, 24, 30])
def test_characters_wider_than_rich_counts_them_leave_no_line_twice(width: int) -> None:
    """On terminals that draw a family as its members and a flag as its letters."""
    console, screen = terminal(width, 40), pyte.Screen(width, 40)
    stream, shown = pyte.Stream(screen), 0
    with by_hand(MarkdownTail(console, Counting()), 1000.0) as tail:
        for (
            char
        ) in "families 👨‍👩‍👧‍👦 👨‍👩‍👧‍👦 👨‍👩‍👧‍👦 and flags 🇩🇪 🇫🇷 🇮🇹 of all of them and what else there is":
            tail.write(char)
            tail._region.refresh()
            output = written(console)
            stream.feed(output[shown:].replace("\n", "\r\n"))
            shown = len(output)
            assert sum("a title" in row for row in screen.display) == 1
            assert sum("famil" in row for row in screen.display) == ("famil" in tail._blocks.tail)


def test_a_slow_link_gets_few_bytes() -> None:
    """A tall tail with a panel, four redraws a second wanted: what is sent stays near what the link carries."""
    console, seconds = terminal(120, 40), 60
    now = 0.0
    with by_hand(MarkdownTail(console, Counting()), 0.0) as tail:
        tail._region._clock = lambda: now
        before = len(written(console).encode())
        text = "| column | another | a third |\n|---|---|---|\n"
        for quarter in range(4 * seconds):
            now = quarter / 4
            text = f"| {quarter} tokens | {quarter * 7} of them | now |\n"
            tail.write(text if quarter else f"| a | b | c |\n|---|---|---|\n{text}")
            tail._region.refresh()
    assert len(written(console).encode()) - before < 1.2 * LINK_RATE * seconds + 120 * 4 * seconds


def test_nothing_new_sends_nothing() -> None:
    console = terminal()
    with by_hand(MarkdownTail(console, Text("panel")), 1000.0) as tail:
        tail.write("text")
        tail._region.refresh()
        before = written(console)
        tail._region.refresh()
        assert written(console) == before


def test_recent_keeps_the_fence() -> None:
    assert last_lines("```py\na\nb\nc", 2) == "```py\nb\nc"
    assert last_lines("a\nb\nc", 2) == "b\nc"
    assert last_lines("a\nb", 2) == "a\nb"


def test_an_error_leaves_the_text_and_the_cursor() -> None:
    console = terminal()
    tail = MarkdownTail(console, Text("panel"))
    with suppress(RuntimeError), tail:
        tail.write("half a sen")
        raise RuntimeError
    assert screen_of(written(console)) == ["half a sen"]
    assert "\x1b[?25h" in written(console).rpartition("\x1b[?25l")[2]


@pytest.mark.parametrize(
    "text", ["<b>bold</b>", "[1]: http://x.org", "<http://x/%1b[31m>", "&#27;[2J", "![alt](x.png)", "a\nb"]
)
def test_markdown_hides_no_text_and_obeys_no_text(text: str) -> None:
    shown = plain(text)
    assert "\x1b" not in shown
    assert all(word in shown for word in ("bold", "alt", "x.org", "31m", "2J", "a\nb") if word in text)


def test_links_are_written_out() -> None:
    console = terminal(80)
    console.print(RenderedMarkdown("[here](http://x.org)"))
    assert "here (http://x.org)" in "".join(screen_of(written(console)))
