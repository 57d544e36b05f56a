"""A worker pool of processes on this machine, each with an engine of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from triforce_chat.batch.lines import Line
from triforce_chat.batch.worker import Job, Load
from triforce_chat.batch.worker_pool import TICK, Lost, Replaceable, Report
from triforce_chat.parallel.commands import Shutdown

FAREWELL = 5.0  # seconds for a worker to end by itself
_PROGRAM = (
    "import sys; sys.path = sys.argv[2:]; from triforce_chat.batch.worker import main; main(int(sys.argv[1]))"
)


@dataclass(frozen=True, slots=True)
class Worker:
    """A process, and the driver's end of the pipe to it."""

    process: subprocess.Popen[bytes]
    connection: Connection

    def send(self, command: Any) -> None:
        """Tell the process something; that it has ended is seen when its reports are read."""
        with suppress(OSError):
            self.connection.send(command)

    def kill(self) -> str:
        """End the process if it has not ended; returns how it ended."""
        self.process.kill()
        code = self.process.wait()
        self.connection.close()
        return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


class Processes(Replaceable):
    """A worker pool of one process for each environment in ``environments``."""

    patience = None  # a process either loads its model or ends

    def __init__(self, load: Load, environments: Sequence[Mapping[str, str]], limit: float | None) -> None:
        """``environments``: variables of each process beside those of this one. ``limit``: seconds for an answer."""
        self.size = len(environments)
        self._load, self._environments, self._limit = load, environments, limit
        self._workers: dict[int, Worker] = {}

    def end(self, finishing: bool) -> None:
        for worker in self._workers.values() if finishing else ():
            worker.send(Shutdown())
        for worker in self._workers.values() if finishing else ():
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(FAREWELL)
        for number in list(self._workers):
            self.dismiss(number)

    def give(self, worker: int, lines: Sequence[Line]) -> None:
        self._workers[worker].send(lines)

    def reports(self) -> Iterator[Report]:
        numbers = {each.connection: number for number, each in self._workers.items()}
        for connection in wait(list(numbers), TICK):
            number = numbers[connection]  # type: ignore[index]
            try:
                yield self._workers[number].connection.recv()
            except (EOFError, OSError):
                yield Lost(number, f"the process {self._workers[number].kill()}")

    def dismiss(self, worker: int) -> None:
        self._workers.pop(worker).kill()

    def start(self, worker: int) -> None:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # that of the driver is for its summary
                env={**os.environ, **self._environments[worker]},
            )
        self._workers[worker] = started = Worker(process, ours)
        started.send(Job(worker, self._load, self._limit))
