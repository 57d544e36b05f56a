"""Seconds until a question about a document is answered by a new process, beside llama.cpp's server doing the same.

    python benchmarks/cold_ask.py MODEL.gguf BOOK.txt "What is this text about?" --characters 22000

Both read the same excerpt, keep nothing of it from before, and answer greedily; the clock runs from the start of the
process until the answer is complete. Needs the extra ``peer``. Prints a record as JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from triforce_chat.lab.bench.peer_process import Job, server
from triforce_chat.prompts import prompt

SPARE_TOKENS = 512  # of the peer's context beyond the excerpt
CHARACTERS_PER_TOKEN = 2  # at least: the peer's context must hold the excerpt


def ours(chosen: argparse.Namespace, excerpt: Path) -> dict[str, Any]:
    """Our answer, by the command that a user types."""
    command = [sys.executable, "-m", "triforce_chat", "ask", str(excerpt), chosen.question]
    command += ["--model", chosen.model, "--no-cache", "--passages", "0", "--temperature", "0"]
    told = json.loads(run([*command, "--max-tokens", str(chosen.tokens), "--json"]))
    return {"prompt_tokens": told["usage"]["prompt_tokens"], "tokens": len(told["token_ids"])}


def peers(_: argparse.Namespace, excerpt: Path) -> dict[str, Any]:
    """llama.cpp's answer, by this script in a process of its own."""
    told = json.loads(run([sys.executable, *sys.argv, "--answer-from", str(excerpt)]).splitlines()[-1])
    return {"prompt_tokens": told["usage"]["prompt_tokens"], "tokens": told["usage"]["completion_tokens"]}


def run(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


def answer(chosen: argparse.Namespace) -> None:
    """Have llama.cpp's server answer, and print what it returns."""
    text = Path(chosen.answer_from).read_text("utf-8")
    job = Job(chosen.model, None, "none", chosen.threads, chosen.tokens, 1, [])
    made = server(job, len(text) // CHARACTERS_PER_TOKEN + SPARE_TOKENS)
    asked = [{"role": "system", "content": prompt("system")}]
    asked += [{"role": "user", "content": f"{text}\n\n{chosen.question}"}]
    wanted = {"messages": asked, "max_tokens": chosen.tokens, "temperature": 0}
    connection = http.client.HTTPConnection(made.listening_address.removeprefix("http://"))
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(wanted), {"Content-Type": "application/json"}
    )
    print(json.dumps(json.load(connection.getresponse())), flush=True)


def measured(answers: Any, chosen: argparse.Namespace, excerpt: Path) -> dict[str, Any]:
    """The median seconds of some answers, and their range."""
    seconds, told = [], {}
    for _ in range(chosen.repeats):
        started = time.perf_counter()
        told = answers(chosen, excerpt)
        seconds.append(time.perf_counter() - started)
    return {**told, "seconds": statistics.median(seconds), "range_s": [min(seconds), max(seconds)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("document", type=Path)
    parser.add_argument("question")
    parser.add_argument("--characters", type=int, default=22_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--answer-from", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.answer_from:
        answer(chosen)
        return
    from triforce_chat.lab.machine import machine

    with tempfile.TemporaryDirectory() as folder:
        excerpt = Path(folder) / chosen.document.name
        excerpt.write_text(chosen.document.read_text("utf-8")[: chosen.characters], "utf-8")
        rows = {name: measured(each, chosen, excerpt) for name, each in (("ask", ours), ("llama.cpp", peers))}
    command = " ".join(["python", *sys.argv])
    print(json.dumps({"machine": machine(), "command": command, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
