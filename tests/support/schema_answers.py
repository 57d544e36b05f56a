"""Ten JSON Schemas, and a count of the valid answers that a random model, which knows no JSON, gives to them.

PYTHONPATH=tests python -m support.schema_answers --count 1000
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema

from support.chat_sessions import book
from support.fakes import tally_of
from support.serving import save_chat_model
from triforce_chat.chat.session import ChatSession
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.settings.settings import Settings

STACKS = ("autoregressive", "lookup", "triforce", "auto")
SCHEMAS: dict[str, dict[str, Any]] = {
    "a choice": {"enum": ["sea", "land", 3, None]},
    "a number": {"type": "integer", "minimum": -5, "maximum": 120},
    "a short text": {"type": "string", "maxLength": 8},
    "a pattern": {"type": "string", "pattern": "^[A-Z][a-z]{2,5}$"},
    "a list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    "a date": {"type": "string", "format": "date"},
    "an object": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "alternatives": {
        "anyOf": [{"const": "yes"}, {"type": "object", "properties": {}, "additionalProperties": False}]
    },
    "nested": {
        "type": "object",
        "properties": {"in": {"type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 1, "maxItems": 2}},
        "$defs": {
            "p": {
                "type": "object",
                "properties": {"x": {"enum": [1, 2]}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
        "required": ["in"],
        "additionalProperties": False,
    },
    "a reference": {"$ref": "#/$defs/e", "$defs": {"e": {"enum": ["a", "bc", "def"]}}},
}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--count", type=int, default=1000, help="answers")
    count = asked.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        record = counted(session_on(save_chat_model(Path(folder), 8192)), count)
    print(json.dumps(record))
    sys.exit(record["valid"] != count)


def counted(session: ChatSession, count: int) -> dict[str, Any]:
    """How many of so many answers are valid, in all and by schema, temperature and stack: a record."""
    from triforce_chat.lab.machine import machine

    cases: Counter[tuple[str, int, str]] = Counter()
    valid: Counter[tuple[str, int, str]] = Counter()
    started = time.monotonic()
    for number in range(count):
        case = case_of(number)
        cases[case] += 1
        valid[case] += is_valid(session, number)
    return {
        "schema": 1,
        "machine": machine(),
        "command": f"PYTHONPATH=tests python -m support.schema_answers --count {count}",
        "answers": count,
        "valid": valid.total(),
        "seconds": round(time.monotonic() - started, 1),
        "rows": [
            {
                "schema": case[0],
                "temperature": case[1],
                "stack": case[2],
                "answers": cases[case],
                "valid": valid[case],
            }
            for case in sorted(cases)
        ],
    }


def case_of(number: int) -> tuple[str, int, str]:
    """The schema, temperature and stack of an answer: they take turns as ``number`` grows."""
    turn = number // len(SCHEMAS)
    return [*SCHEMAS][number % len(SCHEMAS)], turn % 2, STACKS[turn // 2 % len(STACKS)]


def session_on(folder: Path) -> ChatSession:
    settings = Settings(model=str(folder), device="cpu", draft="none", max_tokens=400, dtype="float32")
    session = ChatSession(*load_engine(EngineSpec(settings)), settings)
    session.add(book("The book", 'The keeper said {"name": "Anna", "age": 41} and no more. ' * 30))
    return session


def is_valid(session: ChatSession, number: int) -> bool:
    """Whether the answer of this number is valid."""
    name, temperature, stack = case_of(number)
    for option, value in (("temperature", temperature), ("stack", stack), ("seed", number)):
        session.set_option(option, str(value))
    session.clear()
    session.schema = SCHEMAS[name]
    try:
        jsonschema.validate(json.loads(tally_of(session.ask("Who?", sources=False)).text), SCHEMAS[name])
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


if __name__ == "__main__":
    main()
