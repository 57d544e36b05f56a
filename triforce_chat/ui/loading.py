"""Progress while a model is downloaded, converted or loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from triforce_chat.models.progress import Progress as Stage
from triforce_chat.models.progress import Report
from triforce_chat.settings.sizes import readable
from triforce_chat.ui.clean import one_line
from triforce_chat.ui.formatting import QuarterProgress, duration
from triforce_chat.ui.terminal import Screen

REDRAWS = 2  # per second; a bar of unknown length is animated
IN_BYTES = ("downloading", "saving")  # stages whose progress is counted in bytes


class StageLines:
    """Prints a line for every stage and for every quarter of it."""

    def __init__(self, screen: Screen, name: str) -> None:
        self._say = partial(screen.err.print, markup=False, highlight=False)
        self._name = name
        self._stage, self._quarters = "", QuarterProgress()
        self._say(f"loading {name}")

    def __call__(self, stage: Stage) -> None:
        if stage.stage != self._stage:
            self._stage, self._quarters = stage.stage, QuarterProgress()
            self._say(f"{stage.stage} {self._name}{_of_bytes(stage)}")
        if percent := self._quarters.reached(stage.done, stage.total):
            self._say(f"{stage.stage}: {percent} %")


class Remaining(TimeElapsedColumn):
    """The bytes that are done and how long the rest will take; the time so far for stages not counted in bytes."""

    def render(self, task: Task) -> Text:
        if not task.fields.get("in_bytes") or not task.total:
            return super().render(task)
        amount = f"{readable(task.completed)} of {readable(task.total)}"
        left = task.time_remaining
        return Text(f"{amount}, {duration(left)} left" if left else amount)


def _of_bytes(stage: Stage) -> str:
    return f", {readable(stage.total)}" if stage.stage in IN_BYTES else ""


@contextmanager
def loading(screen: Screen, name: str) -> Iterator[Report]:
    """Show a temporary progress bar on ``screen.err``; lines on a plain screen, nothing on a bare one."""
    name = one_line(name)
    if screen.detail == "plain":
        yield StageLines(screen, name)
        return
    description = TextColumn("{task.description}", markup=False)
    columns = (description, BarColumn(bar_width=16), Remaining())
    with Progress(
        *columns,
        console=screen.err,
        transient=True,
        disable=screen.detail == "bare",
        refresh_per_second=REDRAWS,
    ) as bar:
        task = bar.add_task(f"loading {name}", total=None)

        def report(stage: Stage) -> None:
            bar.update(
                task,
                description=f"{stage.stage} {name}",
                completed=stage.done,
                total=stage.total or None,
                in_bytes=stage.stage in IN_BYTES,
            )

        yield report
