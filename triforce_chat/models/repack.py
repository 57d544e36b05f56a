"""GGUF's quantized blocks in the layout that a GPU multiplies, made on the GPU itself.

Integers stay as they are. Of the kinds with a minimum (Q4_K and Q5_K) scale and minimum of each 32 weights, in the
file products of an fp16 number and six bits, are rounded to fp16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from triforce_chat.models.dequantize import BLOCKS

if TYPE_CHECKING:
    from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight, WeightFormat

AT_ONCE = 32 << 20  # weights: temporary tensors take some of their bytes
GROUP = 32  # weights that share a scale, but for
GROUP_OF_Q6_K = 16
FOUR_BITS = (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
SIDED = (Kind.Q4_1, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K)  # whose scales have a minimum


def weight_format(kind: Kind) -> WeightFormat:
    """The format that blocks of a kind get."""
    from triforce_chat.engine.kernels.quantized_weight import Codes, WeightFormat

    codes = Codes.BITS_4 if kind in FOUR_BITS else Codes.BITS_8
    return WeightFormat(codes, GROUP_OF_Q6_K if kind == Kind.Q6_K else GROUP, kind in SIDED)


def packed_bytes(shape: Sequence[int], kind: Kind) -> int:
    """Bytes of a repacked matrix [O, I]."""
    rows, columns = shape
    return weight_format(kind).empty(rows, columns, torch.device("meta")).nbytes


def repacked(blocks: Tensor, kind: Kind, device: torch.device) -> QuantizedWeight:
    """A matrix [O, I] from its blocks, uint8 [O, bytes of a row] in the CPU's memory, some rows at a time."""
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    columns = blocks.shape[1] // size * weights
    made, height = weight_format(kind).empty(len(blocks), columns, device), max(1, AT_ONCE // columns)
    for at in range(0, len(blocks), height):
        part = _packed(blocks[at : at + height].to(device), kind, columns)
        made.rows(at, at + part.outputs).copy_(part)
    return made


def _packed(blocks: Tensor, kind: Kind, columns: int) -> QuantizedWeight:
    from triforce_chat.engine.kernels.quantized_weight import Codes, pack

    codes, groups = (
        weight_format(kind).codes,
        BLOCKS[kind](blocks.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])),
    )
    # Eight bits are signed.
    numbers = groups.numbers.to(torch.int8) - groups.zero if codes is Codes.BITS_8 else groups.numbers
    shared = (groups.scale, groups.minimum)
    scale, minimum = (None if each is None else each.reshape(len(blocks), -1) for each in shared)
    assert scale is not None
    return pack(codes, numbers.reshape(len(blocks), columns), scale, minimum)
