"""Times of products with quantized matrices on this CPU, beside torch's own with dense ones.

Run as ``python -m triforce_chat.lab.bench.cpu_kernels [--json] [--only KIND ...]``.
The matrices are those of Qwen2.5-0.5B; 256 does not divide 896, so types with blocks of 256 are measured on those of
Qwen2.5-1.5B. Each product goes round copies that no cache holds, and the fastest one counts, because other programs
only ever slow one down.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from torch import Tensor
from torch.nn.functional import linear

from triforce_chat.engine.cpu_kernels.compiled import library
from triforce_chat.engine.cpu_kernels.quantized_matrix import SUPPORTED, QuantizedMatrix
from triforce_chat.loading.cpu_speed import bfloat16_pays

SHAPES = ((4864, 896), (896, 4864), (896, 896), (151_936, 896))  # outputs, columns
SHAPES_OF_256 = ((8960, 1536), (1536, 8960), (1536, 1536), (151_936, 1536))
ROWS = (1, 8, 512)
HELD = 64 << 20  # bytes: more than most processors' caches hold
SECONDS = 0.3  # of each measurement
LARGE = 1 << 28  # bytes of the largest dense matrix that is measured


@dataclass(frozen=True, slots=True)
class Row:
    """The fastest product of a matrix [outputs, columns] with 1, 8 and 512 rows."""

    kind: str
    shape: str
    ms: tuple[float, ...]  # for each of ROWS
    gb_per_second: float  # of the matrix's bytes, with one row


def random_matrix(kind: Kind, outputs: int, columns: int) -> QuantizedMatrix:
    """Random bytes without an exponent of infinity, which would slow nothing down but be no number."""
    weights, size = GGML_QUANT_SIZES[kind]
    data = torch.randint(0, 60, (outputs, columns // weights * size), dtype=torch.uint8)
    return QuantizedMatrix(data, kind, columns)


def milliseconds(products: Sequence[Callable[[Tensor], Tensor]], columns: int, n: int) -> float:
    """Time of the fastest product with n rows; each of the products has its own copy of the matrix."""
    x, best = torch.randn(n, columns), math.inf
    ends = time.perf_counter() + SECONDS
    while best is math.inf or time.perf_counter() < ends:
        for product in products:
            started = time.perf_counter()
            product(x)
            best = min(best, time.perf_counter() - started)
            if time.perf_counter() > ends:
                break
    return 1e3 * best


def measured(
    kind: str, shape: tuple[int, int], size: int, made: Callable[[], Callable[[Tensor], Tensor]]
) -> Row:
    """``made`` makes a product with a matrix of that many bytes."""
    products = [made() for _ in range(math.ceil(HELD / size))]
    ms = tuple(milliseconds(products, shape[1], n) for n in ROWS)
    return Row(kind, f"{shape[0]}x{shape[1]}", ms, size / ms[0] / 1e6)


def rows(kinds: Sequence[Kind]) -> Iterator[Row]:
    dtypes = (torch.float32, *([torch.bfloat16] if bfloat16_pays() else ()))
    for shape in (*SHAPES, *SHAPES_OF_256):
        for dtype in dtypes:
            if (size := shape[0] * shape[1] * dtype.itemsize) <= LARGE:
                yield measured(f"torch {dtype}", shape, size, partial(dense, shape, dtype))
    for kind in kinds:
        for shape in shapes_of(kind):
            size = random_matrix(kind, *shape).data.nbytes
            yield measured(kind.name, shape, size, partial(quantized, kind, shape))


def shapes_of(kind: Kind) -> tuple[tuple[int, int], ...]:
    """The model whose columns are whole blocks."""
    return SHAPES if all(columns % GGML_QUANT_SIZES[kind][0] == 0 for _, columns in SHAPES) else SHAPES_OF_256


def dense(shape: tuple[int, int], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    weight = torch.randn(shape).to(dtype)
    return lambda x: linear(x.to(dtype), weight)


def quantized(kind: Kind, shape: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    return random_matrix(kind, *shape).product


def table(found: Sequence[Row]) -> str:
    head = f"{'kind':<16} {'shape':<12} " + " ".join(f"{f'{n} rows':>10}" for n in ROWS) + "   GB/s, 1 row"
    lines = (
        f"{row.kind:<16} {row.shape:<12} "
        + " ".join(f"{ms:7.3f} ms" for ms in row.ms)
        + f" {row.gb_per_second:13.1f}"
        for row in found
    )
    return "\n".join((head, *lines))


def main(arguments: Sequence[str] | None = None) -> None:
    names = [kind.name for kind in sorted(SUPPORTED)]
    parser = argparse.ArgumentParser(
        prog="python -m triforce_chat.lab.bench.cpu_kernels", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="one object for each matrix instead of a table")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="KIND", help="of these types"
    )
    chosen = parser.parse_args(arguments)
    if (reason := library().reason) is not None:
        parser.error(reason)
    with torch.inference_mode():
        found = list(rows([Kind[name] for name in chosen.only]))
    print("\n".join(json.dumps(asdict(row)) for row in found) if chosen.json else table(found))


if __name__ == "__main__":
    main()
