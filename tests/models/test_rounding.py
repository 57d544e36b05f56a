"""Inflated models in 4 and 8 bits: what cancels still does, and the plan knows what they take."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.tiny_models import save_model
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.engine.forward.streamed_weights import StreamedWeights, tensors_of
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.rounded import stored_of
from triforce_chat.models import rounding
from triforce_chat.models.resize import resize
from triforce_chat.models.shapes import BigShape

pytest.importorskip("triton")

WIDE = BigShape("wide", hidden=128, layers=4, heads=8, kv_heads=4, head_dim=32, mlp=320)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(2)
    save_model(folder, initializer_range=0.3)
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture(scope="module")
def big(small: object) -> object:
    return resize(small, WIDE, dtype=torch.float32, device="cpu")


def test_neighbours_that_cancel_still_do(big: object) -> None:
    last = big.model.layers[-1]  # type: ignore[attr-defined]
    for weight in (last.self_attn.o_proj.weight, last.mlp.down_proj.weight):
        numbers, scale = rounding.integers(weight, 32, 7)
        assert torch.equal(numbers[:, 1::2], -numbers[:, ::2])
        assert numbers.abs().amax() == 7
        near = (numbers.unflatten(1, (-1, 32)) * scale[..., None]).flatten(1)
        assert ((near - weight).abs() <= scale.repeat_interleave(32, 1) / 2 * 1.001).all()


def test_a_group_of_zeros_stays_zero() -> None:
    numbers, scale = rounding.integers(torch.zeros(2, 32), 32, 7)
    assert not numbers.any()
    assert not scale.any()


@pytest.mark.parametrize("resident", [None, 1])
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
def test_the_plan_knows_what_it_takes(small: object, kind: Kind, resident: int | None) -> None:
    """Whether layers stay on the device, or go to host memory as soon as no wide matrix is left."""
    streamed = None if resident is None else StreamedWeights(torch.device("cpu"), resident)
    made = inflated(small, kind, streamed)
    expected = stored_of(Dimensions.of(made.config.to_dict()), 4, kind)
    matrices = [each.matrix for each in made.modules() if hasattr(each, "matrix")]
    assert len(matrices) == 7 * WIDE.layers + 1
    assert sum(each.nbytes for each in matrices) == expected.step_bytes
    assert expected.bytes - expected.step_bytes == 4 * made.config.vocab_size * WIDE.hidden
    assert dict(expected.layers[0])["ffn_down"] == kind
    assert expected.format == kind.name
    if streamed:
        assert tuple(home.nbytes for home in streamed.homes) == expected.blocks[1:]


def inflated(small: object, kind: Kind, streamed: StreamedWeights | None = None) -> Any:
    """The model in dimensions that are not its own, rounded layer by layer."""
    settle = partial(rounding.round_layer, kind)
    made = resize(small, WIDE, dtype=torch.float32, device="cpu", settle=settle)
    rounding.finish_rounding(made, streamed.take if streamed else None)
    return made


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
def test_rounding_some_rows_at_a_time_changes_nothing(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(64, 50, bias=False)
    made = [tensors_of([rounding.rounded(linear, kind)])]
    monkeypatch.setattr(rounding, "AT_ONCE", 64 * 7)
    made += [tensors_of([rounding.rounded(linear, kind)])]
    assert all(torch.equal(at_once, piecemeal) for at_once, piecemeal in zip(*made, strict=True))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--inflate llama-2-7b --dtype stored", "this runs on the CPU"),
        ("--inflate llama-2-7b:8bit", "--inflate llama-2-7b:8bit rounds weights; add --dtype stored"),
    ],
)
def test_on_a_cpu_or_without_a_word_of_rounding_it_is_refused(
    flags: str, said: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    done = CliRunner().invoke(app, f"bench a.txt --model small --device cpu {flags}".split())
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
