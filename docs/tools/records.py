"""Reads benchmark records and writes Markdown: the one place that knows where they are and how figures are rounded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]

# Tables repeat the command of a record, which names modules as they were called when it was measured.
MOVED = {"triforce_chat.bench.": "triforce_chat.lab.bench."}


@cache
def record(name: str) -> Json:
    """A file of ``benchmarks/`` by its name without the suffix."""
    read: Json = json.loads((ROOT / "benchmarks" / f"{name}.json").read_text("utf-8"))
    return read


def rows(name: str, **wanted: Any) -> list[Json]:
    """The rows of a record whose fields have these values."""
    return [row for row in record(name)["rows"] if all(row[key] == value for key, value in wanted.items())]


def row(name: str, **wanted: Any) -> Json:
    """The only row with these values."""
    (found,) = rows(name, **wanted)
    return found


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *lines]) + "\n"


def source(*names: str) -> str:
    """Where the figures above come from: the records, the machine, and the commands."""
    return "\n".join(_source(name) for name in names)


def _source(name: str) -> str:
    read = record(name)
    machine = read["machine"]
    chip = machine.get("accelerator")
    count = machine.get("accelerators", 1)
    gpu = f"{count} {chip}" if count > 1 else f"one {chip}"
    where = gpu if chip else f"{machine['processor']}, {machine['threads']} threads"
    command = read["command"]
    for old, new in MOVED.items():
        command = command.replace(old, new)
    return (
        f"From [`{name}.json`](../../benchmarks/{name}.json): {where}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}, version {machine['triforce_chat']}.\n\n"
        f"```sh\n{command}\n```\n"
    )


def factor(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}x"


def span(interval: Sequence[float] | None, digits: int = 2) -> str:
    """An interval in brackets, with a blank before it."""
    return "" if interval is None else f" ({interval[0]:.{digits}f}–{interval[1]:.{digits}f})"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def gigabytes(value: float) -> str:
    return f"{value / 1e9:.1f}"


def accepted(row: Json) -> str:
    """Acceptance by level, as in ``retrieval 0.41 / target 0.96``."""
    levels = [(level, share) for level, share in row["acceptance"].items() if share is not None]
    return " / ".join(f"{level} {share:.2f}" for level, share in levels)


def median_range(row: Json, digits: int = 1) -> str:
    """Milliseconds per token: median and range."""
    return number(row["ms_per_token"], digits) + span(row["spread_ms"], digits)
