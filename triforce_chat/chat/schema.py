"""What ``--json`` and ``--jsonl`` print, as JSON Schema: one file for each kind and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

_FOLDER = Path(__file__).parents[1] / "schema"
Kind = Literal["events", "answer", "plan", "bench"]


def load_schema(kind: Kind) -> dict[str, Any]:
    """The present version's schema of a line of ``--jsonl``, the object of ``--json``, a plan or a bench."""
    from triforce_chat.chat.records import SCHEMA

    read: dict[str, Any] = json.loads((_FOLDER / f"{kind}-{SCHEMA}.json").read_text("utf-8"))
    return read
