"""Numbers of quantized weights one by one: for products of many tokens, and for embeddings."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.quantized_weight import RUN, QuantizedWeight

ROWS, RUNS = 16, 8  # of a program's tile
# PTX that makes bfloat16 numbers of the integers of 4 bits in a word, two in each of four registers, by their bits:
# 0x4300 is 128, and the last seven bits count in ones. So they are too large by 128.
UNPACKED_NIBBLES = """.reg .b32 low, high;
and.b32 low, $4, 0x0F0F0F0F;
shr.u32 high, $4, 4;
and.b32 high, high, 0x0F0F0F0F;
prmt.b32 $0, low, 0x43434343, 0x4140;
prmt.b32 $1, low, 0x43434343, 0x4342;
prmt.b32 $2, high, 0x43434343, 0x4140;
prmt.b32 $3, high, 0x43434343, 0x4342;
"""


def expand(weight: QuantizedWeight, out: Tensor) -> None:
    """Write the numbers of a grouped weight [O, I] to ``out`` [O, I], rounded once to its dtype."""
    _expanded(weight, None, out)


def expanded_rows(weight: QuantizedWeight, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows ``ids`` [n] of a grouped weight: [n, I]."""
    out = torch.empty(len(ids), weight.inputs, dtype=dtype, device=ids.device)
    _expanded(weight, ids, out)
    return out


def _expanded(weight: QuantizedWeight, ids: Tensor | None, out: Tensor) -> None:
    data, scale, codes = weight.data, weight.scale, weight.codes
    runs = data.shape[1] // RUN
    _expand[triton.cdiv(len(out), ROWS), triton.cdiv(runs, RUNS)](
        data,
        scale,
        out if ids is None else ids,
        out,
        len(out),
        runs,
        data.stride(0),
        scale.stride(0),
        out.stride(0),
        group=weight.group,
        zero=codes.zero,
        looks_up=ids is not None,
        width=RUN,
        rows=ROWS,
        height=RUNS,
    )


@triton.jit
def scale_and_low(shared):
    """The two numbers of 16 bits, as fp32, of which ``shared`` ends."""
    scale = shared.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    low = (shared >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scale, low


@triton.jit
def _expand(
    data,
    scale,
    ids,
    out,
    n,
    runs,
    data_row,
    scale_row,
    out_row,
    group: tl.constexpr,
    zero: tl.constexpr,
    looks_up: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    height: tl.constexpr,
):
    paired: tl.constexpr = data.dtype.element_ty == tl.uint8
    parts: tl.constexpr = 2 if paired else 1
    to = tl.program_id(0) * rows + tl.arange(0, rows)
    row = tl.load(ids + to, mask=to < n, other=0) if looks_up else tl.minimum(to, n - 1).to(tl.int64)
    run = tl.program_id(1) * height + tl.arange(0, height)
    across = tl.arange(0, width)[None, None, :]
    inside = (to < n)[:, None] & (run < runs)[None, :]
    w_at = data + row[:, None, None] * data_row + run[None, :, None] * width + across
    w = tl.load(w_at, mask=inside[:, :, None], other=0)
    shared_at = scale + row[:, None] * scale_row + (run * width * parts // group)[None, :]
    shared = tl.load(shared_at, mask=inside, other=0)
    for half in tl.static_range(parts):
        numbers = ((w >> (half * 4)) & 15 if paired else w).to(tl.float32)
        if scale.dtype.element_ty == tl.int32:
            factor, least = scale_and_low(shared)
            made = numbers * factor[:, :, None] + least[:, :, None]
        else:
            made = (numbers - zero) * shared[:, :, None]
        at = ((run * parts + half) * width)[None, :, None] + across
        out_at = out + to.to(tl.int64)[:, None, None] * out_row + at
        tl.store(out_at, made.to(out.dtype.element_ty), mask=inside[:, :, None])
