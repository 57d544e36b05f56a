"""The driver of a batch: it alone hands out the lines and writes the answers, and it outlives its workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from triforce_chat.batch.lines import Answered, Line, error_object, late
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.queue import Queue
from triforce_chat.batch.worker_pool import Done, Lost, Note, Progress, Ready, Report, Unusable, WorkerPool
from triforce_chat.errors import TriforceError
from triforce_chat.ui.batch_progress import BatchView

TRIES = 2  # for a line whose worker ends
STARTS = 5  # of a worker that ends before it has loaded its model, in a row
GRACE = 5.0  # seconds beyond the time limit in which a worker may give up an answer by itself


class WorkerLost(TriforceError):
    """The worker that answered a line ended, and so did the one that tried again."""

    code = "worker_lost"


class NoWorkerLeft(TriforceError):
    """All workers of a batch ended and cannot be started again."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a worker is answering, all about the same documents."""

    lines: dict[str, Line]  # those without an answer yet, by their ids
    since: float  # on the driver's clock


class Driver:
    """Has the lines of a queue answered by a worker pool."""

    def __init__(
        self,
        queue: Queue,
        pool: WorkerPool,
        output: OutputFile,
        view: BatchView,
        limit: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limit``: seconds for an answer, after which a worker that does not give it up by itself is replaced."""
        self._queue, self._pool, self._output, self._view, self._clock = queue, pool, output, view, clock
        self._limit = limit if pool.replaceable else None
        self._starts = dict.fromkeys(range(pool.size), 1)  # of each worker since it last had a model
        self._widths: dict[int, int] = {}  # lines at once, of each worker that has a model
        self._running: dict[int, Running] = {}
        self._losses: Counter[str] = Counter()  # of workers, by the lines that they answered
        self._gone = 0  # workers, so far
        self._born = dict.fromkeys(range(pool.size), 0)  # how many had ended when each one was started
        self._lost_at: dict[str, int] = {}  # and when the latest one ended that counts against a line
        self._proven: set[str] = set()  # groups of which a line was answered
        self._seen = clock()  # when there last was a worker with a model

    def run(self, stopping: Callable[[], bool]) -> None:
        """Answer the lines; once ``stopping``, only those that are begun.

        Raises NotWritten, RankLost, NoWorkerLeft, and the error of workers that cannot load their model.
        """
        while True:
            if not stopping():
                self._hand_out()
            if not self._running and (stopping() or not self._queue):
                return
            for report in self._pool.reports():
                self._take(report)
            self._check_clock()

    def _hand_out(self) -> None:
        """Lines that a worker was lost with are given out one by one: that tells which of them it was."""
        for worker in sorted(self._widths.keys() - self._running.keys()):
            lines = self._queue.next(worker, self._widths[worker], self._losses)
            if lines:
                self._running[worker] = Running({line.id: line for line in lines}, self._clock())
                self._view.begin(worker, lines[0].name)
                self._pool.give(worker, lines)

    def _take(self, report: Report) -> None:
        match report:
            case Ready(worker, load_s, width):
                self._widths[worker] = width
                self._starts[worker], self._view.load_s = 0, max(self._view.load_s, load_s)
            case Progress(worker, event):
                self._view.add(worker, event)
            case Done(worker, answered):
                self._ended(worker, answered.id)
                self._write(worker, answered)
            case Note(_, line):
                self._view.note(line)
            case Lost(worker, why):
                self._lost(worker, why)
            case Unusable(worker, error):
                self._dismiss(worker, error)

    def _ended(self, worker: int, line: str) -> None:
        running = self._running[worker]
        self._proven.add(running.lines.pop(line).group)
        if not running.lines:
            del self._running[worker]

    def _write(self, worker: int, answered: Answered) -> None:
        self._output.append(answered.record)
        self._view.answered(worker, answered.tokens, answered.failed)

    def _lost(self, worker: int, why: str) -> None:
        """Try the worker's lines once more, with whichever worker is free first: another start may have no place."""
        running = self._running.pop(worker, None)
        if running is not None:
            self._view.dropped(worker)
            lines = list(running.lines.values())
            self._blame(worker, running.lines)
            if self._losses[lines[0].id] < TRIES:
                self._queue.put_back(worker, lines)
            else:  # it was answered alone
                self._refuse(worker, lines, WorkerLost(f"the worker ended {TRIES} times: {why}"))
        if self._starts[worker] < STARTS:
            self._view.note(f"worker {worker + 1}: {why}; another one starts")
            self._replace(worker)
        else:
            self._dismiss(worker, NoWorkerLeft(f"no worker is left: {why}"))

    def _blame(self, worker: int, ids: Iterable[str]) -> None:
        """Count the loss of a worker against what it answered.

        Not if it is on a machine that may be lost, and was there when another one was lost with the same line: such a
        machine takes its workers one after the other, and the first one's lines may be with the next.
        """
        self._gone += 1
        for each in ids:
            if not self._pool.elsewhere or self._born[worker] >= self._lost_at.get(each, 0):
                self._losses[each] += 1
                self._lost_at[each] = self._gone

    def _refuse(self, worker: int, lines: Sequence[Line], error: TriforceError) -> None:
        """Write errors; also for the rest of a group of which no line was answered: each would end like these."""
        rest = () if lines[0].group in self._proven else self._queue.drop_group(worker)
        for line in (*lines, *rest):
            self._write(worker, Answered(line.id, line.refused(error_object(error))))

    def _replace(self, worker: int) -> None:
        self._widths.pop(worker, None)
        self._queue.release(worker)
        self._starts[worker] += 1
        self._born[worker] = self._gone
        self._pool.replace(worker)

    def _dismiss(self, worker: int, error: TriforceError) -> None:
        """Go on without a worker. Raises the error if it was the last one."""
        self._widths.pop(worker, None)
        del self._starts[worker]
        self._queue.release(worker)
        self._pool.dismiss(worker)
        if not self._starts:
            raise error

    def _check_clock(self) -> None:
        now, limit, patience = self._clock(), self._limit, self._pool.patience
        for worker, running in list(self._running.items()):
            if limit is not None and now - running.since > limit + GRACE:
                del self._running[worker]
                self._view.dropped(worker)
                self._refuse(worker, list(running.lines.values()), late(limit))
                self._replace(worker)
        if self._widths:
            self._seen = now
        elif patience is not None and now - self._seen > patience:
            raise NoWorkerLeft(f"no worker is left: none could be started within {patience:g} s")
