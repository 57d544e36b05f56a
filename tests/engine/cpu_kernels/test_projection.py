"""Projections equal the modules that they stand for, on every instruction path."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.quantized import dense, random_matrix
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from triforce_chat.engine.cpu_kernels.few_rows import Linear, Norm
from triforce_chat.engine.cpu_kernels.projection import Projection
from triforce_chat.engine.cpu_kernels.quantized_matrix import MANY_ROWS, QuantizedMatrix

COLUMNS = 512
MIXED = (Kind.Q4_K, Kind.Q8_0, Kind.F16)  # as queries, keys and values may have them
ROWS = (1, 2, 8, 11, MANY_ROWS)

pytestmark = pytest.mark.usefixtures("path")


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrices(*outputs: int) -> list[QuantizedMatrix]:
    return [
        random_matrix(kind, n, COLUMNS, seed)
        for seed, (kind, n) in enumerate(zip(MIXED, outputs, strict=False))
    ]


def linears(
    parts: Sequence[QuantizedMatrix], biases: Sequence[Tensor | None]
) -> list[Linear[QuantizedMatrix]]:
    return [Linear(part, bias) for part, bias in zip(parts, biases, strict=True)]


def products(x: Tensor, parts: Sequence[QuantizedMatrix]) -> list[Tensor]:
    return [linear(x, dense(part).double()) for part in parts]


def assert_near(found: Tensor, expected: Tensor) -> None:
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, atol=2e-6 * scale, rtol=1e-5)


@pytest.mark.parametrize("n", ROWS)
def test_several_matrices_with_norm_and_biases(n: int) -> None:
    parts, norm, x = matrices(70, 33, 16), Norm(noise(COLUMNS, seed=2), 0.1), noise(n, COLUMNS)
    biases = [noise(70), None, noise(16)]
    normed = rms_norm(x.double(), (COLUMNS,), norm.weight.double(), norm.eps)
    expected = [
        product if bias is None else product + bias
        for product, bias in zip(products(normed, parts), biases, strict=True)
    ]
    assert_near(Projection(linears(parts, biases), norm)(x), torch.cat(expected, 1))


@pytest.mark.parametrize("n", ROWS)
def test_gated(n: int) -> None:
    parts, x = matrices(70, 70), noise(n, COLUMNS)
    biases = [noise(70), noise(70, seed=5)]
    gates, others = (p + b for p, b in zip(products(x.double(), parts), biases, strict=True))
    assert_near(Projection(linears(parts, biases), gated=True)(x), silu(gates) * others)


@pytest.mark.parametrize("n", ROWS)
def test_added_to_the_residual_stream(n: int) -> None:
    parts, x, residual = matrices(70), noise(n, COLUMNS), 100 * noise(n, 70, seed=3)
    before = residual.clone()
    (product,) = products(x.double(), parts)
    assert_near(Projection([Linear(parts[0], noise(70))])(x, residual), product + noise(70) + residual)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("gated", [False, True])
def test_a_row_is_the_same_beside_any_others(gated: bool) -> None:
    parts, norm = matrices(40, 40), Norm(noise(COLUMNS, seed=2), 0.1)
    made, x = Projection(linears(parts, [noise(40), None]), norm, gated), noise(MANY_ROWS - 1, COLUMNS)
    whole = made(x)
    for n in (1, 2, 8, 9):
        assert torch.equal(made(x[:n]), whole[:n])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("n", ROWS)
def test_products_of_narrow_matrices_are_added(n: int, gated: bool) -> None:
    """To the first and the last one, with different ranks; the norm comes before."""
    parts, x = matrices(*([40, 40] if gated else [40, 50, 16])), noise(n, COLUMNS)
    norm = Norm(noise(COLUMNS, seed=2), 0.1)
    normed = rms_norm(x.double(), (COLUMNS,), norm.weight.double(), norm.eps)
    layers, expected = [], products(normed, parts)
    for at, rank in ((0, 8), (len(parts) - 1, 3)):
        down, up = 0.1 * noise(rank, COLUMNS, seed=6), noise(len(parts[at].data), rank, seed=7)
        layers.append(Linear(parts[at], None, down, up))
        expected[at] += linear(linear(normed, down.double()), up.double())
    if not gated:
        layers.insert(1, Linear(parts[1]))
    result = silu(expected[0]) * expected[1] if gated else torch.cat(expected, 1)
    assert_near(Projection(layers, norm, gated)(x), result)
