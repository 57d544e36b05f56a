"""Plots of bench records: which panels, series and bars they have, and that they can be drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.places import ROOT

from triforce_chat.errors import UsageError
from triforce_chat.lab.bench import plot
from triforce_chat.lab.bench.figures import Point, panels_of, rows_of
from triforce_chat.lab.bench.plot import line_of, main

BENCHMARKS = ROOT / "benchmarks"


def row(
    contender: str, speedup: float | None, context: int = 1000, temperature: float = 0.0, **varied: str
) -> dict[str, Any]:
    likely = None if speedup is None else [speedup - 0.1, speedup + 0.1]
    return {
        "contender": contender,
        "context": context,
        "temperature": temperature,
        "varied": {name.replace("_", "-"): value for name, value in varied.items()},
        "speedup": speedup,
        "speedup_interval": likely,
    }


def record(path: Path, *rows: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"rows": rows, **more}))
    return path


def test_temperatures_stand_beside_the_published_ones(tmp_path: Path) -> None:
    rows = [
        row(name, 3 - temperature, temperature=temperature)
        for temperature in (0.6, 0.0)
        for name in ("autoregressive", "triforce")
    ]
    [panel] = panels_of(rows_of([record(tmp_path / "a.json", *rows)]))
    assert panel.axis == "temperature"
    assert panel.series == {"triforce": [Point(0.0, 3.0, 2.9, 3.1), Point(0.6, 2.4, 2.3, 2.5)]}
    assert (panel.published[0], panel.published[-1]) == (Point(0.0, 2.31), Point(1.2, 2.02))


def test_everything_that_varies_has_a_panel(tmp_path: Path) -> None:
    rows = [
        row("triforce", 2.0, context, budget=budget, policy=policy)
        for context in (1000, 2000)
        for budget in ("512", "1024")
        for policy in ("mean", "minmax")
    ]
    panels = panels_of(rows_of([record(tmp_path / "a.json", *rows)]))
    assert [panel.axis for panel in panels] == ["context", "budget", "policy"]
    assert [len(panel.series) for panel in panels] == [4, 4, 4]
    assert "triforce budget=512 policy=mean" in panels[0].series
    assert [panel.named for panel in panels] == [False, False, True]
    assert [point.at for point in panels[1].series["triforce context=1000 policy=mean"]] == [512, 1024]


@pytest.mark.parametrize(
    ("more", "beside"), [({}, True), ({"offloaded": True}, False), ({"settings": {"tp": 2}}, False)]
)
def test_the_published_ones_are_of_one_chip(tmp_path: Path, more: dict[str, Any], beside: bool) -> None:
    rows = rows_of([record(tmp_path / "1.json", row("auto", 2.0), row("auto", 3.0, temperature=0.6), **more)])
    (panel,) = panels_of(rows)
    assert bool(panel.published) == beside


def test_records_of_two_shapes(tmp_path: Path) -> None:
    files = [
        record(tmp_path / f"{name}.json", row("auto", 2.0), row("auto", 3.0, 2000), inflated={"name": name})
        for name in ("7b", "8b")
    ]
    [panel] = panels_of(rows_of(files))
    assert list(panel.series) == ["auto 7b", "auto 8b"]


def test_other_machinery_is_another_series(tmp_path: Path) -> None:
    one = record(tmp_path / "1.json", row("auto", 2.0), row("auto", 3.0, 2000), settings={"tp": 1})
    two = record(tmp_path / "2.json", row("auto", 4.0), settings={"tp": 2}, offloaded=True)
    [panel] = panels_of(rows_of([one, two]))
    assert list(panel.series) == ["auto", "auto --tp 2, KV in host memory"]


def test_parts_of_a_bench_are_one_row(tmp_path: Path) -> None:
    parts = [
        {**row("auto", 2.5), "prompts": 2, "speedups": [2.0, 3.0]},
        {**row("auto", 4.0), "prompts": 1, "speedups": [4.0]},
        {**row("auto", 9.0, 2000), "prompts": 1, "speedups": [9.0]},
    ]
    files = [record(tmp_path / f"{n}.json", part) for n, part in enumerate(parts)]
    one, other = rows_of(files)
    assert (one["speedup"], one["prompts"], other["speedup"]) == (3.0, 3, 9.0)
    assert one["speedup_interval"] == pytest.approx((3 - 4.3027 / 3**0.5, 3 + 4.3027 / 3**0.5))
    assert line_of(one) == "auto 1,000 tokens T=0: 3.00x (0.52 to 5.48 with 95 %, 3 prompts)"


def test_what_was_not_held_against_plain_decoding_is_left_out(tmp_path: Path) -> None:
    rows = [row("transformers", None), row("transformers", None, 2000), row("auto", 2.0)]
    with pytest.raises(UsageError, match="nothing to plot"):
        panels_of(rows_of([record(tmp_path / "a.json", *rows)]))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [1]}', '{"rows": 3}'])
def test_files_that_are_no_records(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(text)
    assert main([str(tmp_path / "a.json"), "--out", str(tmp_path / "a.svg")]) == 2
    assert "is not a record of bench --json" in capsys.readouterr().err


def test_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda _name: None)
    file = record(tmp_path / "a.json", row("auto", 2.0), row("auto", 3.0, 2000))
    assert main([str(file), "--out", str(tmp_path / "a.svg")]) == 2
    assert capsys.readouterr().err == "error: plots need matplotlib; install it: pip install matplotlib\n"


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_plot_is_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        row("triforce", 2.0 + temperature, temperature=temperature, policy=policy)
        for temperature in (0.0, 1.0)
        for policy in ("mean", "minmax")
    ]
    rows.append({**row("auto", 2.0, temperature=0.5), "speedup_interval": None})
    file, out = record(tmp_path / "a.json", *rows), tmp_path / f"a.{ending}"
    assert main([str(file), "--out", str(out), "--title", "Made up"]) == 0
    drawn = out.read_bytes()
    assert drawn.startswith(b"<?xml" if ending == "svg" else b"\x89PNG")
    if ending == "svg":
        for text in ("Made up", "temperature", "policy", "triforce policy=mean", "published"):
            assert text in drawn.decode()
    assert main([str(file), "--out", str(out), "--title", "Made up"]) == 0
    assert out.read_bytes() == drawn


def of_trees(kind: str, size: int, below: float, ms: float) -> dict[str, Any]:
    made = row("triforce", 2.0, tree=kind, tree_size=str(size))
    return {**made, "tokens_per_verification": {"target": 9.0, "retrieval": below}, "ms_per_token": ms}


def test_trees_by_kind_over_their_size(tmp_path: Path) -> None:
    rows = [
        of_trees(kind, size, 2 + factor * size, 20 - size + factor)
        for kind, factor in (("sequoia", 0.2), ("specinfer", 0.1))
        for size in (16, 8)
    ]
    found = rows_of([record(tmp_path / "a.json", *rows)])
    tokens, ms = panels_of(found, ["tokens_per_verification", "ms_per_token"], "tree-size")
    assert (tokens.axis, tokens.measure, tokens.published) == ("tree-size", "tokens_per_verification", [])
    assert tokens.series["triforce tree=sequoia"] == [Point(8, 3.6), Point(16, 5.2)]  # of the middle level
    assert ms.series["triforce tree=specinfer"] == [Point(8, 12.1), Point(16, 4.1)]
    with pytest.raises(
        UsageError, match="every row has the same context; several values have tree, tree-size"
    ):
        panels_of(found, over="context")
    with pytest.raises(UsageError, match="does not say ms_per_token"):
        panels_of(
            rows_of([record(tmp_path / "b.json", row("auto", 2.0), row("auto", 3.0, 2000))]), ["ms_per_token"]
        )


def test_parts_have_a_mean_of_each_measure(tmp_path: Path) -> None:
    parts = [
        {**of_trees("sequoia", 8, 3.0, 10.0), "prompts": 3},
        {**of_trees("sequoia", 8, 5.0, 6.0), "prompts": 1},
    ]
    [one] = rows_of([record(tmp_path / f"{n}.json", part) for n, part in enumerate(parts)])
    assert one["ms_per_token"] == 9.0
    assert one["tokens_per_verification"] == {"target": 9.0, "retrieval": 3.5}


def test_a_plot_of_trees_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    rows = [of_trees("sequoia", size, 3.0, 10.0) for size in (8, 16)]
    file, out = record(tmp_path / "a.json", *rows), tmp_path / "a.svg"
    wanted = ["--measures", "tokens_per_verification,ms_per_token", "--over", "tree-size"]
    assert main([str(file), "--out", str(out), *wanted]) == 0
    for text in ("tree-size", "tokens a verification", "ms a token"):
        assert text in out.read_text()
    assert main([str(file), "--out", str(out), "--measures", "size"]) == 2
    assert "no measure size" in capsys.readouterr().err


def test_the_records_that_are_kept_can_be_plotted() -> None:
    panels = panels_of(rows_of([BENCHMARKS / "cpu-2-cores.json"]))
    assert [panel.axis for panel in panels] == ["context"]
