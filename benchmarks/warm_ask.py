"""Seconds from Enter to the first token of an answer about a book that was read before, and where they go.

    python benchmarks/warm_ask.py BOOK.txt "Who lives at the inn?" --model small

A first process reads the book, whose keys and values are kept on the disk. Each further one, with a question of its
own, is timed from its start, and tells when the thread that answers was done with each part: the parts add up to the
whole, and what other threads do meanwhile is seen only where that thread waits for it. Prints a record as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

# In order: Python has begun; the commands are imported; the document is parsed; torch is imported; so is what loads a
# model; the engine is ready; the document is tokenized; so is the question, with what is quoted for it; the first of
# the kept keys and values, and all of them, are read; so is the rest of the prompt; the first token is printed; the
# answer has ended.
PARTS = (
    *("interpreter", "commands", "document", "torch", "imports", "model", "tokens", "question"),
    *("first_kept", "kept", "read", "first_token", "complete"),
)
CHILD = "--as-child"


def ask(book: str, question: str, options: list[str]) -> dict[str, float]:
    """Seconds since the start of a process at which each part was done, and the tokens of the prompt."""
    command = [sys.executable, __file__, CHILD, "ask", book, question, "--jsonl", *options]
    started, seen = time.perf_counter(), dict[str, float]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            event, now = json.loads(line), time.perf_counter() - started
            match event["event"]:
                case "reached":
                    seen[event["part"]] = event["at"] - started
                case "prefilled":
                    seen.setdefault("first_kept", now)
                    if event["done"] == event["cached"]:
                        seen["kept"] = now
                    seen["read"] = now
                case "text" if event["token_ids"]:
                    seen.setdefault("first_token", now)
                case "finished":
                    seen |= {"complete": now, "prompt_tokens": event["prompt_tokens"]}
                    seen |= {"cached_tokens": event["cached_tokens"]}
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}")
    return seen


def reached(part: str) -> None:
    """Tell the parent that a part is done; both read the same clock."""
    print(json.dumps({"event": "reached", "part": part, "at": time.perf_counter()}), flush=True)


def then(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which tells when it returns."""

    def telling(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        reached(part)
        return result

    return telling


def child() -> None:
    """What ``triforce-chat`` does, telling when the parts of a start are done."""
    reached("interpreter")
    from triforce_chat.bytecode import keep_bytecode

    keep_bytecode()
    from triforce_chat.cli import app, engines
    from triforce_chat.cli import ask as command

    reached("commands")
    bring, opened = engines.import_module, command.open_session

    def bring_telling(name: str) -> Any:
        if name == engines.LOADER:
            bring("torch")
            reached("torch")
            return then("imports", bring)(name)
        return bring(name)

    def open_telling(*given: Any) -> Any:
        session, seconds = then("tokens", opened)(*given)
        session.question_ids = then("question", session.question_ids)
        return session, seconds

    replaced = {
        (engines, "import_module"): bring_telling,
        (engines, "open_answering"): then("model", engines.open_answering),
        (command, "read_all"): then("document", command.read_all),
        (command, "open_session"): open_telling,
    }
    for (owner, name), function in replaced.items():
        setattr(owner, name, function)
    app.main()


def main() -> None:
    """Measure, or be measured."""
    if sys.argv[1:2] == [CHILD]:
        del sys.argv[1]
        child()
        return
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

    # What another thread was done with before it was needed took no time.
    for each in found:
        for before, part in pairwise(PARTS):
            each[part] = max(each[part], each[before])
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
