"""Seconds from Enter to the first token of an answer about a book that was read before, and where they go.

    python benchmarks/warm_ask.py BOOK.txt "Who lives at the inn?" --model small

A first process reads the book, whose keys and values are kept on the disk. Each further one, with a question of its
own, is timed from its start: until it begins to read the prompt (the interpreter, imports, model and book are loaded),
until the prompt is read, until the first token is printed, and until the end. Prints a record as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise

PARTS = ("loaded", "read", "first_token", "complete")


def ask(book: str, question: str, options: list[str]) -> dict[str, float]:
    """Seconds since the start of a process at which each part was done, and the tokens of the prompt."""
    command = [sys.executable, "-m", "triforce_chat", "ask", book, question, "--jsonl", *options]
    started, seen = time.perf_counter(), dict[str, float]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            event, now = json.loads(line), time.perf_counter() - started
            match event["event"]:
                case "prefilled":
                    seen.setdefault("loaded", now)
                    seen["read"] = now
                case "text" if event["token_ids"]:
                    seen.setdefault("first_token", now)
                case "finished":
                    seen |= {"complete": now, "prompt_tokens": event["prompt_tokens"]}
                    seen |= {"cached_tokens": event["cached_tokens"]}
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("book")
    parser.add_argument("question")
    parser.add_argument("--model", default="small")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    options = ["--model", chosen.model, "--max-tokens", str(chosen.tokens), "--temperature", "0"]
    ask(chosen.book, "What is this book about?", options)
    asked = [f"{chosen.question} ({n})" for n in range(chosen.repeats)]
    found = [ask(chosen.book, question, options) for question in asked]
    from triforce_chat.lab.machine import machine

    seconds = {part: [each[part] for each in found] for part in PARTS}
    spans = {
        part: statistics.median(here - before for before, here in zip(earlier, later, strict=True))
        for (_, earlier), (part, later) in pairwise([("start", [0.0] * len(found)), *seconds.items()])
    }
    record = {
        "machine": machine(),
        "command": " ".join(["python", *sys.argv]),
        "prompt_tokens": found[0]["prompt_tokens"],
        "cached_tokens": found[0]["cached_tokens"],
        "first_token_s": statistics.median(seconds["first_token"]),
        "range_s": [min(seconds["first_token"]), max(seconds["first_token"])],
        "spans_s": spans,
    }
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
