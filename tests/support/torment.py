"""A batch whose driver and workers are killed at random moments, and what must be true of its output all the same.

``python -m support.torment --help`` runs it at any size; a small one is among the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER = b"triforce_chat.batch.worker"
DRIVER_EVERY = 4  # of so many kills one hits the driver, the others a worker
LATE = 1800.0  # seconds until a run that is left alone must have ended
COMPARED = ("file", "question", "token_ids", "text", "finish_reason", "sources", "error")


@dataclass(frozen=True)
class Batch:
    """A command; all but its output is the same in every run."""

    arguments: Sequence[str]

    def start(self, out: Path, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "triforce_chat", "batch", *self.arguments, "--out", str(out), *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def finish(self, out: Path, *more: str) -> None:
        with self.start(out, *more) as process:
            _, told = process.communicate(timeout=LATE)
        assert process.returncode == 0, told.decode()


def workers_of(driver: int) -> list[int]:
    """The worker processes of a driver."""
    try:
        children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
        return [int(child) for child in children if WORKER in Path(f"/proc/{child}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def torment(batch: Batch, out: Path, kills: int, longest: float, chance: random.Random) -> Counter[str]:
    """Run a batch and kill a process of it every so often, ``longest`` seconds apart at most; counts who was killed.

    Afterwards the batch has been run to its end. Raises AssertionError if the output is not valid at some moment, or if
    the batch ends before it was killed that often.
    """
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        with batch.start(out, "--quiet") as driver:
            while killed.total() < kills:
                wait_for_workers(driver)
                time.sleep(chance.uniform(0, longest))
                assert driver.poll() is None, "the batch ended too early: it needs more work or fewer kills"
                if kill_one(driver.pid, chance, killed) == "driver":
                    break
            driver.kill()
        check_lines(out)
    batch.finish(out, "--quiet", "--retry-failed")
    return killed


def wait_for_workers(driver: subprocess.Popen[bytes]) -> None:
    while not workers_of(driver.pid) and driver.poll() is None:
        time.sleep(0.01)


def kill_one(driver: int, chance: random.Random, killed: Counter[str]) -> str:
    """Kill the driver or one of its workers; returns which."""
    who = "driver" if killed.total() % DRIVER_EVERY == DRIVER_EVERY - 1 else "worker"
    victim = driver if who == "driver" else chance.choice(workers_of(driver) or [driver])
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:  # a worker that an earlier kill had hit
        return ""
    killed[who] += 1
    return who


def check_lines(out: Path) -> None:
    """Whatever was killed, all lines but the last are whole."""
    data = out.read_bytes() if out.exists() else b""
    for line in data.rpartition(b"\n")[0].splitlines():
        json.loads(line)


def told(out: Path) -> list[tuple[str, ...]]:
    """What is the same in every run: one tuple for each line, in the order of their ids."""
    records: list[dict[str, Any]] = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    return sorted(
        tuple(json.dumps(record.get(name)) for name in ("custom_id", *COMPARED)) for record in records
    )


def write_books(folder: Path, number: int, words: int, seed: int) -> None:
    """Books of random words, each another one."""
    chance = random.Random(seed)
    vocabulary = (
        "the",
        "keeper",
        "lamp",
        "storm",
        "log",
        "oil",
        "night",
        "sea",
        "bell",
        "stair",
        "glass",
        "wind",
    )
    folder.mkdir(parents=True, exist_ok=True)
    for book in range(number):
        text = " ".join(chance.choice(vocabulary) for _ in range(words))
        (folder / f"{book:03}.txt").write_text(f"Log number {book}. {text}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="empty, for books and outputs")
    parser.add_argument("--model", default="small")
    parser.add_argument("--books", type=int, default=60)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--longest", type=float, default=8.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    write_books(given.folder / "books", given.books, given.words, given.seed)
    questions = [part for each in ("Who?", "Where?", "What happened?") for part in ("--question", each)]
    flags = ("--model", given.model, "--device", "cpu", "--no-cache", "--temperature", "0", "--workers", "2")
    batch = Batch([str(given.folder / "books"), *questions, *flags, "--max-tokens", str(given.max_tokens)])
    started = time.monotonic()
    batch.finish(given.folder / "whole.jsonl")
    print(f"uninterrupted: {time.monotonic() - started:.0f} s", flush=True)
    started = time.monotonic()
    chance = random.Random(given.seed)
    killed = torment(batch, given.folder / "out.jsonl", given.kills, given.longest, chance)
    lines = told(given.folder / "out.jsonl")
    assert lines == told(given.folder / "whole.jsonl")
    print(
        f"{dict(killed)} killed, {time.monotonic() - started:.0f} s: {len(lines)} lines, equal and each once"
    )


if __name__ == "__main__":
    main()
