"""What a plot shows, read out of the records of ``bench --json``: panels, series and points."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import fsum
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any

from triforce_chat.errors import UsageError
from triforce_chat.lab.bench.confidence import interval

CONTEXT, TEMPERATURE = "context", "temperature"
LABELS = {CONTEXT: "context (tokens)", TEMPERATURE: "temperature", "tokens": "output length (tokens)"}
DOUBLING = (CONTEXT, "budget", "chunk", "tokens", "tree-size")  # whose axis is logarithmic
SPEEDUP, TOKENS, MS = MEASURES = ("speedup", "tokens_per_verification", "ms_per_token")
# A draft model's drafts are verified by the middle level where there is one.
VERIFYING = ("retrieval", "target")
PAPER = "TriForce, published (A100, Llama-2-7B-128K)"
# arXiv 2404.11912: on chip, 124,928 tokens; figures by temperature (at a budget of 4,096), and ablations at T=0.
PUBLISHED: dict[str, dict[float, float]] = {
    TEMPERATURE: {0.0: 2.31, 0.2: 2.25, 0.4: 2.20, 0.6: 2.19, 0.8: 2.08, 1.0: 2.08, 1.2: 2.02},
    "tokens": {256: 2.31, 512: 2.28, 768: 2.34, 1024: 2.32, 1536: 2.28, 2048: 2.29},
    "draft-gamma": {1: 2.30, 2: 2.31, 3: 2.24, 4: 2.17, 5: 2.09, 6: 2.01, 7: 1.92, 8: 1.83},
    "gamma": {1: 1.62, 2: 1.90, 3: 2.13, 4: 2.22, 5: 2.26, 6: 2.31, 7: 2.24, 8: 2.20},
}


@dataclass(frozen=True, slots=True)
class Point:
    """A value, and where its mean lies with 95 % if that is known."""

    at: float | str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class Panel:
    """A measure against one quantity, a series for each contender."""

    axis: str
    measure: str = SPEEDUP
    series: dict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    published: list[Point] = field(default_factory=list)

    @property
    def label(self) -> str:
        return LABELS.get(self.axis, self.axis)

    @property
    def named(self) -> bool:
        """Its values are words."""
        return any(isinstance(point.at, str) for points in self.series.values() for point in points)


def rows_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of all records that were held against plain decoding. Raises UsageError."""
    found: list[dict[str, Any]] = []
    for file in files:
        try:
            record = json.loads(file.read_text("utf-8"))
            rows = [{"varied": {}, "temperature": 0.0, **row} for row in record["rows"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{file} is not a record of bench --json: {error}") from None
        what = {"shape": label_of(record), "on_one_chip": on_one_chip(record)}
        found += [{**row, **what} for row in rows if row.get("speedup") is not None]
    return pooled(found)


def on_one_chip(record: dict[str, Any]) -> bool:
    """Whether one GPU, or processor, held everything."""
    return gpus_of(record) == 1 and not record.get("offloaded") and "gpu_layers" not in record


def gpus_of(record: dict[str, Any]) -> int:
    gpus: int = (record.get("settings") or {}).get("tp", 1)
    return gpus


def label_of(record: dict[str, Any]) -> str:
    """What a whole record was measured with, where that is not the rule."""
    gpus = gpus_of(record)
    parts = [
        (record.get("inflated") or {}).get("name"),
        f"--tp {gpus}" if gpus > 1 else None,
        "KV in host memory" if record.get("offloaded") else None,
        "weights in host memory" if "gpu_layers" in record else None,
        "capped" if record.get("device_memory") else None,
    ]
    return ", ".join(filter(None, parts))


def pooled(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that differ in their prompts alone become one: a bench that was run in several parts."""
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        same = [row[name] for name in ("contender", CONTEXT, TEMPERATURE, "varied", "shape")]
        alike[json.dumps(same, sort_keys=True)].append(row)
    return [parts[0] if len(parts) == 1 else joined(parts) for parts in alike.values()]


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row out of several over other prompts."""
    ratios = [ratio for part in parts for ratio in part.get("speedups") or [part["speedup"]]]
    return {
        **parts[0],
        "prompts": sum(part.get("prompts", 1) for part in parts),
        "speedups": ratios,
        "speedup": fmean(ratios),
        "speedup_interval": interval(ratios),
        **{name: joined_measure(parts, name) for name in (TOKENS, MS) if all(name in part for part in parts)},
    }


def joined_measure(parts: Sequence[dict[str, Any]], name: str) -> Any:
    """The mean of a measure over all prompts; of one by level, of each."""
    weights: list[float] = [part.get("prompts", 1) for part in parts]

    def mean(values: Iterable[float]) -> float:
        return fsum(map(mul, weights, values)) / fsum(weights)

    if isinstance(parts[0][name], dict):
        return {level: mean(part[name].get(level, 1.0) for part in parts) for level in parts[0][name]}
    return mean(part[name] for part in parts)


def panels_of(
    rows: Sequence[dict[str, Any]], measures: Sequence[str] = (SPEEDUP,), over: str | None = None
) -> list[Panel]:
    """One panel for each measure and everything that has several values, or for ``over`` alone.

    Raises UsageError where nothing has, or where rows lack a measure.
    """
    speculative = [row for row in rows if row["contender"] != "autoregressive"]
    values = {axis: {value_of(row, axis) for row in speculative} - {None} for axis in axes_of(speculative)}
    several = [axis for axis, found in values.items() if len(found) > 1]
    if not several:
        raise UsageError("nothing to plot: every row has the same context, temperature and settings")
    if over is not None and over not in several:
        raise UsageError(f"every row has the same {over}; several values have {', '.join(several)}")
    return [
        panel(speculative, axis, [each for each in several if each != axis], measure)
        for measure in measures
        for axis in ([over] if over else several)
    ]


def axes_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    varied = dict.fromkeys(name for row in rows for name in row["varied"])
    return [CONTEXT, TEMPERATURE, *varied]


def panel(rows: Sequence[dict[str, Any]], axis: str, others: Sequence[str], measure: str = SPEEDUP) -> Panel:
    """Rows that agree in all ``others`` are one series."""
    made = Panel(axis, measure)
    shapes = {row["shape"] for row in rows}
    for row in rows:
        at = value_of(row, axis)
        if at is None:
            continue
        marks = [f"{name}={value_of(row, name)}" for name in others if value_of(row, name) is not None]
        shape = [row["shape"]] if len(shapes) > 1 and row["shape"] else []
        made.series[" ".join([row["contender"], *shape, *marks])].append(point_of(row, at, measure))
    if not made.named:
        for points in made.series.values():
            points.sort(key=lambda point: float(point.at))
    if measure == SPEEDUP and any(row["on_one_chip"] for row in rows):  # as the published ones are
        made.published = [Point(at, value) for at, value in PUBLISHED.get(axis, {}).items()]
    return made


def point_of(row: dict[str, Any], at: float | str, measure: str) -> Point:
    """Where a row stands. Raises UsageError if it lacks the measure."""
    if measure == SPEEDUP:
        low, high = row.get("speedup_interval") or (None, None)
        return Point(at, row[SPEEDUP], low, high)
    found = row.get(measure)
    if isinstance(found, dict):
        found = next((found[level] for level in VERIFYING if level in found), None)
    if found is None:
        raise UsageError(f"a record does not say {measure}: measure it again")
    return Point(at, found)


def value_of(row: dict[str, Any], axis: str) -> float | str | None:
    """Where a row stands on an axis; a number where it is one."""
    value = row[axis] if axis in (CONTEXT, TEMPERATURE) else row["varied"].get(axis)
    if isinstance(value, str):
        try:
            return float(value) if "." in value else int(value)
        except ValueError:
            return value
    number: float | None = value
    return number
