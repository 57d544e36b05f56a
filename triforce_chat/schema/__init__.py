"""What ``--json`` and ``--jsonl`` print, as JSON Schema: one file for each kind and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

Kind = Literal["events", "answer", "plan"]


def load_schema(kind: Kind) -> dict[str, Any]:
    """The schema of the present version: of a line of ``--jsonl``, of the object of ``--json``, or of a plan."""
    from triforce_chat.report import SCHEMA

    read: dict[str, Any] = json.loads(Path(__file__).with_name(f"{kind}-{SCHEMA}.json").read_text("utf-8"))
    return read
