"""Puts questions to a running server from several clients while one sends a conversation of many messages.

    triforce-chat serve --model small --draft none --max-tokens 32 --context 8192
    python benchmarks/many_clients.py http://127.0.0.1:8000/v1

Prints who was answered, and after how long, as a record in JSON. The long conversation is answered as well if the
server's context holds it, otherwise refused with the numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

QUESTIONS = ("Who keeps the light?", "Where does the ferry land?", "What is the reef called?")
PATIENCE = 600.0  # seconds
LISTED = 200  # characters of a refusal


def asked(url: str, client: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Send a conversation; returns the status, the seconds until all was there, and what was said."""
    body = json.dumps({"model": "default", "messages": messages, "user": client}).encode()
    request = Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
    began = time.monotonic()
    try:
        with urlopen(request, timeout=PATIENCE) as reply:
            status, said = reply.status, json.load(reply)
    except HTTPError as error:
        status, said = error.code, json.load(error)
    row = {"client": client, "status": status, "seconds": round(time.monotonic() - began, 2)}
    if status != 200:
        return {**row, "refusal": said["error"]["message"][:LISTED]}
    return {**row, "usage": {name: said["usage"][f"{name}_tokens"] for name in ("prompt", "completion")}}


def main() -> None:
    from triforce_chat.lab.machine import machine

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("url")
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--messages", type=int, default=20_001)
    chosen = options.parse_args()
    roles = ("user", "assistant")
    long = [{"role": roles[n % 2], "content": "x"} for n in range(chosen.messages)]

    def client(number: int) -> list[dict[str, Any]]:
        named = f"client {number}"
        return [asked(chosen.url, named, [{"role": "user", "content": each}]) for each in QUESTIONS]

    with ThreadPoolExecutor(chosen.clients + 1) as pool:
        big = pool.submit(asked, chosen.url, "of many messages", long)
        rows = [row for found in pool.map(client, range(chosen.clients)) for row in found]
    record = {
        "schema": 1,
        "machine": machine(),
        "command": f"python benchmarks/many_clients.py {chosen.url}",
        "messages": chosen.messages,
        "questions": len(rows),
        "answered": sum(row["status"] == 200 for row in rows),
        "median_s": statistics.median(row["seconds"] for row in rows),
        "slowest_s": max(row["seconds"] for row in rows),
        "rows": [*rows, big.result()],
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
