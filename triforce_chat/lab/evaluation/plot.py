"""``python -m triforce_chat.lab.evaluation.plot FILE.json --out FILE.svg``: records of ``evaluate sparsity`` as curves.

On the left the attention recovered in every layer, on the right how it decays after the selection (TriForce, figure 3).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from triforce_chat.errors import TriforceError, UsageError
from triforce_chat.lab.bench.plot import MARKS, figure
from triforce_chat.lab.evaluation.tables import grouped

ORACLE = "exact"  # the way to select that is shown for every layer and budget

Curves = dict[str, list[tuple[int, float]]]


def curves(rows: Iterable[Mapping[str, Any]], name: str, across: str) -> Curves:
    """Shares over ``across``, one curve for each value of ``name``."""
    found = grouped(list(rows), name)
    return {shown(key): [(row[across], row["recovered"]) for row in group] for (key,), group in found}


def shown(value: Any) -> str:
    return f"{value:,} tokens" if isinstance(value, int) else str(value)


def panels(record: Mapping[str, Any]) -> list[tuple[str, str, Curves]]:
    """(title, label of the x axis, curves) of each panel, for the largest context and the middle budget."""
    context = max(row["context"] for row in record["layers"])
    layers, decay = (
        [row for row in record[name] if row["context"] == context] for name in ("layers", "decay")
    )
    budgets = sorted({row["budget"] for row in decay})
    budget = budgets[len(budgets) // 2]
    exact = [row for row in layers if row["policy"] == ORACLE]
    later = [row for row in decay if row["budget"] == budget]
    return [
        (f"{context:,} tokens, by budget ({ORACLE})", "layer", curves(exact, "budget", "layer")),
        (
            f"{context:,} tokens, budget {budget:,}",
            "tokens after the selection",
            curves(later, "policy", "after"),
        ),
    ]


def draw(record: Mapping[str, Any], out: Path) -> None:
    """Write the panels as SVG, PDF or PNG, whichever the name says."""
    made = panels(record)
    with figure(len(made), out) as places:
        for (title, label, lines), axes in zip(made, places, strict=True):
            for n, (name, points) in enumerate(lines.items()):
                axes.plot(*zip(*points, strict=True), label=name, marker=MARKS[n % len(MARKS)], markersize=4)
            axes.set_title(title)
            axes.set_xlabel(label)
            axes.set_ylabel("share of the attention")
            axes.set_ylim(top=1.01)
            axes.legend(frameon=False, fontsize=8, loc="best")


def record_of(file: Path) -> dict[str, Any]:
    """Raises UsageError for a file that is no record."""
    try:
        record: dict[str, Any] = json.loads(file.read_text("utf-8"))
        panels(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not a record of evaluate sparsity --json") from error
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m triforce_chat.lab.evaluation.plot", description="Plot recovered attention."
    )
    parser.add_argument("file", type=Path, metavar="FILE.json", help="what evaluate sparsity --json printed")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help=".svg, .pdf or .png")
    given = parser.parse_args(arguments)
    try:
        draw(record_of(given.file), given.out)
    except TriforceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
