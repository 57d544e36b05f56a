"""Whether the same seed gives the same tokens in every process, with the default stack.

    python benchmarks/seeded_asks.py BOOK.txt "Write a long letter about what happened." --model small --runs 20

A first process reads the book, measures this machine and answers; then the others answer, several at once if asked, so
that they disturb each other's times. Prints a record as JSON: how many different texts there were, and which levels
decoded them. Exits with 1 if there was more than one text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def ask(chosen: argparse.Namespace) -> dict[str, Any]:
    """The record that one process prints."""
    command = [sys.executable, "-m", "triforce_chat", "ask", chosen.book, chosen.question, "--json"]
    command += ["--model", chosen.model, "--seed", str(chosen.seed), "--temperature", str(chosen.temperature)]
    command += ["--max-tokens", str(chosen.tokens)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("book")
    parser.add_argument("question")
    parser.add_argument("--model", default="small")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=0.9)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1)
    chosen = parser.parse_args()
    started = time.perf_counter()
    answers = [ask(chosen)]
    with ThreadPoolExecutor(chosen.at_once) as pool:
        answers += pool.map(ask, [chosen] * (chosen.runs - 1))
    from triforce_chat.lab.machine import machine

    texts = {tuple(answer["token_ids"]) for answer in answers}
    record = {
        "machine": machine(),
        "command": " ".join(["python", *sys.argv]),
        "runs": chosen.runs,
        "different_texts": len(texts),
        "calibrations": sorted({answer["calibration"] or "none" for answer in answers}),
        "tokens": answers[0]["usage"]["completion_tokens"],
        "prompt_tokens": answers[0]["usage"]["prompt_tokens"],
        "levels": [answer["speculation"]["levels"] for answer in answers],
        "seconds": time.perf_counter() - started,
    }
    print(json.dumps(record, indent=2))
    raise SystemExit(len(texts) > 1)


if __name__ == "__main__":
    main()
