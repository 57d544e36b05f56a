"""Layers whose weights stay quantized as a GGUF file has them.

Decoding a token reads every weight once, and a processor waits for its memory: 4-bit weights are read in a quarter of
the time of bfloat16 ones. A product is that of the numbers that the file's blocks stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn
from torch.nn.functional import linear


class Matrix(Protocol):
    """A quantized matrix [O, I]."""

    @property
    def shape(self) -> tuple[int, int]:
        """O and I."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What it consists of, each with a name that tells its format."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """The rows ``ids`` [n]: [n, I]."""
        ...

    def product(self, x: Tensor) -> Tensor:
        """x [..., I] times the transposed matrix: [..., O]."""
        ...


class QuantizedLayer(nn.Module):
    """A layer with a matrix [O, I], which is no parameter: it can be neither moved nor trained."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.matrix.shape


class QuantizedLinear(QuantizedLayer):
    """An ``nn.Linear``; ``bias`` is [O]."""

    def __init__(self, matrix: Matrix, bias: nn.Parameter | None) -> None:
        super().__init__(matrix)
        self.bias = bias
        self.register_parameter("down", None)
        self.register_parameter("up", None)

    def add_product(self, up: Tensor, down: Tensor, scale: float) -> None:
        """From now on compute with the matrix plus ``scale * up @ down``; up: [O, rank], down: [rank, I]."""
        self.up = nn.Parameter(scale * up.float(), requires_grad=False)
        self.down = nn.Parameter(down.float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]."""
        out = self.matrix.product(x)
        if self.bias is not None:
            out += self.bias
        if self.down is not None:
            out += linear(linear(x, self.down), self.up)
        return out


class QuantizedEmbedding(QuantizedLayer):
    """An ``nn.Embedding`` in the dtype of the matrix's rows."""

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] -> [..., I]."""
        return self.matrix.rows(ids.flatten()).view(*ids.shape, -1)


def weight_bytes(model: nn.Module) -> int:
    """What a step of a model reads of its weights, nearly: of an embedding of its own it reads a few rows only."""
    matrices = (layer.matrix for layer in model.modules() if isinstance(layer, QuantizedLinear))
    return sum(each.nbytes for each in model.parameters()) + sum(each.nbytes for each in matrices)
