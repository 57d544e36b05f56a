"""Progress while a model is fetched, converted or loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from triforce_chat.models.progress import Progress as Stage
from triforce_chat.models.progress import Report
from triforce_chat.ui.clean import one_line
from triforce_chat.ui.terminal import Screen


@contextmanager
def loading(screen: Screen, name: str) -> Iterator[Report]:
    """A bar on ``screen.err`` that disappears again; nothing at all on a bare screen."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    name = one_line(name)
    with Progress(
        *columns, console=screen.err, transient=True, disable=screen.detail == "bare", expand=False
    ) as bar:
        task = bar.add_task(f"loading {name}", total=None)

        def report(stage: Stage) -> None:
            bar.update(
                task, description=f"{stage.stage} {name}", completed=stage.done, total=stage.total or None
            )

        yield report
