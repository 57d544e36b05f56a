"""Products with weights of few bits, and their expansion, against float64: by Triton's interpreter or on the GPU."""

from __future__ import annotations

import pytest
import torch
from support import triton_interpreter
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.kernels import blocking as tiles
from triforce_chat.engine.kernels import chip
from triforce_chat.engine.kernels.quantized_weight import RUN, Codes, QuantizedWeight, joined, pack

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    triton_interpreter.patch()

Shape = tiles.GroupedBlocking | tiles.FewBlocking

FORMATS = [  # integers, inputs of a group, whether it has a minimum
    (Codes.BITS_4, 32, False),
    (Codes.BITS_4, 32, True),
    (Codes.BITS_4, 64, True),
    (Codes.BITS_4, 128, False),
    (Codes.BITS_8, 16, False),
    (Codes.BITS_8, 32, False),
    (Codes.BITS_8, 32, True),
]
RANGES = {Codes.BITS_4: (0, 16), Codes.BITS_8: (-127, 128)}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


def random_weight(
    outputs: int, inputs: int, codes: Codes, group: int, sided: bool, seed: int = 0
) -> tuple[QuantizedWeight, Tensor]:
    """A weight whose products are about as large as their inputs, and the same in float64 [O, I]."""
    generator = torch.Generator().manual_seed(seed)
    least, most = RANGES[codes]
    numbers = torch.randint(least, most, (outputs, inputs), generator=generator)
    size = 2.0 / ((most - least) * inputs**0.5)
    scale, minimum = (
        size * (0.2 + torch.rand(2, outputs, inputs // group, generator=generator)).half().float()
    )
    scale = scale.half().float()  # the tests are of the products, not of the rounding
    minimum = (-most / 2 * minimum).half().float()
    each = numbers.view(outputs, -1, group).double()
    dense = (
        each * scale[:, :, None] + minimum[:, :, None] if sided else (each - codes.zero) * scale[:, :, None]
    )
    made = pack(codes, numbers.to(DEVICE), scale.to(DEVICE), minimum.to(DEVICE) if sided else None)
    return made, dense.flatten(1).to(DEVICE)


def noise(*size: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def close(found: Tensor, expected: Tensor) -> bool:
    tolerance = TOLERANCE[found.dtype]
    return torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS)
@pytest.mark.parametrize(("n", "outputs", "inputs"), [(1, 48, 128), (17, 33, 640), (40, 16, 384)])
def test_products(
    n: int, outputs: int, inputs: int, codes: Codes, group: int, sided: bool, dtype: torch.dtype
) -> None:
    weight, dense = random_weight(outputs, inputs, codes, group, sided)
    x, add = noise(n, inputs + 4, dtype=dtype)[:, :inputs], noise(n, outputs, dtype=dtype)
    assert close(kernels.quantized_linear(x, weight), x.double() @ dense.T)
    assert close(kernels.quantized_linear(x, weight, add), x.double() @ dense.T + add.double())


@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS[:2] + FORMATS[4:])
@pytest.mark.parametrize("inputs", [32, 96, 288])
def test_inputs_need_not_fill_the_last_span(inputs: int, codes: Codes, group: int, sided: bool) -> None:
    weight, dense = random_weight(20, inputs, codes, group, sided)
    wide = noise(3, inputs + 64)
    wide[:, inputs:] = float("nan")
    x = wide[:, :inputs]
    assert close(kernels.quantized_linear(x, weight), x.double() @ dense.T)


@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS)
def test_norms_and_gates(codes: Codes, group: int, sided: bool) -> None:
    weight, dense = random_weight(2 * 40, 256, codes, group, sided)
    x, norm = 3 * noise(5, 256), kernels.Norm(noise(256, seed=2), 0.1)
    normal = x.double() * (x.double().square().mean(-1, keepdim=True) + 0.1).rsqrt() * norm.weight.double()
    gate, up = (normal @ dense.T).chunk(2, -1)
    assert close(kernels.quantized_linear(x, weight, norm=norm), normal @ dense.T)
    found = kernels.quantized_linear(x, weight, norm=norm, gated=True)
    assert close(found, torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS)
def test_rows_of_joined_weights(codes: Codes, group: int, sided: bool) -> None:
    """Together, and as views that lie between others."""
    made = [random_weight(outputs, 256, codes, group, sided, outputs) for outputs in (24, 7, 40)]
    weights = [each for each, _ in made]
    assert len({each.format for each in weights}) == 1
    both, dense, x = joined(weights), torch.cat([each for _, each in made]), noise(3, 256)
    assert close(kernels.quantized_linear(x, both), x.double() @ dense.T)
    assert close(kernels.quantized_linear(x, both.rows(24, 31)), x.double() @ made[1][1].T)


def test_formats_differ() -> None:
    assert len({random_weight(8, 256, *each)[0].format for each in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS)
def test_a_row_beside_others_differs_by_its_rounding(
    codes: Codes, group: int, sided: bool, dtype: torch.dtype
) -> None:
    """Sums in another order, in fp32, may be rounded to the dtype's next number, as cuBLAS's are."""
    weight, _ = random_weight(33, 640, codes, group, sided)
    x = noise(16, 640, dtype=dtype)
    alone = torch.cat([kernels.quantized_linear(row[None], weight) for row in x]).double()
    for n in (2, 5, 8, 16):
        together = kernels.quantized_linear(x[:n], weight).double()
        step = torch.finfo(dtype).eps * alone[:n].abs() + TOLERANCE[torch.float32]
        assert ((together - alone[:n]).abs() <= step).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS)
@pytest.mark.parametrize("inputs", [128, 640])
def test_expansion(inputs: int, codes: Codes, group: int, sided: bool, dtype: torch.dtype) -> None:
    weight, dense = random_weight(70, inputs, codes, group, sided)
    out = torch.full((70, inputs), float("nan"), dtype=dtype, device=DEVICE)
    kernels.expand(weight, out)
    assert torch.equal(out, dense.to(dtype))
    ids = torch.tensor([69, 0, 3, 3, 31], device=DEVICE)
    assert torch.equal(kernels.expanded_rows(weight, ids, dtype), dense[ids].to(dtype))
    kernels.expand(weight.rows(32, 37), out[:5])
    assert torch.equal(out[:5], dense[32:37].to(dtype))


@pytest.mark.parametrize(
    "shape",
    [
        tiles.GroupedBlocking(16, 3, 4, 1),
        tiles.GroupedBlocking(64, 2, 4, 3),
        tiles.GroupedBlocking(128, 2, 8, 2),
        tiles.FewBlocking(1, 1),
        tiles.FewBlocking(2, 4, 3),
        tiles.FewBlocking(16, 8),
    ],
)
@pytest.mark.parametrize(("codes", "group", "sided"), [FORMATS[1], FORMATS[4]])
def test_any_tile_serves_any_weight(shape: Shape, codes: Codes, group: int, sided: bool) -> None:
    weight, dense = random_weight(70, 1120 if group == 32 else 1104, codes, group, sided)
    x = noise(3, weight.inputs)
    assert close(kernels.quantized_linear(x, weight, shape=shape), x.double() @ dense.T)
    gate, up = (x.double() @ dense.T).chunk(2, -1)
    found = kernels.quantized_linear(x, weight, gated=True, shape=shape)
    assert close(found, torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_few_tokens_without_tensor_cores(n: int, codes: Codes, group: int, sided: bool) -> None:
    weight, dense = random_weight(22, 640, codes, group, sided)
    x, norm, add = noise(n, 640), kernels.Norm(noise(640, seed=2), 0.1), noise(n, 22)
    normal = x.double() * (x.double().square().mean(-1, keepdim=True) + 0.1).rsqrt() * norm.weight.double()
    found = kernels.quantized_linear(x, weight, add, norm, shape=tiles.FewBlocking(4, 2))
    assert close(found, normal @ dense.T + add.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("codes", "group"), [(each, group) for each, group, sided in FORMATS if sided])
def test_minima_and_means_keep_more_digits_than_x(codes: Codes, group: int, dtype: torch.dtype) -> None:
    """Minima alone, of both signs, of inputs whose means nearly cancel then."""
    generator = torch.Generator().manual_seed(0)
    groups = 768 // group
    minimum = (1.0 + torch.rand(30, groups, generator=generator) / 8).half().float()
    minimum[:, ::2] *= -1
    zeros = torch.zeros(30, 768, dtype=torch.int64, device=DEVICE)
    weight = pack(codes, zeros, torch.zeros(30, groups, device=DEVICE), minimum.to(DEVICE))
    x = (1.0 + noise(17, 768, dtype=torch.float32) / 8).to(dtype)
    each = x.double().view(17, groups, group).sum(2)[:, None] * minimum.to(DEVICE).double()
    found = kernels.quantized_linear(x, weight).double()
    rounding = torch.finfo(dtype).eps * found.abs()
    assert ((found - each.sum(2)).abs() <= each.abs().sum(2) * 2**-16 + rounding).all()


@pytest.mark.parametrize("gated", [False, True])
def test_tensor_cores_take_four_tokens_of_a_large_weight(gated: bool) -> None:
    half = 2 if gated else 1
    assert tiles.few_blocking(4, 4096 // half, 4096, gated)
    assert tiles.few_blocking(3, 4096 // half + 1, 4096, gated) is None
    assert tiles.few_blocking(2, 28_672 // half, 4096, gated)
    assert tiles.few_blocking(5, 16, 128, gated) is None


@pytest.mark.parametrize("outputs", [16, 4096, 28_672, 128_256])
@pytest.mark.parametrize("n", [1, 16, 17, 64])
@pytest.mark.parametrize(("codes", "group", "sided"), FORMATS)
def test_tiles_fit_the_chip(n: int, outputs: int, codes: Codes, group: int, sided: bool) -> None:
    weight, _ = random_weight(1, 128, codes, group, sided)
    rows = QuantizedWeight(weight.data.expand(outputs, -1), weight.scale.expand(outputs, -1), group, 128)
    shape = tiles.grouped_blocking(n, rows, torch.bfloat16)
    columns = max(16, tiles.padded(n))
    depth = tiles.GROUPED_BYTES
    groups = depth * codes.parts // min(group, depth * codes.parts)
    shared, inputs = groups * 4 * shape.rows, 2 * columns * (depth * codes.parts + sided * RUN)
    # What is loaded ahead; two programs share a processor.
    assert shape.stages * (shape.rows * depth + shared + inputs) <= chip.share()


def test_groups_must_fit() -> None:
    for numbers, groups in ((100, 3), (96, 12)):
        with pytest.raises(ValueError, match="do not fit"):
            pack(Codes.BITS_4, torch.zeros(2, numbers), torch.ones(2, groups))
