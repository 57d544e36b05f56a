"""Compares the speed of answers in JSON of a schema with that of answers without one.

    python benchmarks/schema_speed.py --model small

One answer of each comparison is free and the other one follows a schema with nested objects, in turns, about the same
document, which is read once. Prints the median speeds in tokens per second, and the median of their ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from triforce_chat.chat.events import Tally
from triforce_chat.chat.session import ChatSession
from triforce_chat.documents import read
from triforce_chat.lab.machine import machine
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.settings.settings import Settings

BOOK = Path(__file__).parents[1] / "examples" / "the-lighthouse-at-varra.md"
TEXT = {"type": "string", "maxLength": 40}


def closed(**properties: Any) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


PLACE = closed(name=TEXT, year={"type": "integer", "minimum": 1700, "maximum": 2100})
SPEED = closed(
    title=TEXT,
    keeper=closed(name=TEXT, since=PLACE["properties"]["year"]),
    places={"type": "array", "items": PLACE, "minItems": 3, "maxItems": 3},
)
QUESTION = "Which people, places and years does the text name?"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--model", default="small")
    asked.add_argument("--stack", default="auto")
    asked.add_argument("--runs", type=int, default=5, help="comparisons of speed")
    given = asked.parse_args()
    session = opened(given.model, given.stack)
    record = {
        "schema": 1,
        "machine": machine(),
        "command": f"python benchmarks/schema_speed.py {' '.join(sys.argv[1:])}".strip(),
        "model": given.model,
        "stack": given.stack,
        **speed(session, given.runs),
    }
    print(json.dumps(record))


def opened(model: str, stack: str) -> ChatSession:
    settings = Settings(model=model, device="cpu", stack=stack, max_tokens=400, passages=0)
    session = ChatSession(*load_engine(EngineSpec(settings)), settings)
    session.add(read(str(BOOK)))
    return session


def answered(session: ChatSession, schema: dict[str, Any] | None, most: int) -> Tally:
    """One answer of at most so many tokens, to a new conversation about the book."""
    session.set_option("max-tokens", str(most))
    session.clear()
    session.schema, tally = schema, Tally()
    for event in session.ask(QUESTION, sources=False):
        tally.add(event)
    return tally


def speed(session: ChatSession, runs: int) -> dict[str, Any]:
    session.set_option("temperature", "0")
    free, bound = [], []
    for run in range(1 + runs):  # the first one warms up
        for speeds, schema, most in ((bound, SPEED, 400), (free, None, 120)):
            tally = answered(session, schema, most)
            if run:
                speeds.append(1000 / tally.ms_per_token)
    return {
        "tokens_per_s": round(median(free), 2),
        "with_schema": round(median(bound), 2),
        "ratio": round(median(b / f for b, f in zip(bound, free, strict=True)), 3),
        "runs": runs,
    }


if __name__ == "__main__":
    main()
