"""Numbers of quantized weights one by one: for products of many tokens, and for embeddings."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight

ROWS, SPANS = 16, 4  # of a program's tile


def expand(weight: QuantizedWeight, out: Tensor) -> None:
    """Write the numbers of a grouped weight [O, I] to ``out`` [O, I], rounded once to its dtype."""
    _expanded(weight, None, out)


def expanded_rows(weight: QuantizedWeight, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows ``ids`` [n] of a grouped weight: [n, I]."""
    out = torch.empty(len(ids), weight.inputs, dtype=dtype, device=ids.device)
    _expanded(weight, ids, out)
    return out


def _expanded(weight: QuantizedWeight, ids: Tensor | None, out: Tensor) -> None:
    data, codes = weight.data, weight.codes
    grid = triton.cdiv(len(out), ROWS), triton.cdiv(len(data), SPANS)
    _expand[grid](
        data,
        weight.scale,
        out if ids is None else ids,
        out,
        len(out),
        weight.inputs,
        len(data),
        data.stride(0),
        data.stride(1),
        weight.scale.stride(0),
        out.stride(0),
        group=weight.group,
        zero=codes.zero,
        looks_up=ids is not None,
        words=codes.words,
        rows=ROWS,
        spans=SPANS,
    )


@triton.jit
def _expand(
    data,
    scale,
    ids,
    out,
    n,
    inputs,
    total,
    data_span,
    data_row,
    scale_row,
    out_row,
    group: tl.constexpr,
    zero: tl.constexpr,
    looks_up: tl.constexpr,
    words: tl.constexpr,
    rows: tl.constexpr,
    spans: tl.constexpr,
):
    paired: tl.constexpr = data.dtype.element_ty != tl.int8
    parts: tl.constexpr = 2 if paired else 1
    shift: tl.constexpr = 4 if data.dtype.element_ty == tl.uint8 else 8
    to = tl.program_id(0) * rows + tl.arange(0, rows)
    row = tl.load(ids + to, mask=to < n, other=0) if looks_up else tl.minimum(to, n - 1).to(tl.int64)
    span = tl.program_id(1) * spans + tl.arange(0, spans)
    across = tl.arange(0, words)[None, None, :]
    w_at = data + span.to(tl.int64)[:, None, None] * data_span + row[None, :, None] * data_row + across
    w = tl.load(w_at, mask=span[:, None, None] < total, other=0)
    for half in tl.static_range(parts):
        first = (span * parts + half) * words
        shared = tl.load(
            scale + (first // group)[:, None] * scale_row + row[None, :], mask=span[:, None] < total, other=0
        )
        numbers = ((w >> (half * shift)) & ((1 << shift) - 1) if paired else w).to(tl.float32)
        if scale.dtype.element_ty == tl.int32:
            factor = shared.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            least = (shared >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            made = numbers * factor[:, :, None] + least[:, :, None]
        else:
            made = (numbers - zero) * shared[:, :, None]
        at = first[:, None, None] + across
        out_at = out + to.to(tl.int64)[None, :, None] * out_row + at
        tl.store(out_at, made.to(out.dtype.element_ty), mask=(to[None, :, None] < n) & (at < inputs))
