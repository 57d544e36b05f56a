"""A batch whose driver and workers are killed at random moments, and what must be true of its output all the same.

``python -m support.torment --help`` runs it at any size, with processes or with Ray actors; a small one is among the
tests.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER = b"triforce_chat.batch.worker"
ACTOR = b"ray::Reader"
MARK = "TORMENT_CLUSTER"  # a variable of all processes of a cluster
MACHINE_CPUS = 3
DRIVER_EVERY = 2  # of so many kills one hits the driver, the others a worker
LATE = 1800.0  # seconds until a run that is left alone must have ended
COMPARED = ("file", "question", "token_ids", "text", "finish_reason", "sources", "error")


def workers_of(driver: int) -> list[int]:
    """The worker processes of a driver."""
    try:
        children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
        return [int(child) for child in children if WORKER in Path(f"/proc/{child}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):
        return []


@dataclass(frozen=True)
class Batch:
    """A command; all but its output is the same in every run."""

    arguments: Sequence[str]
    workers: Callable[[int], list[int]] = workers_of  # the processes that answer for a driver
    lose_machine: Callable[[], None] | None = None  # and whatever runs on it, while another one comes

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


def torment(batch: Batch, out: Path, kills: int, longest: float, chance: random.Random) -> Counter[str]:
    """Run a batch and kill a process of it every so often, ``longest`` seconds apart at most; counts who was killed.

    Afterwards the batch has been run to its end. Raises AssertionError if the output is not valid at some moment, or if
    the batch ends before it was killed that often.
    """
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        with batch.start(out, "--quiet") as driver:
            while killed.total() < kills:
                while not batch.workers(driver.pid) and driver.poll() is None:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, longest))
                assert driver.poll() is None, "the batch ended too early: it needs more work or fewer kills"
                if batch.lose_machine and not killed["machine"] and killed.total() >= kills // 2:
                    batch.lose_machine()
                    killed["machine"] += 1
                elif kill_one(batch, driver.pid, chance, killed) == "driver":
                    break
            driver.kill()
        check_lines(out)
    batch.finish(out, "--quiet", "--retry-failed")
    return killed


def kill_one(batch: Batch, driver: int, chance: random.Random, killed: Counter[str]) -> str:
    """Kill the driver or one of its workers; returns which."""
    who = "driver" if killed.total() % DRIVER_EVERY == DRIVER_EVERY - 1 else "worker"
    workers = [] if who == "driver" else batch.workers(driver)
    if who == "worker" and not workers:
        return ""
    victim = chance.choice(workers or [driver])
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


@contextmanager
def cluster() -> Iterator[tuple[str, Callable[[], None]]]:
    """A Ray cluster here: its address, and what kills the raylet of its only machine and adds another one."""
    from ray.cluster_utils import Cluster

    from triforce_chat.batch.ray_actors import OBJECT_STORE, QUIET

    os.environ |= {**QUIET, MARK: str(os.getpid())}
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    made = Cluster(initialize_head=True, head_node_args=head)
    machines = [made.add_node(num_cpus=MACHINE_CPUS, object_store_memory=OBJECT_STORE)]

    def lose() -> None:
        machines.append(made.add_node(num_cpus=MACHINE_CPUS, object_store_memory=OBJECT_STORE))
        made.remove_node(machines.pop(0), allow_graceful=False)

    try:
        yield made.address, lose
    finally:
        made.shutdown()


def actors(driver: int) -> list[int]:  # noqa: ARG001
    """The processes of this cluster that are actors."""
    marked = f"{MARK}={os.getpid()}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(ACTOR):
                found += [int(process.name)] * (marked in (process / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
    return found


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
    parser.add_argument(
        "--ray", action="store_true", help="three actors of a cluster, whose machine is lost, too"
    )
    given = parser.parse_args()
    write_books(given.folder / "books", given.books, given.words, given.seed)
    questions = [part for each in ("Who?", "Where?", "What happened?") for part in ("--question", each)]
    flags = ("--model", given.model, "--device", "cpu", "--no-cache", "--temperature", "0")
    common = [str(given.folder / "books"), *questions, *flags, "--max-tokens", str(given.max_tokens)]
    if not given.ray:
        print(json.dumps(measured(Batch([*common, "--workers", "2"]), given)))
        return
    with cluster() as (address, lose):
        wanted = ("--workers", str(MACHINE_CPUS), "--ray", address)
        print(json.dumps(measured(Batch([*common, *wanted], actors, lose), given)))


def measured(batch: Batch, given: argparse.Namespace) -> dict[str, Any]:
    """Run a batch alone and tormented, and compare: a record of how often and how long."""
    from triforce_chat.lab.machine import machine

    whole, out = given.folder / "whole.jsonl", given.folder / "out.jsonl"
    started = time.monotonic()
    batch.finish(whole, "--quiet")
    alone, started = time.monotonic() - started, time.monotonic()
    killed = torment(batch, out, given.kills, given.longest, random.Random(given.seed))
    lines = told(out)
    assert lines == told(whole)
    return {
        "schema": 1,
        "machine": machine(),
        "command": f"python -m support.torment {' '.join(sys.argv[1:])}",
        "killed": dict(killed),
        "lines": len(lines),
        "equal": sum(a == b for a, b in zip(lines, told(whole), strict=True)),
        "uninterrupted_s": alone,
        "killed_s": time.monotonic() - started,
    }


if __name__ == "__main__":
    main()
