"""Layers whose weights stay in the quantized blocks of a GGUF file, for CPUs.

Decoding a token reads every weight once, and a CPU waits for its memory: 4-bit weights are read in a quarter of the
time of bfloat16 ones. Nothing is rounded further: a product is that of the numbers that the blocks stand for.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from triforce_chat.engine.cpu_kernels.quantized_matrix import QuantizedMatrix


class QuantizedLayer(nn.Module):
    """A layer with a matrix [O, I], which is no parameter: it can be neither moved nor trained."""

    def __init__(self, matrix: QuantizedMatrix) -> None:
        super().__init__()
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return len(self.matrix.data), self.matrix.columns


class QuantizedLinear(QuantizedLayer):
    """An ``nn.Linear``; ``bias`` is [O]."""

    def __init__(self, matrix: QuantizedMatrix, bias: nn.Parameter | None) -> None:
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
    """An ``nn.Embedding`` in fp32."""

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] -> [..., I]."""
        return self.matrix.rows(ids.flatten()).view(*ids.shape, -1)
