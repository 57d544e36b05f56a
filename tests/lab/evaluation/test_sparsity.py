"""Recovered attention, against stock transformers' attention weights and plain loops; and its plot."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.labs import SMALL_BUDGET, Lab
from torch import Tensor

from triforce_chat.engine.cache.layout import Layout
from triforce_chat.errors import DoesNotFit, UsageError
from triforce_chat.lab.evaluation import sparsity
from triforce_chat.lab.evaluation.plot import main, panels
from triforce_chat.lab.evaluation.sparsity import Plan, decay_rows, layer_rows, measure, pieces, summary

CONTEXT, BUDGETS = 90, [24, 40, 400]
PLAN = Plan(BUDGETS, ["mean", "minmax"], SMALL_BUDGET, after=12, step=4)


@torch.no_grad()
def weights(lab: Lab, ids: list[int]) -> Tensor:
    """Stock attention weights: [layers, Hq, n, n]."""
    stock = copy.deepcopy(lab.stock)
    stock.set_attn_implementation("eager")
    found = stock(torch.tensor([ids]), output_attentions=True).attentions
    return torch.stack([each[0] for each in found])


def held(scores: list[float], layout: Layout) -> set[int]:
    """Positions that a cache with these scores of its candidate chunks has."""
    order = sorted(range(len(scores)), key=lambda chunk: -scores[chunk])[: layout.chunks]
    chosen = {layout.sinks + layout.chunk * chunk + i for chunk in order for i in range(layout.chunk)}
    return chosen | {*range(layout.sinks), *range(layout.tail, 1000)}


def mass(rows: Tensor, layout: Layout) -> list[float]:
    """Attention of all rows [..., S] to each candidate chunk."""
    starts = range(layout.sinks, layout.tail, layout.chunk)
    return [float(rows[..., at : at + layout.chunk].sum()) for at in starts]


@pytest.mark.parametrize("bytes_", [1 << 28, 4 * 4 * 102 * 5])
def test_shares_equal_those_of_stock_attention(
    lab: Lab, bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparsity, "LOGITS_BYTES", bytes_)
    ids = lab.text(CONTEXT + 12)
    found = measure(lab.target, ids, CONTEXT, 0, PLAN).shares  # [layers, names, budgets, steps]
    assert found.shape == (2, 4, 3, 3)
    stock = weights(lab, ids)
    for layer in range(2):
        for column, budget in enumerate(BUDGETS[:2]):
            layout = PLAN.layout(budget, CONTEXT)
            best, exact = [], []
            for head in range(4):
                group = slice(head // 2 * 2, head // 2 * 2 + 2)  # the query heads that share its keys
                kept = held(mass(stock[layer, group, CONTEXT - 4 : CONTEXT], layout), layout)
                for row in range(CONTEXT, CONTEXT + 12):
                    own = stock[layer, head, row]
                    anew = held(mass(stock[layer, group, row], layout), layout)
                    best.append(sum(float(own[at]) for at in anew if at < len(own)))
                    exact.append(sum(float(own[at]) for at in kept if at < len(own)))
            for name, shares in enumerate((best, exact)):
                steps = torch.tensor(shares).view(4, 3, 4).mean((0, 2))
                torch.testing.assert_close(found[layer, name, column], steps, atol=1e-5, rtol=1e-5)
    assert (found[:, :, 2] == 1).all()  # everything fits
    assert (found[:, 1:, 0] <= found[:, :1, 0] + 1e-6).all()  # nothing holds more than the best
    assert found[:, 2:, :2].max() < 1


def test_rows_of_layers_and_of_distances(lab: Lab) -> None:
    found = [measure(lab.target, lab.text(CONTEXT + 12, seed), CONTEXT, seed, PLAN) for seed in (1, 2)]
    layers, decay = layer_rows(found, PLAN), decay_rows(found, PLAN)
    assert len(layers) == 2 * 4 * 3
    assert len(decay) == 4 * 3 * 3
    both = torch.stack([each.shares for each in found]).mean(0)
    [one] = [row for row in layers if (row["layer"], row["policy"], row["budget"]) == (1, "exact", 40)]
    assert one["recovered"] == pytest.approx(both[1, 1, 1, 0].item(), abs=1e-6)
    [late] = [row for row in decay if (row["policy"], row["budget"], row["after"]) == ("mean", 24, 12)]
    assert late["recovered"] == pytest.approx(both[:, 2, 0, 2].mean().item(), abs=1e-6)
    [whole] = [row for row in summary(layers) if (row["policy"], row["budget"]) == ("exact", 40)]
    assert whole["mean"] == pytest.approx(both[:, 1, 1, 0].mean().item(), abs=1e-6)
    assert whole["least"] == pytest.approx(both[:, 1, 1, 0].min().item(), abs=1e-6)


def test_pieces_are_spread_over_the_text() -> None:
    text = list(range(1000))
    found = [(context, place, ids[0], len(ids)) for context, place, ids in pieces(text, [100, 200], 3, 50)]
    assert found == [
        *[(100, 0, 0, 150), (100, 1, 425, 150), (100, 2, 850, 150)],
        *[(200, 0, 0, 250), (200, 1, 375, 250), (200, 2, 750, 250)],
    ]
    with pytest.raises(DoesNotFit, match="1,001: add documents"):
        list(pieces(text, [951], 1, 50))


def test_a_budget_without_a_chunk() -> None:
    with pytest.raises(UsageError, match="the minimum is 16"):
        Plan([15], ["mean"], SMALL_BUDGET)


def record(lab: Lab) -> dict[str, Any]:
    found = [measure(lab.target, lab.text(CONTEXT + 12), CONTEXT, 0, PLAN)]
    return {"layers": layer_rows(found, PLAN), "decay": decay_rows(found, PLAN)}


def test_the_plot_has_both_figures(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = record(lab)
    (_, _, layers), (title, _, decay) = panels(made)
    assert {name: len(points) for name, points in layers.items()} == {
        "24 tokens": 2,
        "40 tokens": 2,
        "400 tokens": 2,
    }
    assert "budget 40" in title
    assert list(decay) == ["best", "exact", "mean", "minmax"]
    assert [at for at, _ in decay["mean"]] == [4, 8, 12]
    file, out = tmp_path / "a.json", tmp_path / "a.svg"
    file.write_text(json.dumps(made))
    assert main([str(file), "--out", str(out)]) == 0
    assert "share of the attention" in out.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layers": [], "decay": []}', '{"layers": 3}'])
def test_files_that_are_no_records(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(text)
    assert main([str(tmp_path / "a.json"), "--out", str(tmp_path / "a.svg")]) == 2
    assert "is not a record of evaluate sparsity" in capsys.readouterr().err
