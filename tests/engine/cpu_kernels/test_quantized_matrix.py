"""Products with quantized matrices against gguf's own dequantization and fp64, on every instruction path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.quantized import dense, random_matrix
from torch import Tensor

from triforce_chat.engine.cpu_kernels import quantized_matrix
from triforce_chat.engine.cpu_kernels.quantized_matrix import MANY_ROWS, SUPPORTED, QuantizedMatrix

pytestmark = pytest.mark.usefixtures("library")

KINDS = sorted(SUPPORTED)
BLOCKED = (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
# Shares of the sum of |x||w|, in roundings of fp32. A product of the kernel's has 8 or 16 partial sums, so 512 columns
# take 36 to 67 additions in a row, whose roundings mostly cancel; 2.5 were seen. torch's product of matrices adds all
# columns one after the other; 6.1 were seen.
KERNEL_BOUND, TORCH_BOUND = 4 * 2.0**-24, 12 * 2.0**-24
ROWS = (*range(1, 18), 40, 513)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_product(found: Tensor, matrix: QuantizedMatrix, x: Tensor) -> None:
    weights, wide = dense(matrix).double(), x.double()
    error = (found.double() - wide @ weights.T).abs()
    bound = KERNEL_BOUND if x.shape[:-1].numel() < MANY_ROWS else TORCH_BOUND
    limit = bound * (wide.abs() @ weights.abs().T)
    assert found.shape == (*x.shape[:-1], len(weights))
    assert (error <= limit).all(), float((error / limit).nan_to_num().max())


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_are_gguf_s_bit_by_bit(kind: Kind, extreme: bool) -> None:
    matrix = random_matrix(kind, 37, 768, extreme=extreme)
    ids = torch.tensor([36, 0, 5, 5, 17])
    assert torch.equal(matrix.rows(ids), dense(matrix)[ids])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_products_equal_the_dequantized_matrix_s(kind: Kind, extreme: bool) -> None:
    for columns in (256, 512) if kind in BLOCKED else (32, 96, 512):
        matrix = random_matrix(kind, 37, columns, extreme=extreme)
        for n in ROWS:
            x = noise(n, columns)
            assert_product(matrix.product(x), matrix, x)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("columns", [1, 31, 33, 100])
def test_columns_without_blocks_may_be_any_number(kind: Kind, columns: int) -> None:
    matrix = random_matrix(kind, 5, columns)
    for n in (1, 3, 9):
        x = noise(n, columns)
        assert_product(matrix.product(x), matrix, x)
    assert torch.equal(matrix.rows(torch.arange(5)), dense(matrix))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_row_has_the_same_product_beside_any_others(kind: Kind) -> None:
    matrix, x = random_matrix(kind, 23, 512), noise(MANY_ROWS - 1, 512)
    whole = matrix.product(x)
    for n in range(1, 18):
        assert torch.equal(matrix.product(x[:n]), whole[:n])
    assert torch.equal(matrix.product(x), whole)


@pytest.mark.usefixtures("path", "threads")
@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 33, 131])
def test_threads_share_the_outputs(outputs: int) -> None:
    matrix, x = random_matrix(Kind.Q5_0, outputs, 96), noise(3, 96)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(matrix.product(x))
        assert_product(found[-1], matrix, x)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_rows_that_are_not_contiguous() -> None:
    matrix, x = random_matrix(Kind.Q4_K, 19, 256), noise(256, 6)
    assert_product(matrix.product(x.T), matrix, x.T)
    assert_product(matrix.product(x.T[::2, None]), matrix, x.T[::2, None])


def test_a_matrix_may_be_a_part_of_wider_rows() -> None:
    whole = random_matrix(Kind.Q8_0, 40, 96)
    part = QuantizedMatrix(whole.data[3::2, 34:], Kind.Q8_0, 64)
    x, weights = noise(2, 64), dense(whole)[3::2, 32:]
    assert torch.allclose(part.product(x), x @ weights.T, atol=1e-3, rtol=1e-4)
    assert torch.equal(part.rows(torch.tensor([1])), weights[1:2])
    assert torch.allclose(part.product(noise(99, 64)), noise(99, 64) @ weights.T, atol=1e-3, rtol=1e-4)


def test_nothing_times_a_matrix_is_nothing() -> None:
    matrix = random_matrix(Kind.Q4_0, 7, 32)
    assert matrix.product(torch.empty(2, 0, 32)).shape == (2, 0, 7)
    assert matrix.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 32)
    assert random_matrix(Kind.Q4_0, 0, 32).product(noise(60, 32)).shape == (60, 0)


def test_bfloat16_is_computed_in_fp32() -> None:
    matrix, x = random_matrix(Kind.Q6_K, 9, 512), noise(1, 2, 512).bfloat16()
    found = matrix.product(x)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, matrix.product(x.float()).bfloat16())


def test_many_rows_take_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_matrix, "TILE_BYTES", 4 * 256 * 10)
    matrix, x = random_matrix(Kind.Q5_K, 37, 256), noise(MANY_ROWS, 256)
    assert_product(matrix.product(x), matrix, x)


def test_many_rows_may_be_multiplied_in_bfloat16() -> None:
    """As an expanded model in that type does; few rows stay exact."""
    matrix, x = random_matrix(Kind.Q4_1, 21, 512), noise(MANY_ROWS, 512)
    narrow = replace(matrix, wide_dtype=torch.bfloat16)
    assert torch.equal(narrow.product(x[:3]), matrix.product(x[:3]))
    found, expected = narrow.product(x), matrix.product(x)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    assert torch.equal(found, (x.bfloat16() @ dense(matrix).bfloat16().T).float())


def test_rows_that_do_not_exist() -> None:
    matrix = random_matrix(Kind.Q4_1, 7, 32)
    for wrong in (-1, 7):
        with pytest.raises(IndexError, match="0 to 6"):
            matrix.rows(torch.tensor([0, wrong]))


@pytest.mark.parametrize(
    ("kind", "columns", "data"),
    [
        (Kind.Q2_K, 256, torch.zeros(1, 84, dtype=torch.uint8)),
        (Kind.Q4_0, 48, torch.zeros(1, 27, dtype=torch.uint8)),
        (Kind.Q4_0, 32, torch.zeros(1, 19, dtype=torch.uint8)),
        (Kind.Q4_0, 32, torch.zeros(1, 18, dtype=torch.int8)),
        (Kind.Q4_0, 32, torch.zeros(18, 2, dtype=torch.uint8).T),
    ],
)
def test_bytes_that_are_no_such_matrix(kind: Kind, columns: int, data: Tensor) -> None:
    with pytest.raises(ValueError, match=r"kernel|bytes"):
        QuantizedMatrix(data, kind, columns)
