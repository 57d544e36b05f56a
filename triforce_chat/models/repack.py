"""GGUF's quantized blocks in the layout that a GPU multiplies, made on the GPU itself.

Integers stay as they are. Of the kinds with a minimum (Q4_K and Q5_K) scale and minimum of each 32 weights, in the
file products of an fp16 number and six bits, are rounded to fp16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from triforce_chat.models.dequantize import BLOCKS

if TYPE_CHECKING:
    from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight

AT_ONCE = 32 << 20  # weights: temporary tensors take some of their bytes
GROUP = 32  # weights that share a scale, but for
GROUPS = {Kind.Q6_K: 16}
SHARED = 4  # bytes that a group shares
FOUR_BITS = (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
SPAN = 64  # weights of a row whose 4-bit integers lie together


def packed_bytes(shape: Sequence[int], kind: Kind) -> int:
    """Bytes of a repacked matrix [O, I]."""
    rows, columns = shape
    group = GROUPS.get(kind, GROUP)
    if kind in FOUR_BITS:
        columns = math.ceil(columns / SPAN) * SPAN
    return rows * (columns // (2 if kind in FOUR_BITS else 1) + columns // group * SHARED)


def repacked(blocks: Tensor, kind: Kind, device: torch.device) -> QuantizedWeight:
    """A matrix [O, I] from its blocks, uint8 [O, bytes of a row] in the CPU's memory, some rows at a time."""

    weights, size = gguf.GGML_QUANT_SIZES[kind]
    columns = blocks.shape[1] // size * weights
    height = max(1, AT_ONCE // columns)
    made: QuantizedWeight | None = None
    for at in range(0, len(blocks), height):
        part = _packed(blocks[at : at + height].to(device), kind, columns)
        if made is None:
            made = part if height >= len(blocks) else part.taller(len(blocks))
        if made is not part:
            made.rows(at, at + part.outputs).copy_(part)
    assert made is not None
    return made


def _packed(blocks: Tensor, kind: Kind, columns: int) -> QuantizedWeight:
    from triforce_chat.engine.kernels.quantized_weight import Codes, pack

    rows = len(blocks)
    groups = BLOCKS[kind](blocks.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]))
    codes = Codes.BITS_4 if kind in FOUR_BITS else Codes.BITS_6 if kind == Kind.Q6_K else Codes.BITS_8
    # Eight bits are signed.
    numbers = groups.numbers.to(torch.int8) - groups.zero if codes == Codes.BITS_8 else groups.numbers
    minimum = groups.minimum
    return pack(
        codes,
        numbers.reshape(rows, columns),
        groups.scale.reshape(rows, -1),
        None if minimum is None else minimum.reshape(rows, -1),
    )
