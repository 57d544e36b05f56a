"""Tiles for chips with less shared memory than Hopper's: they fit, give the same numbers, and leave Hopper's alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import triton_interpreter
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.quantization import GROUP
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import QuantizedGroups
from triforce_chat.engine.kernels import blocking as tiles
from triforce_chat.engine.kernels import chip
from triforce_chat.engine.kernels.blocking import (
    Blocking,
    GroupedBlocking,
    blocking,
    grouped_blocking,
    most_tokens,
)
from triforce_chat.engine.kernels.decoding import Tiling, tiling
from triforce_chat.engine.kernels.quantized_decoding import group_tiling
from triforce_chat.engine.kernels.quantized_weight import Codes, WeightFormat, quantize
from triforce_chat.lab.bench import chips

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    triton_interpreter.patch()

META, GEFORCE, A100 = torch.device("meta"), 101_376, 166_912
HALF, FULL, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
COMPILED = {**os.environ, "PYTHONWARNINGS": "ignore"}
COMPILED.pop("TRITON_INTERPRET", None)  # tests' own processes interpret the kernels


def pretend(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(chip, "shared_memory", lambda: size)


def over_groups(rows: int, dim: int, bits: int, dtype: torch.dtype = HALF) -> Tiling:
    """The tiling of so many queries over one KV head's quantized groups."""
    before = QuantizedGroups(Shape(1, rows, 1, dim, dtype, META), 4 * GROUP, bits, turned=True).first(
        0, 4 * GROUP
    )
    return group_tiling(torch.empty(1, rows, dim, dtype=dtype, device=META), before[:4])


@pytest.mark.parametrize("memory", [chip.HOPPER, A100])
def test_data_centre_chips_have_the_tiles_that_were_measured_there(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, memory)
    assert [tiling(rows, 128, HALF) for rows in (1, 20, 33, 500)] == [
        *(Tiling(rows, 64, 3, 4) for rows in (16, 32, 64, 64)),
    ]
    assert [tiling(1, dim, HALF).slots for dim in (16, 64, 128, 256)] == [128, 128, 64, 32]
    assert [tiling(99, dim, FULL) for dim in (64, 256)] == [Tiling(16, 64, 3, 4), Tiling(16, 16, 3, 4)]
    assert tiling(4, 128, HALF, listed=True) == Tiling(16, 64, 5, 4)
    assert [tiling(4, dim, HALF, kept=FP8) for dim in (64, 256)] == [
        Tiling(16, 64, 3, 1),
        Tiling(16, 16, 3, 2),
    ]
    assert over_groups(4, 128, 8) == Tiling(16, 32, 3, 1)
    assert [over_groups(40, dim, bits) for dim in (64, 128) for bits in (8, 4)] == 4 * [Tiling(64, 64, 4, 4)]
    assert over_groups(40, 256, 8).stages == (4 if memory == chip.HOPPER else 3)
    assert [blocking(n, 4096, HALF) for n in (1, 16, 17, 40, 100, 200, 512)] == [
        Blocking(16, 128, 4),
        Blocking(16, 128, 4),
        Blocking(32, 128, 3),
        Blocking(32, 64, 3),
        Blocking(16, 32, 4),
        Blocking(16, 16, 4),
        Blocking(16, 16, 2),
    ]
    assert blocking(9, 11_008, HALF, gated=True) == Blocking(32, 128, 3)
    assert most_tokens(HALF) == 512
    assert grouped_blocking(32, weight_of(4096, 4096), FULL) == GroupedBlocking(64, 3, 4, 8)
    assert grouped_blocking(33, weight_of(4096, 4096), HALF) == GroupedBlocking(64, 4, 4, 8)


def weight_of(outputs: int, inputs: int) -> kernels.QuantizedWeight:
    return WeightFormat(Codes.BITS_4, 32, True).empty(outputs, inputs, META)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("rows", [1, 20, 64])
def test_two_programs_over_keys_share_a_smaller_chip(
    rows: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, GEFORCE)
    shape = tiling(rows, dim, HALF)
    ahead = 2 * (shape.stages - 1) * shape.slots * dim * HALF.itemsize
    assert 16_384 <= ahead <= chip.share() == GEFORCE // 2 - 1024
    for bits in (8, 4):
        shape = over_groups(rows, dim, bits)
        ahead = 2 * (shape.stages - 1) * shape.slots * dim * bits // 8
        assert ahead <= chip.share() * shape.warps // 4
        assert shape.stages >= 2 or (dim, bits) == (256, 8)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("n", [1, 9, 24, 64, 256])
def test_two_products_share_a_smaller_chip(n: int, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, GEFORCE)
    shape = blocking(n, 11_008, HALF, gated)
    assert shape.stages >= 2
    assert (shape.stages - 1) * tiles.tile_bytes(n, shape, HALF, gated) <= chip.share()
    assert most_tokens(HALF, gated) == 256


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, HALF)


def attended() -> list[Tensor]:
    """By few rows and by many, by a list, and as their weights are summed."""
    keys, values = noise(2, 200, 64, seed=1), noise(2, 200, 64, seed=2)
    at = torch.tensor([150], device=DEVICE)
    found = [kernels.decode_attention(noise(n, 4, 64), keys, values, at, 0.1, 180) for n in (1, 30)]
    listed = torch.arange(199, -1, -1, device=DEVICE, dtype=torch.int32).expand(2, -1).contiguous()
    found.append(kernels.decode_attention(noise(3, 4, 64), keys, values, at, 0.1, 180, listed=listed))
    weighing = kernels.Weighing(torch.zeros(2, 25, device=DEVICE), 8, 99.0, at.new_tensor([3]))
    found.append(kernels.decode_attention(noise(3, 4, 64), keys, values, at, 0.1, 180, weighing=weighing))
    return [*found, weighing.total, kernels.chunk_scores(noise(4, 5, 64), keys, 8)]


def attended_groups() -> list[Tensor]:
    """Over keys and values in 8 and 4 bits, by few rows and by many."""
    found = []
    for bits, n in ((8, 2), (8, 30), (4, 2)):
        shape = Shape(1, 4, 2, 128, HALF, DEVICE)
        before = QuantizedGroups(shape, 3 * GROUP, bits, turned=True).first(0, 3 * GROUP)
        for codes in (before.keys, before.values):
            codes.view(torch.uint8).random_(0, 256, generator=torch.Generator(DEVICE).manual_seed(3))
        for scales in before[2:4]:
            scales.copy_(noise(*scales.shape, seed=4).abs() / 99)
        at, quantized = torch.tensor([5], device=DEVICE), torch.tensor([2 * GROUP], device=DEVICE)
        keys, values = noise(2, 64, 128, seed=5), noise(2, 64, 128, seed=6)
        found.append(kernels.decode_quantized(noise(n, 4, 128), before[:4], quantized, keys, values, at, 0.1))
    return found


def multiplied() -> list[Tensor]:
    """By few tokens, and by more than fit a smaller chip at once."""
    weight = quantize(noise(48, 160, seed=1).float())
    return [kernels.quantized_linear(noise(n, 160), weight, noise(n, 48, seed=2)) for n in (3, 300)]


@pytest.mark.parametrize("work", [attended, attended_groups, multiplied])
def test_smaller_tiles_give_the_same_numbers(
    work: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = work()
    pretend(monkeypatch, GEFORCE)
    for found, expected in zip(work(), usual, strict=True):
        assert found.isfinite().all()
        assert torch.allclose(
            found.float(), expected.float(), rtol=2e-2, atol=2e-2 * expected.abs().mean().item()
        )


def test_kernels_fit_the_chips_that_people_have(tmp_path: Path) -> None:
    """As compiled for an RTX 30 and an RTX 50; ``python -m triforce_chat.lab.bench.chips --all`` compiles them all."""
    command = [sys.executable, "-m", chips.__name__, "--capability", "8.6", "12.0"]
    run = subprocess.run(
        command, env={**COMPILED, "TRITON_CACHE_DIR": str(tmp_path)}, stdout=subprocess.PIPE, check=False
    )
    lines = run.stdout.decode().splitlines()
    assert {line.split()[1] for line in lines} == {*chips.FILLING}
    assert not [line for line in lines if "TOO MUCH" in line]
    assert run.returncode == 0
