"""Matrices in GGUF's quantized blocks."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

SUPPORTED = frozenset(
    GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)


def available() -> str | None:
    """None if products run on this machine, else the reason why not."""
    return None


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """A matrix [O, I] in quantized blocks."""

    data: Tensor  # uint8 [O, bytes per row], may be a view of a memory-mapped file
    kind: GGMLQuantizationType
    columns: int

    def rows(self, ids: Tensor) -> Tensor:
        """Dequantized rows [n, I] in fp32."""
        return torch.from_numpy(gguf.quants.dequantize(self.data[ids].numpy(), self.kind))

    def product(self, x: Tensor) -> Tensor:
        """x [..., I] times the transposed matrix: [..., O] in x's dtype."""
        whole = torch.from_numpy(gguf.quants.dequantize(self.data.numpy(), self.kind))
        return (x.float() @ whole.T).to(x.dtype)
