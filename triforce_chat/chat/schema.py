"""The JSON Schemas of what ``--json`` and ``--jsonl`` print: one file for each kind and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

_FOLDER = Path(__file__).parents[1] / "schema"
Kind = Literal["events", "answer", "batch", "plan", "bench"]


def load_schema(kind: Kind) -> dict[str, Any]:
    """The present version's schema of a kind of output.

    "events": a line of ``--jsonl``; "answer": the object of ``--json``; "batch": a line of the
    command's output about a book; "plan" and "bench": those of the commands.
    """
    from triforce_chat.chat.records import SCHEMA

    schema: dict[str, Any] = json.loads((_FOLDER / f"{kind}-{SCHEMA}.json").read_text("utf-8"))
    return schema
