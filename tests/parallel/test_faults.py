"""The program on two ranks: however it ends, no process remains."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.places import SUPPORT
from support.pseudo_terminal import CTRL_C, ENTER, Terminal
from support.tiny_models import mute_special_tokens, save_model

PATIENCE = 180  # seconds until something that should succeed has failed; the machine may be busy
SOON = 60.0  # seconds in which a lost rank must end all, on a busy machine: else they would wait for ever
LOST = 8  # exit code
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ranks")
    torch.manual_seed(2)
    save_model(made / "tiny", max_position_embeddings=65_536, initializer_range=0.3)
    mute_special_tokens(made / "tiny")
    (made / "note.txt").write_text("the first text " * 10)
    return made


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    places = {"XDG_STATE_HOME": str(tmp_path), "TRIFORCE_CHAT_CACHE": str(tmp_path / "cache")}
    return {**kept, **places, "OMP_NUM_THREADS": "1"}


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path, environ: dict[str, str]) -> Iterator[Start]:
    """``triforce-chat ARGUMENTS --tp 2`` in the tiny model's folder; a remaining process is killed."""
    running: list[subprocess.Popen[str]] = []

    def started(name: str, *arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        flags = ("--model", "tiny", "--draft", "none", "--device", "cpu", "--tp", 2)
        command = [sys.executable, "-m", *launcher, "triforce_chat", *map(str, (name, *flags, *arguments))]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        running.append(process)
        return process

    yield started
    for process in running:
        process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """True if the process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(*pids: int, seconds: float = SOON) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def event_of(process: subprocess.Popen[str]) -> str:
    """The next line that the program prints."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE)[0], "no event came"
    return process.stdout.readline()


def until_it_speaks(process: subprocess.Popen[str]) -> list[int]:
    """Wait for the middle of an answer; returns the other ranks."""
    while '"text"' not in event_of(process):
        assert process.poll() is None, process.communicate()
    workers = children(process.pid)
    assert len(workers) == 1
    return workers


ENDLESS = ("ask", "note.txt", "Why?", "--max-tokens", 60_000, "--jsonl")


def test_a_killed_rank_ends_the_program_with_one_line(start: Start) -> None:
    process = start(*ENDLESS)
    (worker,) = until_it_speaks(process)
    os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()
    _, stderr = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - killed < SOON
    assert stderr == "error: rank 1 of --tp ended without an error message; all ranks have ended\n"
    assert process.returncode == LOST


def test_no_rank_outlives_rank_0(start: Start) -> None:
    process = start(*ENDLESS)
    workers = until_it_speaks(process)
    process.kill()
    assert gone(process.pid, *workers)


def test_ctrl_c_ends_one_answer_and_all_ranks(start: Start) -> None:
    process = start(*ENDLESS)
    workers = until_it_speaks(process)
    for pid in (process.pid, *workers):  # as a terminal does
        os.kill(pid, signal.SIGINT)
    pressed = time.monotonic()
    _, stderr = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - pressed < SOON
    assert (process.returncode, stderr) == (130, "")
    assert gone(*workers)


def test_a_chat_on_two_ranks(folder: Path, environ: dict[str, str]) -> None:
    """An interrupt, another question, and then a rank dies while the user thinks."""
    flags = ("--model", "tiny", "--draft", "none", "--device", "cpu", "--tp", 2, "--max-tokens", 60_000)
    person = Terminal("-m", "triforce_chat", "chat", *flags, cwd=folder, environ=environ)
    try:
        person.until("Ctrl-D exits", ">", seconds=PATIENCE)
        person.send(f"Why?{ENTER}")
        person.until("tokens/s", seconds=PATIENCE)
        person.send(CTRL_C)
        person.until("stopped after", ">", seconds=PATIENCE)
        person.send(f"/set max-tokens 8{ENTER}")
        person.until(">", seconds=PATIENCE)
        person.send(f"And then?{ENTER}")
        person.until("8 tokens", ">", seconds=PATIENCE)
        (worker,) = children(person.pid)
        os.kill(worker, signal.SIGKILL)
        person.until("error: rank 1 of --tp ended", seconds=SOON)
        assert person.close() == LOST
    finally:
        person.kill()


def test_ranks_of_torchrun_end_with_the_input(start: Start) -> None:
    """The other ranks print nothing, read nothing and exit with code 0."""
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    process = start("chat", "--max-tokens", 6, "--quiet", launcher=torchrun)
    out, stderr = process.communicate("Why?\nWhat?\n", timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert len(out.splitlines()) == 2


INTERRUPTED_LATE = """
import signal, time
from multiprocessing import Pipe
from triforce_chat.parallel.workers import Workers

ours, theirs = Pipe()
workers = Workers([ours])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
theirs.close()
lost = workers.loss()
while signal.SIGUSR1 not in signal.sigpending():
    time.sleep(0.01)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
print("not again")
"""


def test_who_knows_of_a_lost_rank_is_not_interrupted_by_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_LATE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (LOST, "not again\n", "")


# The call that only rank 1 receives, its error, and the exit code; in the second case rank 0 blocks signals.
MISHAPS = {"settle": ("TypeError", LOST), "restack": ("out of memory", 6)}


@pytest.mark.parametrize("mishap", MISHAPS)
def test_an_error_on_another_rank_ends_all(mishap: str, folder: Path, environ: dict[str, str]) -> None:
    words, code = MISHAPS[mishap]
    command = [sys.executable, str(SUPPORT / "rank_mishap.py"), str(folder / "tiny"), mishap]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        worker = int(event_of(process))
        began = time.monotonic()
        _, stderr = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert time.monotonic() - began < SOON
    assert stderr.startswith("error: rank 1: ")
    assert words in stderr
    assert process.returncode == code
    assert gone(worker)
