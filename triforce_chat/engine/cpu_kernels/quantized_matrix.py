"""Matrices in GGUF's quantized blocks, multiplied as they are: a CPU reads the blocks and never a dense copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.cpu_kernels.few_rows import FewRows, Linear

SUPPORTED: frozenset[Kind] = frozenset(
    {
        Kind.F16,
        Kind.BF16,
        Kind.Q4_0,
        Kind.Q4_1,
        Kind.Q5_0,
        Kind.Q5_1,
        Kind.Q8_0,
        Kind.Q4_K,
        Kind.Q5_K,
        Kind.Q6_K,
    }
)
# From so many rows on, torch's own product with a dequantized tile is faster than the kernel.
MANY_ROWS = 96
TILE_BYTES = 4 << 20  # of dequantized weights, a size at which torch's product loses little to the division


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """A matrix [O, I] of a linear layer or an embedding, in blocks as a GGUF file has them.

    Raises ValueError if the kind is not SUPPORTED or the bytes do not fit the columns.
    """

    data: Tensor  # uint8 [O, bytes per row], may be a view of a memory-mapped file
    kind: Kind
    columns: int  # I
    # Of products of MANY_ROWS rows or more, as in a prefill: bf16 where the CPU multiplies it natively.
    wide_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.kind not in SUPPORTED:
            raise ValueError(f"no kernel multiplies {self.kind.name}")
        weights, size = GGML_QUANT_SIZES[self.kind]
        row = self.columns // weights * size
        if self.columns % weights or self.data.dtype != torch.uint8 or self.data.shape[1:] != (row,):
            raise ValueError(
                f"{self.columns} columns of {self.kind.name} are rows of {row} bytes, not {self.data.dtype} "
                f"{list(self.data.shape)}"
            )
        if self.data.device.type != "cpu" or (self.data.numel() and self.data.stride(1) != 1):
            raise ValueError("the bytes of a row must lie one after the other in the CPU's memory")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.data), self.columns

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Its bytes, with a name that tells how they are multiplied."""
        yield f"{self.kind.name}, {self.wide_dtype}", self.data

    def rows(self, ids: Tensor) -> Tensor:
        """The rows ``ids`` [n], dequantized: fp32 [n, I]. Raises IndexError if there is no such row."""
        ids = ids.to(torch.int64).contiguous()
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < len(self.data)):
            raise IndexError(f"rows are numbered 0 to {len(self.data) - 1}")
        out = torch.empty(len(ids), self.columns)
        self._dequantize(self.data, ids, out)
        return out

    def product(self, x: Tensor) -> Tensor:
        """x [..., I] times the transposed matrix: [..., O], in x's dtype, computed in fp32.

        Up to the order of fp32 sums it equals the product with the dequantized matrix. Below MANY_ROWS rows, a row
        of the product is the same bit by bit whatever other rows x has.
        """
        flat = x.detach().reshape(-1, self.columns).float().contiguous()  # [n, I]
        y = FewRows([Linear(self)])(flat) if len(flat) < MANY_ROWS else self._many_rows(flat)
        return y.view(*x.shape[:-1], len(self.data)).to(x.dtype)

    def _many_rows(self, x: Tensor) -> Tensor:
        """x [n, I] -> [n, O] by torch's product in ``wide_dtype``, with some dequantized rows at a time."""
        y = torch.empty(len(x), len(self.data))
        height = max(1, TILE_BYTES // (4 * self.columns))
        scratch = torch.empty(min(height, len(self.data)), self.columns)
        x = x.to(self.wide_dtype)
        for at in range(0, len(self.data), height):
            part = self.data[at : at + height]
            tile = scratch[: len(part)]
            self._dequantize(part, None, tile)
            y[:, at : at + len(part)] = x @ tile.to(x.dtype).t()
        return y

    def _dequantize(self, data: Tensor, ids: Tensor | None, out: Tensor) -> None:
        """out [n, I] = the rows ``ids`` of ``data``, or its first n."""
        if out.numel():
            compiled.loaded().dequantize(
                compiled.instructions(),
                self.kind,
                data.data_ptr(),
                data.stride(0),
                self.columns,
                None if ids is None else ids.data_ptr(),
                len(out),
                out.data_ptr(),
                torch.get_num_threads(),
            )
