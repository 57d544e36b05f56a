"""The driver over a crew that does what a test says: lost workers keep no book, and nobody waits for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from support.batch_toys import HEAD, toys

from triforce_chat.batch.crew import Done, Lost, Ready, Report
from triforce_chat.batch.driver import Driver, NoWorkerLeft
from triforce_chat.batch.lines import Answered, Line
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.queue import Queue
from triforce_chat.ui.batch_progress import BatchView


class Scripted:
    """Workers that answer at once; those of ``mortal`` end at their first line, and their successors never start."""

    size = 2
    replaceable = True
    patience: float | None = 5.0

    def __init__(self, mortal: set[int]) -> None:
        self.mortal, self.replaced, self.given = mortal, list[int](), list[tuple[int, str]]()
        self._reports: deque[Report] = deque([Ready(0, 1.0), Ready(1, 1.0)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was started."""

    def give(self, worker: int, line: Line) -> None:
        self.given.append((worker, line.id))
        answered = Done(worker, Answered({"id": line.id, "error": None}, 1))
        self._reports.append(Lost(worker, "it ended") if worker in self.mortal else answered)

    def reports(self) -> Iterator[Report]:
        while self._reports:
            yield self._reports.popleft()

    def replace(self, worker: int) -> None:
        self.replaced.append(worker)

    def dismiss(self, worker: int) -> None:
        raise AssertionError(f"worker {worker} was given up")


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def drive(crew: Scripted, path: Path) -> set[str]:
    lines = toys(3, 3)
    with OutputFile(path, "id", HEAD) as output:
        view = BatchView([line.name for line in lines], True)
        try:
            Driver(Queue(lines), crew, output, view, clock=Clock()).run(lambda: False)
        finally:
            assert not output.failed
        return output.answered


def test_a_worker_that_does_not_come_back_keeps_no_book(tmp_path: Path) -> None:
    crew = Scripted({1})
    assert drive(crew, tmp_path / "out.jsonl") == {line.id for line in toys(3, 3)}
    assert crew.replaced == [1]
    lost = next(identifier for worker, identifier in crew.given if worker == 1)
    assert [worker for worker, identifier in crew.given if identifier == lost] == [1, 0]


def test_nobody_waits_for_ever_for_a_worker(tmp_path: Path) -> None:
    with pytest.raises(NoWorkerLeft, match="none could be started within 5 s"):
        drive(Scripted({0, 1}), tmp_path / "out.jsonl")
