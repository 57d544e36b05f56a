"""Inflated models in 4 bits: what cancels still does, and the plan knows what they take."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.tiny_models import save_model
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.four_bits import stored_of
from triforce_chat.models import four_bits
from triforce_chat.models.resize import resize
from triforce_chat.models.shapes import BigShape

pytest.importorskip("triton")

WIDE = BigShape("wide", hidden=128, layers=4, heads=8, kv_heads=4, head_dim=32, mlp=320)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(2)
    save_model(folder, initializer_range=0.3)
    small = AutoModelForCausalLM.from_pretrained(folder)
    return resize(small, WIDE, dtype=torch.float32, device="cpu")


def test_neighbours_that_cancel_still_do(big: object) -> None:
    last = big.model.layers[-1]  # type: ignore[attr-defined]
    for weight in (last.self_attn.o_proj.weight, last.mlp.down_proj.weight):
        numbers, scale = four_bits.integers(weight, 32, 7)
        assert torch.equal(numbers[:, 1::2], -numbers[:, ::2])
        assert numbers.abs().amax() == 7
        near = (numbers.unflatten(1, (-1, 32)) * scale[..., None]).flatten(1)
        assert ((near - weight).abs() <= scale.repeat_interleave(32, 1) / 2 * 1.001).all()


def test_a_group_of_zeros_stays_zero() -> None:
    numbers, scale = four_bits.integers(torch.zeros(2, 32), 32, 7)
    assert not numbers.any()
    assert not scale.any()


def test_the_plan_knows_what_it_takes(big: object) -> None:
    config = big.config  # type: ignore[attr-defined]
    expected = stored_of(Dimensions.of(config.to_dict()), 4)
    four_bits.round_to_four_bits(big)
    matrices = [each.matrix for each in big.modules() if hasattr(each, "matrix")]  # type: ignore[attr-defined]
    assert len(matrices) == 7 * WIDE.layers + 1
    assert sum(each.nbytes for each in matrices) == expected.step_bytes
    assert expected.bytes - expected.step_bytes == 4 * config.vocab_size * WIDE.hidden
    assert dict(expected.layers[0])["ffn_down"] == Kind.Q4_0


def test_on_a_cpu_it_is_refused(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    command = "bench a.txt --model small --device cpu --inflate llama-2-7b --dtype stored"
    done = CliRunner().invoke(app, command.split())
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "this runs on the CPU" in done.stderr
