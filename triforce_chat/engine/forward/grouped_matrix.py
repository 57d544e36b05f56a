"""A quantized matrix on a GPU: a kernel multiplies few rows with it as it is, many rows meet it tile by tile."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from triforce_chat.engine import kernels
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight

MOST_ROWS = 64  # beyond, the arithmetic takes longer than the reading, and cuBLAS is quicker at it
TILE_BYTES = 64 << 20  # of expanded weights


class GroupedMatrix:
    """A matrix [O, I] of a linear layer or an embedding, whose numbers are small integers in scaled groups.

    ``weight`` may be replaced by a view of a larger one with the same numbers.
    """

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        self.weight, self.dtype = weight, dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.outputs, self.weight.inputs

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What it consists of, each with a name that tells its format."""
        yield f"{self.weight.codes.name} in {self.weight.group}", self.weight.data
        yield "scale", self.weight.scale

    def rows(self, ids: Tensor) -> Tensor:
        """The rows ``ids`` [n]: [n, I]."""
        return kernels.expanded_rows(self.weight, ids, self.dtype)

    def product(self, x: Tensor) -> Tensor:
        """x [..., I] times the transposed matrix: [..., O], in x's dtype."""
        return product(x.reshape(-1, self.weight.inputs), self.weight).view(*x.shape[:-1], -1)


def product(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """x [n, I] times the transposed weight: [n, O].

    Up to MOST_ROWS rows no weight is rounded. Beyond, each is rounded to x's dtype once; of the expanded weight no
    more than a tile exists at a time.
    """
    if len(x) <= MOST_ROWS:
        return kernels.quantized_linear(x, weight)
    height = max(1, TILE_BYTES // (x.itemsize * weight.inputs))
    tile = x.new_empty(min(height, weight.outputs), weight.inputs)
    out = x.new_empty(len(x), weight.outputs)
    for at in range(0, weight.outputs, height):
        some = weight.rows(at, min(at + height, weight.outputs))
        kernels.expand(some, tile[: some.outputs])
        out[:, at : at + some.outputs] = linear(x, tile[: some.outputs])
    return out
