"""The driver over a pool that does what a test says: lost workers keep no book, and nobody waits for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from support.batch_toys import HEAD, toys

from triforce_chat.batch.driver import Driver, NoWorkerLeft
from triforce_chat.batch.lines import Answered, Line
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.queue import Queue
from triforce_chat.batch.worker_pool import Done, Lost, Ready, Report
from triforce_chat.ui.batch_progress import BatchView


class Scripted:
    """Workers that answer at once; those of ``mortal`` end at their first line, and their successors never start.

    Those that are given a line of ``deadly`` end with it, and their successors start; each takes ``width`` lines.
    """

    size = 2
    replaceable = True
    elsewhere = False
    patience: float | None = 5.0

    def __init__(self, mortal: set[int], deadly: str = "", width: int = 1) -> None:
        self.mortal, self.deadly, self.width = mortal, deadly, width
        self.replaced, self.given = list[int](), list[tuple[int, tuple[str, ...]]]()
        self._reports: deque[Report] = deque([Ready(0, 1.0, width), Ready(1, 1.0, width)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was started."""

    def give(self, worker: int, lines: Sequence[Line]) -> None:
        self.given.append((worker, tuple(line.id for line in lines)))
        for line in lines:
            if worker in self.mortal or line.id == self.deadly:
                self._reports.append(Lost(worker, "it ended"))
                return
            self._reports.append(Done(worker, Answered(line.id, {"id": line.id, "error": None}, 1)))

    def reports(self) -> Iterator[Report]:
        while self._reports:
            yield self._reports.popleft()

    def replace(self, worker: int) -> None:
        self.replaced.append(worker)
        if worker not in self.mortal:
            self._reports.append(Ready(worker, 1.0, self.width))

    def dismiss(self, worker: int) -> None:
        raise AssertionError(f"worker {worker} was given up")


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def drive(pool: Scripted, path: Path, failing: frozenset[str] = frozenset()) -> set[str]:
    lines = toys(3, 3)
    with OutputFile(path, "id", HEAD) as output:
        view = BatchView([line.name for line in lines], True)
        try:
            Driver(Queue(lines), pool, output, view, clock=Clock()).run(lambda: False)
        finally:
            assert output.failed == failing
        return output.answered


def test_a_worker_that_does_not_come_back_keeps_no_book(tmp_path: Path) -> None:
    pool = Scripted({1})
    assert drive(pool, tmp_path / "out.jsonl") == {line.id for line in toys(3, 3)}
    assert pool.replaced == [1]
    lost = next(lines for worker, lines in pool.given if worker == 1)
    assert [worker for worker, lines in pool.given if lines == lost] == [1, 0]


def test_nobody_waits_for_ever_for_a_worker(tmp_path: Path) -> None:
    with pytest.raises(NoWorkerLeft, match="none could be started within 5 s"):
        drive(Scripted({0, 1}), tmp_path / "out.jsonl")


def test_lines_of_one_book_are_given_out_together(tmp_path: Path) -> None:
    pool = Scripted(set(), width=2)
    assert drive(pool, tmp_path / "out.jsonl") == {line.id for line in toys(3, 3)}
    assert sorted(lines for _, lines in pool.given) == [
        *(("0-0", "0-1"), ("0-2",)),
        *(("1-0", "1-1"), ("1-2",)),
        *(("2-0", "2-1"), ("2-2",)),
    ]


def test_a_line_that_ends_workers_costs_no_other_that_ran_beside_it(tmp_path: Path) -> None:
    pool = Scripted(set(), deadly="1-1", width=3)
    answered = drive(pool, tmp_path / "out.jsonl", frozenset({"1-1"}))
    assert answered == {line.id for line in toys(3, 3)} - {"1-1"}
    assert [lines for _, lines in pool.given if lines[0].startswith("1")] == [
        ("1-0", "1-1", "1-2"),
        ("1-1",),
        ("1-2",),
    ]


def test_a_machine_that_is_lost_counts_once_however_many_workers_it_takes(tmp_path: Path) -> None:
    pool = Scripted(set(), deadly="1-1", width=3)
    pool.elsewhere = (
        True  # so the second worker, which was there before, may only have been on the same machine
    )
    drive(pool, tmp_path / "out.jsonl", frozenset({"1-1"}))
    with_it = [worker for worker, lines in pool.given if "1-1" in lines]
    assert len(with_it) == 3
    assert len({*with_it[:2]}) == 2
