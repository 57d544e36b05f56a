"""``triforce-chat schema``: the JSON Schemas of the machine-readable output."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from triforce_chat.cli.failures import failures


def schema(
    kind: Annotated[
        Literal["events", "answer", "batch", "plan", "bench"],
        typer.Argument(
            help="Lines of --jsonl, the object of --json, a line of batch, or that of plan or bench."
        ),
    ] = "events",
) -> None:
    """Print the JSON Schema of what --jsonl or --json prints."""
    from triforce_chat.chat.schema import load_schema

    with failures(debug=False):
        print(json.dumps(load_schema(kind), indent=2), flush=True)
