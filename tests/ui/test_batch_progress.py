"""The progress of a batch: words for a log, a bar for a terminal, nothing for those who want nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.ui.batch_progress import LINE_EVERY, STOPPING, BatchBar, BatchLines, BatchView, batch_view

NAMES = ["a.txt", "a.txt", "b\x1b[31m.txt", "b\x1b[31m.txt"]


class Clock:
    """Shows the seconds that a test has set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(screen: io.StringIO) -> list[str]:
    return screen.getvalue().splitlines()


def test_a_log_gets_a_line_now_and_then() -> None:
    clock, screen = Clock(), io.StringIO()
    view = BatchLines(NAMES, True, Console(file=screen), clock)
    with view:
        view.begin(0, "a.txt")
        assert lines_of(screen) == ["0 of 4 questions · 0 of 2 books · 0.0 tokens/s"]
        clock.now += 5
        view.add(0, Text((1, 2, 3), "abc"))
        view.answered(0, 3, failed=False)
        view.begin(0, "a.txt")
        assert len(lines_of(screen)) == 1
        clock.now += LINE_EVERY
        view.answered(0, 3, failed=False)
        assert lines_of(screen)[1] == "2 of 4 questions · 1 of 2 books · 0.4 tokens/s · 15 s left"
        view.begin(0, NAMES[2])
        clock.now += LINE_EVERY
        view.add(0, Prefilled(30, 40, 0, 1.0))
        assert lines_of(screen)[2] == "reading b.txt: 75 %"
        view.answered(0, 0, failed=True)
        view.begin(0, NAMES[3])
        view.answered(0, 0, failed=True)
    assert lines_of(screen)[3:] == ["4 of 4 questions · 2 of 2 books · 0.2 tokens/s · 2 failed"]


def test_requests_have_no_books() -> None:
    view = BatchView(["a"], False, Clock())
    view.begin(0, "a")
    assert view.status() == ["0 of 1 request", "0.0 tokens/s"]


def test_tokens_of_the_running_answer_count_once() -> None:
    clock = Clock()
    view = BatchView(["a"], False, clock)
    view.begin(0, "a")
    clock.now += 1
    view.add(0, Text((1, 2), "ab"))
    assert view.status()[1] == "2.0 tokens/s"
    view.answered(0, 2, failed=False)
    assert view.status()[1] == "2.0 tokens/s"


def test_several_workers() -> None:
    clock, screen = Clock(), io.StringIO()
    view = BatchLines(NAMES, True, Console(file=screen), clock)
    clock.now += 50  # loading
    view.begin(0, "a.txt")
    view.begin(1, NAMES[2])
    clock.now += 2
    view.add(0, Text((1, 2, 3), "abc"))
    view.add(1, Text((1, 2, 3), "abc"))
    assert view.status()[2] == "3.0 tokens/s"
    view.dropped(1)
    view.answered(0, 3, failed=False)
    view.begin(0, "a.txt")
    view.answered(0, 3, failed=False)
    assert view.status() == ["2 of 4 questions", "1 of 2 books", "3.0 tokens/s", "2.0 s left"]
    view.note("worker 2: was killed")
    view.note("worker 2: was killed")
    assert lines_of(screen)[1:] == ["worker 2: was killed"]


def test_ctrl_c_is_answered_at_once() -> None:
    screen = io.StringIO()
    BatchLines(NAMES, True, Console(file=screen), Clock()).stopping()
    assert lines_of(screen) == [STOPPING]


def test_a_bar_tells_what_is_read() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160)
    with BatchBar(NAMES, True, console) as view:
        view.begin(0, NAMES[2])
        view.add(0, Prefilled(30, 40, 0, 1.0))
        assert "b.txt, 75 % read" in str(view.description)
        view.stopping()
        assert view.description == STOPPING
        view.answered(0, 1, failed=True)
    last = lines_of(screen)[-1]
    assert "1 of 4 questions" in last
    assert "1 failed" in last


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("file", "quiet", "plain", "kind"),
    [
        (Terminal(), False, False, BatchBar),
        (Terminal(), False, True, BatchLines),
        (Terminal(), True, False, BatchView),
        (io.StringIO(), False, False, BatchLines),
        (io.StringIO(), True, True, BatchView),
    ],
)
def test_the_form_fits_the_place(file: io.StringIO, quiet: bool, plain: bool, kind: type[BatchView]) -> None:
    console = Console(file=file, force_terminal=True, _environ={"TERM": "xterm"})
    assert type(batch_view(NAMES, True, console, quiet, plain)) is kind


def test_no_color_turns_off_colours_only() -> None:
    environment = {"TERM": "xterm", "NO_COLOR": "1"}
    console = Console(file=Terminal(), force_terminal=True, _environ=environment)
    assert console.no_color
    assert type(batch_view(NAMES, True, console, quiet=False, plain=False)) is BatchBar
