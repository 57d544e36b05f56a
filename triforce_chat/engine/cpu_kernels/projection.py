"""Linear layers that share an input, with what precedes and follows them in a decoder layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from triforce_chat.engine.cpu_kernels.few_rows import FewRows, Linear, Norm
from triforce_chat.engine.cpu_kernels.quantized_matrix import MANY_ROWS, QuantizedMatrix


class Projection:
    """Linear layers with one input, whose outputs lie one beside the other.

    With ``norm`` the input is normed before. ``gated``: the result is silu of the first layer's output times the
    second one's.
    """

    def __init__(
        self, layers: Sequence[Linear[QuantizedMatrix]], norm: Norm | None = None, gated: bool = False
    ) -> None:
        self.layers, self.norm, self.gated = layers, norm, gated
        self.few_rows = FewRows(layers, norm, gated)

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """fp32 x [n, I], contiguous -> [n, all O], plus ``added`` [n, all O].

        Below MANY_ROWS rows, a row of the result is the same bit by bit whatever other rows x has.
        """
        return self.few_rows(x, added) if len(x) < MANY_ROWS else self._many_rows(x, added)

    def _many_rows(self, x: Tensor, added: Tensor | None) -> Tensor:
        if self.norm is not None:
            x = rms_norm(x, x.shape[1:], self.norm.weight, self.norm.eps)
        parts = [product(layer, x) for layer in self.layers]
        if self.gated:
            return silu(parts[0], inplace=True).mul_(parts[1])
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return out if added is None else out.add_(added)


def product(layer: Linear[QuantizedMatrix], x: Tensor) -> Tensor:
    """The layer's output of many rows: x [n, I] -> [n, O]."""
    out = layer.matrix.product(x)
    if layer.bias is not None:
        out += layer.bias
    if layer.down is not None and layer.up is not None:
        out += linear(linear(x, layer.down), layer.up)
    return out
