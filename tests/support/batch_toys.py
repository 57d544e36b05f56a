"""Lines of a batch, and answerers for worker processes, that need no model."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triforce_chat.batch.lines import Answered, Answering, Line
from triforce_chat.engine.events import Text
from triforce_chat.errors import ModelError
from triforce_chat.ui.batch_progress import BatchView
from triforce_chat.ui.terminal import Screen

HEAD = b'{"id":'


@dataclass(frozen=True)
class Toy:
    """A line of a group; its id tells an answerer what to do."""

    id: str
    group: str = ""
    documents: tuple[str, ...] = ()
    digest: str = ""

    @property
    def name(self) -> str:
        return self.group or self.id

    def refused(self, error: dict[str, str]) -> dict[str, Any]:
        return {"id": self.id, "error": error}


def toys(groups: int, each: int) -> list[Toy]:
    return [Toy(f"{group}-{number}", f"book {group}") for group in range(groups) for number in range(each)]


class Overslept(BatchView):
    """Counts, and has a clock for the driver by which the first line takes a hundred seconds and no other any."""

    def __init__(self, lines: Sequence[Toy]) -> None:
        self.now = 0.0
        super().__init__([line.name for line in lines], True, self.clock)

    def clock(self) -> float:
        return self.now

    def begin(self, worker: int, name: str) -> None:
        super().begin(worker, name)
        self.now = 100.0


@dataclass(frozen=True)
class ToyAnswerer:
    """Answers every line with its process's id, unless the line is named for a mishap; says what came with it."""

    width: int = 1

    def answer(self, lines: Sequence[Line]) -> Answering:
        yield Text((1,) * len(lines), "a")
        for line in lines:
            mishap(line)
            yield Text((2,), "b")
            record = {"id": line.id, "worker": os.getpid(), "beside": len(lines) - 1, "error": None}
            yield Answered(line.id, record, 2)


def load_toy(screen: Screen) -> tuple[ToyAnswerer, float]:
    """Loads nothing, and warns."""
    screen.err.print("a warning")
    return ToyAnswerer(), 0.5


def load_wide(screen: Screen) -> tuple[ToyAnswerer, float]:  # noqa: ARG001
    """Answers three lines at once."""
    return ToyAnswerer(3), 0.0


def mishap(line: Line) -> None:
    """What the line is named for.

    "die" ends the process, "once" the first one only, "sleep" and "slow" take time, and "meet3" waits until three
    processes, ended ones included, have come to such a line.
    """
    if line.id.startswith("die") or (line.id.startswith("once") and first_time(line.id)):
        os.kill(os.getpid(), signal.SIGKILL)
    if line.id.startswith("sleep"):
        time.sleep(600)
    if line.id.startswith("slow"):
        time.sleep(0.3)
    if line.id.startswith("meet"):
        meet(int(line.id.removeprefix("meet")[0]))


def meet(number: int) -> None:
    """Wait for that many processes; the test's folder is the current one."""
    Path(f"{os.getpid()}.here").touch()
    while len([*Path().glob("*.here")]) < number:
        time.sleep(0.01)


def first_time(name: str) -> bool:
    """True for the first process that asks; the test's folder is the current one."""
    try:
        Path(f"{name}.mark").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def load_and_die(screen: Screen) -> tuple[ToyAnswerer, float]:  # noqa: ARG001
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def load_in_vain(screen: Screen) -> tuple[ToyAnswerer, float]:  # noqa: ARG001
    raise ModelError("no such model")


def load_with_a_defect(screen: Screen) -> tuple[ToyAnswerer, float]:  # noqa: ARG001
    raise ZeroDivisionError("a defect")
