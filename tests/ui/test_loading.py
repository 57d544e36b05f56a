"""The progress of loading a model, on a terminal and in lines."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TaskID

from triforce_chat.models.progress import Progress
from triforce_chat.ui.loading import Remaining, StageLines
from triforce_chat.ui.terminal import Screen


def shown(task_of: Bar, task: TaskID) -> str:
    return Remaining().render(task_of.tasks[task]).plain


def test_bytes_and_the_time_left() -> None:
    now = [0.0]
    bar = Bar(get_time=lambda: now[0])
    task = bar.add_task("", total=400_000_000, in_bytes=True)
    for done in (0, 100_000_000, 200_000_000):
        bar.update(task, completed=done)
        now[0] += 10
    assert shown(bar, task) == "200 MB of 400 MB, 20 s left"


def test_other_stages_show_the_time_so_far() -> None:
    now = [0.0]
    bar = Bar(get_time=lambda: now[0])
    task = bar.add_task("", total=2)
    now[0] = 65
    assert shown(bar, task) == "0:01:05"


def test_lines_say_how_much_is_downloaded() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100)
    lines = StageLines(Screen(console, console, "plain"), "m")
    for done in (0, 200, 400):
        lines(Progress("downloading", done * 10**6, 400 * 10**6))
    lines(Progress("converting", 0, 2))
    told = out.getvalue().splitlines()
    assert told == [
        "loading m",
        "downloading m, 400 MB",
        "downloading: 50 %",
        "downloading: 100 %",
        "converting m",
    ]
