"""Worker processes: each book goes to one of them, and the batch outlives them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from support import batch_toys
from support.batch_toys import HEAD, Overslept, Toy, toys

from triforce_chat.batch import run
from triforce_chat.batch.driver import Driver, NoWorkerLeft
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.processes import Processes
from triforce_chat.batch.run import answer_lines
from triforce_chat.batch.worker import Load
from triforce_chat.errors import ModelError, TriforceError
from triforce_chat.ui.batch_progress import BatchView
from triforce_chat.ui.terminal import Leave

PATIENCE = 120.0  # seconds until a test fails; the machine may be busy


class Notes(BatchView):
    """Keeps what is said."""

    def __init__(self, lines: Sequence[Toy]) -> None:
        super().__init__([line.name for line in lines], True)
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutputFile]:
    monkeypatch.chdir(tmp_path)
    with OutputFile(tmp_path / "out.jsonl", "id", HEAD) as made:
        yield made


def answer(
    lines: Sequence[Toy],
    output: OutputFile,
    workers: int = 2,
    limit: float | None = None,
    load: Load = batch_toys.load_toy,
) -> Notes:
    view = Notes(lines)
    pool = Processes(load, [{"OMP_NUM_THREADS": "1"}] * workers, limit)
    assert not answer_lines(lines, pool, output, view, limit)
    return view


def records(output: OutputFile) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.path.read_text().splitlines()]


def test_a_book_has_one_worker(output: OutputFile) -> None:
    # Neither worker goes on with a second book before the other one has begun its first.
    names = [f"{'slow' if line.id.endswith(('1', '2', '3')) else 'meet2'}-{line.id}" for line in toys(6, 4)]
    view = answer([Toy(name, line.group) for name, line in zip(names, toys(6, 4), strict=True)], output)
    workers: dict[str, set[object]] = {}
    for record in records(output):
        workers.setdefault(str(record["id"]).split("-")[1], set()).add(record["worker"])
    assert len(workers) == 6
    assert all(len(each) == 1 for each in workers.values())
    assert len(set.union(*workers.values())) == 2
    assert (view.done, view.tokens, view.failed, view.load_s) == (24, 48, 0, 0.5)
    assert view.said == ["a warning"]


def test_a_line_whose_worker_ends_is_tried_once_more(output: OutputFile) -> None:
    lines = [Toy("once-a", "book"), Toy("b", "book"), Toy("c", "other")]
    view = answer(lines, output)
    assert output.answered == {"once-a", "b", "c"}
    assert any("SIGKILL" in line and "another one starts" in line for line in view.said)


def test_of_lines_that_are_answered_at_once_one_that_ends_workers_is_found(output: OutputFile) -> None:
    lines = [Toy(name, "book") for name in ("a", "b", "die", "c", "d")]
    answer(lines, output, workers=1, load=batch_toys.load_wide)
    assert (output.answered, output.failed) == ({"a", "b", "c", "d"}, {"die"})
    beside = {record["id"]: record.get("beside") for record in records(output)}
    assert beside == {"a": 2, "b": 2, "die": None, "c": 1, "d": 1}


def test_a_line_that_ends_two_workers_is_an_error(output: OutputFile) -> None:
    answer([Toy("a", "book"), Toy("die", "book"), Toy("b", "book"), Toy("c", "other")], output)
    assert (output.answered, output.failed) == ({"a", "b", "c"}, {"die"})
    (error,) = (record["error"] for record in records(output) if record["error"])
    assert error == {
        "code": "worker_lost",
        "message": "the worker ended 2 times: the process was killed (SIGKILL)",
    }


def test_a_book_that_ends_two_workers_before_any_answer_costs_no_more(output: OutputFile) -> None:
    lines = [Toy("die-1", "book"), Toy("die-2", "book"), Toy("die-3", "book"), Toy("a", "other")]
    view = answer(lines, output, workers=1)
    assert (output.answered, output.failed) == ({"a"}, {"die-1", "die-2", "die-3"})
    assert sum("another one starts" in line for line in view.said) == 1  # said once
    assert view.status()[:2] == ["4 of 4 questions", "2 of 2 books"]


def test_a_worker_that_does_not_answer_in_time_is_replaced(
    output: OutputFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [Toy("sleep", "book"), Toy("a", "other")]
    view = Overslept(lines)
    monkeypatch.setattr(run, "Driver", partial(Driver, clock=view.clock))
    assert not answer_lines(lines, Processes(batch_toys.load_toy, [{}], None), output, view, 0.3)
    assert (output.answered, output.failed) == ({"a"}, {"sleep"})
    assert records(output)[0]["error"] == {"code": "time_limit", "message": "no answer within 0.3 s"}


def test_workers_that_always_end_are_given_up(output: OutputFile) -> None:
    with pytest.raises(NoWorkerLeft, match=r"no worker is left: the process was killed \(SIGKILL\)"):
        answer(toys(2, 1), output, load=batch_toys.load_and_die)
    assert not output.answered | output.failed


@pytest.mark.parametrize(
    ("load", "kind", "told"),
    [
        (batch_toys.load_in_vain, ModelError, "no such model"),
        (batch_toys.load_with_a_defect, TriforceError, "ZeroDivisionError: a defect"),
    ],
)
def test_what_no_worker_can_load_is_told(
    output: OutputFile, load: Load, kind: type[TriforceError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        answer(toys(2, 1), output, load=load)


def test_ctrl_c_ends_after_the_running_answers(output: OutputFile) -> None:
    class Pressing(Notes):
        def begin(self, worker: int, name: str) -> None:
            super().begin(worker, name)
            if len(self._names) == 2:
                signal.raise_signal(signal.SIGINT)

    lines = [Toy(f"meet2-{number}", f"book {number}") for number in range(6)]
    pool = Processes(batch_toys.load_toy, [{}] * 2, None)
    assert answer_lines(lines, pool, output, Pressing(lines))
    assert output.answered == {"meet2-0", "meet2-1"}


def test_ctrl_c_twice_ends_the_workers_at_once(output: OutputFile) -> None:
    class Pressing(Notes):
        def begin(self, worker: int, name: str) -> None:
            super().begin(worker, name)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    pool = Processes(batch_toys.load_toy, [{}] * 2, None)
    started = time.monotonic()
    with pytest.raises(Leave):
        answer_lines([Toy("sleep")], pool, output, Pressing([Toy("sleep")]))
    assert time.monotonic() - started < PATIENCE
    assert not output.answered


DRIVER = """
import sys
from pathlib import Path
from support import batch_toys
from support.batch_toys import HEAD, Toy
from triforce_chat.batch.output_file import OutputFile
from triforce_chat.batch.processes import Processes
from triforce_chat.batch.run import answer_lines
from triforce_chat.ui.batch_progress import BatchView

class Told(BatchView):
    def begin(self, worker, name):
        super().begin(worker, name)
        print(*[each.process.pid for each in pool._workers.values()], flush=True)

pool = Processes(batch_toys.load_toy, [{}] * 2, None)
with OutputFile(Path("out.jsonl"), "id", HEAD) as output:
    answer_lines([Toy("sleep")], pool, output, Told(["sleep"], True))
"""


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_die_with_their_driver(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        workers = [int(each) for each in process.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        process.kill()
    deadline = time.monotonic() + PATIENCE
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
