"""A batch of many books and one of many lines: what memory it takes, book by book, and when it begins to answer.

``python -m support.batch_scale memory`` and ``... queue`` print a record; both answer with a tiny random model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.torment import Batch, write_books

POLL = 0.002  # seconds between two looks at the output
STEP = 25  # books between two points of the curve, and of both medians that tell the growth
REPEATS = 5  # of a start, whose median counts
MODEL = "random weights of 2 layers and 32 channels: save_chat_model of tests/support/serving.py"
PAGE = os.sysconf("SC_PAGE_SIZE")


def watched(process: subprocess.Popen[bytes], out: Path) -> Iterator[tuple[int, float]]:
    """(answers in the output, MB that the process holds), whenever there are more of them, until it ends."""
    seen, size = 0, -1
    with open(out, "rb") as lines:
        while process.poll() is None:
            if (now := os.fstat(lines.fileno()).st_size) == size:
                time.sleep(POLL)
                continue
            size = now
            seen += lines.read().count(b"\n")
            yield seen, int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE / 1e6


def memory(flags: Sequence[str], folder: Path, books: int, words: int, warm: int) -> dict[str, Any]:
    """The curve of a batch with two questions about each of so many books of different lengths, and its growth.

    ``warm``: books after which memory should not grow any more.
    """
    write_books(folder / "books", books, words, seed=1)
    chance = random.Random(2)
    for book in (folder / "books").iterdir():
        text = book.read_text()
        book.write_text(text[: chance.randint(len(text) // 2, len(text))])
    out = folder / "out.jsonl"
    out.touch()
    asked = (str(folder / "books"), "--question", "Who?", "--question", "Why?", "--max-tokens", "8", *flags)
    sizes: dict[int, float] = {}
    with Batch(asked).start(out, "--quiet") as process:
        for lines, held in watched(process, out):
            sizes.setdefault(lines // 2, held)
    assert process.returncode == 0
    points = [book for book in sorted(sizes) if book % STEP == 0 or book == books]
    later = [sizes[book] for book in sorted(sizes) if warm <= book < books]
    grown = statistics.median(later[-STEP:]) - statistics.median(later[:STEP])
    return {
        "books": books,
        "words": words,
        "resident_mb": {book: round(sizes[book], 1) for book in points},
        "warm_books": warm,
        "growth_mb": round(grown, 1),
    }


def first_answer(asked: Sequence[str], out: Path) -> float:
    """Seconds from the command's start until its first line is on the disk; it is then stopped."""
    started = time.monotonic()
    with Batch(asked).start(out, "--quiet") as process:
        while not (out.exists() and out.stat().st_size):
            assert process.poll() is None
            time.sleep(POLL)
        took = time.monotonic() - started
        process.kill()
    out.unlink()
    return took


def queue(flags: Sequence[str], folder: Path, lines: int) -> dict[str, Any]:
    """The first answer to a file of so many requests, and to a file of one, which starts and loads as long."""
    took: dict[int, list[float]] = {1: [], lines: []}
    for number in took:
        (folder / f"{number}.jsonl").write_text("".join(request(each) for each in range(number)))
    for _ in range(REPEATS):  # in turn, so that both meet the same machine
        for number, seconds in took.items():
            asked = ("--requests", str(folder / f"{number}.jsonl"), *flags)
            seconds.append(first_answer(asked, folder / "out.jsonl"))
    alone, whole = (statistics.median(seconds) for seconds in took.values())
    return {
        "lines": lines,
        "first_answer_s": round(whole, 3),
        "first_answer_of_one_line_s": round(alone, 3),
        "queue_s": round(whole - alone, 3),
    }


def request(number: int) -> str:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": f"Who is {number}?"}],
        "max_tokens": 4,
    }
    line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["memory", "queue"])
    parser.add_argument("--books", type=int, default=300)
    parser.add_argument("--words", type=int, default=150)
    parser.add_argument("--warm", type=int, default=100, help="books after which memory is to be flat")
    parser.add_argument("--lines", type=int, default=10_000)
    given = parser.parse_args()
    from support.serving import save_chat_model
    from triforce_chat.lab.machine import machine

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_chat_model(folder / "model")
        flags = (
            "--model",
            str(model),
            "--device",
            "cpu",
            "--draft",
            "none",
            "--no-cache",
            "--stack",
            "lookup",
        )
        if given.what == "memory":
            found = memory(flags, folder, given.books, given.words, given.warm)
        else:
            found = queue(flags, folder, given.lines)
    command = f"python -m support.batch_scale {' '.join(sys.argv[1:])}"
    print(json.dumps({"schema": 1, "machine": machine(), "command": command, **found, "model": MODEL}))


if __name__ == "__main__":
    main()
