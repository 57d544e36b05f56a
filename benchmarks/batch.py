"""Answers per second of a batch: of several workers over one, and of a book that is read once over once per question.

    python benchmarks/batch.py FOLDER-OF-TEXTS --workers 2 --model small

Parts of the texts are the books. What is not an option of this program goes to ``triforce-chat batch``, which runs
three times: with one worker, with several, and with one worker for requests each of which is about another copy of its
book, in an order in which no prompt begins as the one before. Loading, the first book of each worker (whose graphs are
captured meanwhile) and the end, when not all workers have a book, are not counted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triforce_chat.lab.machine import machine

QUESTIONS = (
    "Who tells the story?",
    "Where does it take place?",
    "Who are the main characters?",
    "What does the hero want?",
    "Who stands in the way?",
    "What happens at the beginning?",
    "What is said about money?",
    "Which places are named?",
)
POLL = 0.005  # seconds between two looks at the output
Requests = list[tuple[Path, str]]


def write_books(texts: Sequence[Path], folder: Path, number: int, characters: int) -> list[Path]:
    """Parts of that many characters, from one text after the other."""
    folder.mkdir()
    books = []
    for book in range(number):
        text = texts[book % len(texts)].read_text("utf-8")
        start = min(book // len(texts) * characters, len(text) - characters)
        if start < 0:
            sys.exit(f"{texts[book % len(texts)]} has fewer than {characters:,} characters")
        books.append(folder / f"{book:03}.txt")
        books[-1].write_text(text[start : start + characters], "utf-8")
    return books


def copies(books: Sequence[Path], folder: Path, number: int) -> Requests:
    """Every question about a copy of its own; those about one book do not follow each other."""
    found = []
    for place, question in enumerate(QUESTIONS[:number]):
        (folder / str(place)).mkdir(parents=True)
        for book in books:
            copy = folder / str(place) / book.name
            copy.write_bytes(book.read_bytes())
            found.append((copy, question))
    return found


def write_requests(path: Path, requests: Requests, tokens: int) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for number, (book, question) in enumerate(requests):
            messages = [{"role": "user", "content": question}]
            body = {"model": "default", "messages": messages, "max_tokens": tokens, "sources": True}
            body["documents"] = [str(book)]
            head = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions"}
            file.write(json.dumps({**head, "body": body}) + "\n")


def arrivals(command: Sequence[str], out: Path) -> list[float]:
    """Run a batch; when each line of its output came."""
    found: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        running = True
        while running:
            running = process.poll() is None
            lines = out.read_bytes().count(b"\n") if out.exists() else 0
            found += [time.monotonic()] * (lines - len(found))
            time.sleep(POLL)
    if process.returncode:
        sys.exit(f"exit code {process.returncode} of {shlex.join(command)}")
    return found


def measured(name: str, asked: Sequence[str], folder: Path, questions: int, workers: int) -> dict[str, Any]:
    """The answers per second of one run; ``asked``: arguments of the command."""
    out = folder / f"{name}.jsonl"
    command = [sys.executable, "-m", "triforce_chat", "batch", *asked, "--out", str(out)]
    times = arrivals([*command, "--workers", str(workers), "--no-cache", "--quiet"], out)
    first, last = questions * workers - 1, len(times) - 1 - questions * (workers - 1)
    if last <= first:
        sys.exit(f"{len(times)} answers are too few for {workers} workers; use more --books")
    records = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    usage = [record.get("usage") or record["response"]["body"]["usage"] for record in records]
    seconds = times[last] - times[first]
    return {
        "name": name,
        "workers": workers,
        "answers": len(times),
        "counted": last - first,
        "seconds": seconds,
        "answers_per_s": (last - first) / seconds,
        "prompt_tokens": sum(each["prompt_tokens"] for each in usage) / len(usage),
        "completion_tokens": sum(each["completion_tokens"] for each in usage) / len(usage),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, help="folder of .txt files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--books", type=int, default=16)
    parser.add_argument("--apart", type=int, default=4, help="books that are read once for each question")
    parser.add_argument("--characters", type=int, default=300_000, help="of each book")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    parser.add_argument("--tokens", type=int, default=32, help="of an answer, at most")
    given, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = sorted(given.texts.glob("*.txt"))
        books = write_books(texts, folder / "books", given.books, given.characters)
        questions = [part for each in QUESTIONS[: given.questions] for part in ("--question", each)]
        apart = copies(books[: given.apart], folder / "copies", given.questions)
        write_requests(folder / "in.jsonl", apart, given.tokens)
        flags += ["--temperature", "0", "--max-tokens", str(given.tokens)]
        asked = [str(folder / "books"), *questions, *flags]
        one = measured("one", asked, folder, given.questions, 1)
        several = measured("several", asked, folder, given.questions, given.workers)
        requests = ["--requests", str(folder / "in.jsonl"), *flags]
        unshared = measured("unshared", requests, folder, given.questions, 1)
    record = {
        "schema": 1,
        "machine": machine(),
        "command": f"python benchmarks/batch.py {shlex.join(sys.argv[1:])}",
        "rows": [one, several, unshared],
        "several_over_one": several["answers_per_s"] / one["answers_per_s"],
        "shared_over_unshared": one["answers_per_s"] / unshared["answers_per_s"],
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
