"""``python -m triforce_chat.lab.bench.plot FILE.json... --out FILE.svg``: speed-ups of bench records as curves.

Rows that differ in their prompts alone are taken together; what is plotted is printed as well. ``--measures`` plots
other figures, ``--over`` against one setting alone: trees by ``--measures tokens_per_verification,ms_per_token --over
tree-size``, where a ring marks the size from which on larger trees take longer a token.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from triforce_chat.errors import TriforceError, UsageError
from triforce_chat.lab.bench.figures import (
    CONTEXT,
    DOUBLING,
    MEASURES,
    MS,
    PAPER,
    SPEEDUP,
    TOKENS,
    Panel,
    Point,
    panels_of,
    rows_of,
)

WIDTH, HEIGHT = 6.4, 4.2  # inches of a panel
COLUMNS = 3  # panels side by side
VISIBLE = 1.6  # of an interval, at most so many times its value
HEADROOM = 1.05
GREY = "#777777"
PLAIN = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e4e4",
    "svg.fonttype": "none",
    "svg.hashsalt": "triforce-chat",  # the same record makes the same file
}
MARKS = "osD^vP*X"
SAID = {SPEEDUP: "speed-up over plain decoding", TOKENS: "tokens a verification", MS: "ms a token"}


def draw(panels: Sequence[Panel], out: Path, title: str = "") -> None:
    """Write the panels side by side as SVG, PDF or PNG, whichever the name says."""
    with figure(len(panels), out, title) as places:
        for panel, axes in zip(panels, places, strict=True):
            _draw(panel, axes)


@contextmanager
def figure(count: int, out: Path, title: str = "") -> Iterator[list[Any]]:
    """So many panels to draw on, written to ``out`` afterwards."""
    require_extra()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(PLAIN):
        columns = min(count, COLUMNS)
        rows = -(-count // columns)
        size = (WIDTH * columns, HEIGHT * rows)
        made, places = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        yield list(places.flat[:count])
        for axes in places.flat[count:]:
            axes.set_axis_off()
        if title:
            made.suptitle(title)
        metadata = {"Date": None} if out.suffix == ".svg" else None
        made.savefig(out, dpi=150, metadata=metadata)
        pyplot.close(made)


def require_extra() -> None:
    """Raise UsageError where the library is not installed."""
    if not find_spec("matplotlib"):
        raise UsageError("plots need matplotlib; install it: pip install matplotlib")


def _draw(panel: Panel, axes: Any) -> None:
    places = _places(panel)
    for n, (name, points) in enumerate(panel.series.items()):
        line = {"linewidth": 1.6, "linestyle": "none" if panel.named else "-"}
        _curve(axes, places, points, label=name, marker=MARKS[n % len(MARKS)], markersize=5, **line)
        if panel.measure == MS:
            best = min(points, key=lambda point: point.value)
            axes.plot(places[best.at], best.value, "o", markersize=11, fillstyle="none", color=GREY)
    if panel.published:
        look = {"color": GREY, "linestyle": "--", "marker": "x", "markersize": 5, "linewidth": 1.2}
        _curve(axes, places, panel.published, label=PAPER, **look)
    if panel.measure == SPEEDUP:
        axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel(panel.label)
    axes.set_ylabel(SAID[panel.measure])
    axes.set_ylim(0, HEADROOM * _highest(panel))
    _ticks(panel, axes, places)
    axes.legend(frameon=False, fontsize=8, loc="best")


def _highest(panel: Panel) -> float:
    """What has to be seen; the interval of two prompts may reach to the moon."""
    points = [*(point for points in panel.series.values() for point in points), *panel.published]
    least = 1.0 if panel.measure == SPEEDUP else 0.0
    return max(least, *(min(point.high or point.value, VISIBLE * point.value) for point in points))


def _places(panel: Panel) -> dict[Any, float]:
    """Where each value stands; words stand side by side."""
    values = {point.at for points in (*panel.series.values(), panel.published) for point in points}
    if panel.named:
        return {value: float(n) for n, value in enumerate(sorted(values, key=str))}
    return {value: float(value) for value in values}


def _curve(axes: Any, places: dict[Any, float], points: Sequence[Point], **look: Any) -> None:
    at, values = [places[point.at] for point in points], [point.value for point in points]
    below = [0.0 if point.low is None else point.value - point.low for point in points]
    above = [0.0 if point.high is None else point.high - point.value for point in points]
    axes.errorbar(at, values, yerr=[below, above] if any(above) else None, capsize=3, **look)


def _ticks(panel: Panel, axes: Any, places: dict[Any, float]) -> None:
    own = sorted({point.at for points in panel.series.values() for point in points}, key=places.__getitem__)
    if panel.axis in DOUBLING and not panel.named:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    slanted = panel.axis == CONTEXT and len(own) > 5
    axes.set_xticks([places[value] for value in own], [_tick(value) for value in own])
    axes.tick_params(axis="x", labelrotation=30 if slanted else 0)


def _tick(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m triforce_chat.lab.bench.plot", description="Plot speed-ups."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="what bench --json printed")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help=".svg, .pdf or .png")
    parser.add_argument("--title", default="")
    parser.add_argument("--measures", default=SPEEDUP, metavar="NAME,...", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--over", metavar="SETTING", help="what to plot against; by default all that vary")
    given = parser.parse_args(arguments)
    try:
        rows, measures = rows_of(given.files), given.measures.split(",")
        if unknown := {*measures} - {*MEASURES}:
            raise UsageError(f"no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
        draw(panels_of(rows, measures, given.over), given.out, given.title)
    except TriforceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for row in rows:
        print(line_of(row))
    return 0


def line_of(row: dict[str, Any]) -> str:
    """What one row says, parts of a bench taken together."""
    settings = " ".join(f"{name}={value}" for name, value in row["varied"].items())
    likely = row.get("speedup_interval")
    bounds = (
        f" ({likely[0]:.2f} to {likely[1]:.2f} with 95 %, {row.get('prompts', 1)} prompts)" if likely else ""
    )
    where = f"{row['context']:,} tokens T={row['temperature']:g}"
    return " ".join(filter(None, (row["contender"], settings, where))) + f": {row['speedup']:.2f}x{bounds}"


if __name__ == "__main__":
    sys.exit(main())
