"""Progress while a model is downloaded, converted or loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from triforce_chat.models.progress import Progress as Stage
from triforce_chat.models.progress import Report
from triforce_chat.ui.clean import one_line
from triforce_chat.ui.formatting import QuarterProgress
from triforce_chat.ui.terminal import Screen

REDRAWS = 2  # per second; a bar of unknown length is animated


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
            self._say(f"{stage.stage} {self._name}")
        if percent := self._quarters.reached(stage.done, stage.total):
            self._say(f"{stage.stage}: {percent} %")


@contextmanager
def loading(screen: Screen, name: str) -> Iterator[Report]:
    """Show a temporary progress bar on ``screen.err``; lines on a plain screen, nothing on a bare one."""
    name = one_line(name)
    if screen.detail == "plain":
        yield StageLines(screen, name)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TimeElapsedColumn())
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
                task, description=f"{stage.stage} {name}", completed=stage.done, total=stage.total or None
            )

        yield report
