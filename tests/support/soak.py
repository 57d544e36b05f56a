"""Clients of a server for a while, with answers of random lengths and disconnects, and what they saw.

    python -m support.soak --seconds 600 --out soak.json -- triforce-chat serve book.txt --parallel 8

starts the server (from the folder ``tests``), asks with 8 clients, then with one, and prints a record in JSON, which
``--out`` keeps: throughput, time to first token, memory, and whether greedy answers are those that one client gets.
Each figure is said on standard error as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import torch

from triforce_chat.lab.machine import machine

QUESTIONS = ("Who?", "Where does it take place?", "What happens first?", "Why?", "How does it end?", "When?")
LEAVES = 0.15  # share of the requests whose client disconnects before the end


@dataclass(slots=True)
class Seen:
    """What clients saw."""

    first_s: list[float] = field(default_factory=list)  # to the first token
    texts: dict[tuple[str, int], str] = field(default_factory=dict)  # by question and length
    tokens: int = 0  # of whole answers
    left: int = 0
    seconds: float = 0.0  # until the last client was done
    errors: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)  # questions with two different answers
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self) -> dict[str, Any]:
        ordered = sorted(self.first_s)
        return {
            "answers": len(ordered),
            "left": self.left,
            "errors": len(self.errors),
            "first_errors": self.errors[:5],
            "differing": self.differing[:5],
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_s": self.tokens / self.seconds,
            "first_token_s": {
                "p50": statistics.median(ordered) if ordered else None,
                "p95": ordered[int(0.95 * (len(ordered) - 1))] if ordered else None,
            },
        }


def run(url: str, clients: int, seconds: float, longest: int, seed: int = 0, leaves: float = LEAVES) -> Seen:
    """Let ``clients`` ask one question after the other for so many seconds, and until some have stayed and left."""
    seen, began = Seen(), time.monotonic()
    end = began + seconds
    with ThreadPoolExecutor(clients) as pool:
        begun = [pool.submit(client, url, seen, end, longest, seed + n, leaves) for n in range(clients)]
        for each in begun:
            each.result()
    seen.seconds = time.monotonic() - began
    return seen


def client(url: str, seen: Seen, end: float, longest: int, seed: int, leaves: float) -> None:
    """Ask, read the answers, and sometimes leave in the middle."""
    drawn = random.Random(seed)
    plain = openai.DefaultHttpxClient(trust_env=False, verify=False)
    with openai.OpenAI(
        base_url=url, api_key="any", max_retries=0, timeout=600.0, http_client=plain
    ) as asking:
        while time.monotonic() < end or not (seen.texts and (seen.left or not leaves)):
            question, most = drawn.choice(QUESTIONS), max(2, longest // 2 ** drawn.randrange(4))
            stay = most if drawn.random() >= leaves else drawn.randrange(most)
            try:
                ask(asking, seen, question, most, stay)
            except openai.OpenAIError as error:
                with seen.lock:
                    seen.errors.append(repr(error))


def ask(asking: openai.OpenAI, seen: Seen, question: str, most: int, stay: int) -> None:
    """One streamed answer, of which at most ``stay`` pieces are read."""
    began, pieces, tokens = time.monotonic(), list[str](), 0
    stream = asking.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": question}],
        max_tokens=most,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"sources": False},
    )
    with stream:
        for chunk in stream:
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text and not pieces:
                with seen.lock:
                    seen.first_s.append(time.monotonic() - began)
            pieces += [text] if text else []
            if len(pieces) > stay:
                break
    note(seen, (question, most), "".join(pieces), tokens)


def note(seen: Seen, asked: tuple[str, int], text: str, tokens: int) -> None:
    """Count an answer; one of unknown length was left."""
    with seen.lock:
        if not tokens:
            seen.left += 1
        else:
            seen.tokens += tokens
            if seen.texts.setdefault(asked, text) != text:
                seen.differing.append(f"{asked[0]} ({asked[1]})")


@contextmanager
def server(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """A server as a process: (its address, process id)."""
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, "the server did not start"
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait()


def resident(pid: int) -> int:
    """Bytes of main memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return 1024 * int(found[1]) if found else 0


def held_on_devices() -> int:
    """Bytes of all GPUs' memory that are in use, by whomever."""
    return sum(total - free for free, total in map(torch.cuda.mem_get_info, range(torch.cuda.device_count())))


def tell(who: str, seen: Seen) -> Seen:
    """Say what clients saw."""
    made = seen.report()
    first = " / ".join(f"{seconds:.2f}" for seconds in made["first_token_s"].values() if seconds is not None)
    counted = f"{made['answers']} answers, {made['left']} left, {len(seen.errors)} errors"
    rate = f"{made['tokens_per_s']:.1f} tokens/s, first token after {first} s (p50 / p95)"
    print(f"{who}: {counted}; {rate}", file=sys.stderr, flush=True)
    return seen


def soak(command: Sequence[str], clients: int, seconds: float, longest: int) -> dict[str, Any]:
    """Many clients for ``seconds``, then one alone for a quarter of it, and whether it got the same answers."""
    began = time.monotonic()
    with server(command) as (url, pid):
        print(f"the server started in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        tell("warm-up", run(url, clients, seconds / 20, longest))
        before = resident(pid), held_on_devices()
        many = tell(f"{clients} clients", run(url, clients, seconds, longest))
        after = resident(pid), held_on_devices()
        alone = tell("one client", run(url, 1, seconds / 4, longest))
    both = many.texts.keys() & alone.texts.keys()
    differing = [f"{asked[0]} ({asked[1]})" for asked in both if many.texts[asked] != alone.texts[asked]]
    reports = many.report(), alone.report()
    return {
        "schema": 1,
        "machine": machine(),
        "command": f"python -m support.soak {' '.join(sys.argv[1:])}",
        "clients": clients,
        "seconds": seconds,
        "together": reports[0],
        "alone": reports[1],
        "times_alone": reports[0]["tokens_per_s"] / max(1e-9, reports[1]["tokens_per_s"]),
        "compared": len(both),
        "differing": differing,
        "resident_bytes": [before[0], after[0]],
        "device_bytes": [before[1], after[1]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--longest", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--out", type=Path, help="file for the record")
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args()
    record = json.dumps(soak(chosen.command, chosen.clients, chosen.seconds, chosen.longest))
    print(record)
    if chosen.out:
        chosen.out.write_text(record + "\n")


if __name__ == "__main__":
    main()
