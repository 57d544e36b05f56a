"""Attention of a few new tokens over 4-bit keys and values, and over the newest ones as they are.

Keys and values are not dequantized. A key is code * scale + low in each channel of a group: the scales
multiply the group's queries, and the lows add a constant to the scores of each row. A value has one scale and one low,
which multiply the weights and add to a row's sum.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.decoding import (
    NOTHING,
    Partial,
    Tiling,
    attend,
    checked_rows,
    joined,
    splits,
    tiling,
)

STAGES, WARPS = 4, 4
# Codes of 4 bits of keys and of values [Hkv, S/2, D], two tokens in a byte; a scale and a lowest number of each channel
# of the keys of a group [Hkv, S/group, 2, D], and of each token's values [Hkv, S, 2].
Quantized = tuple[Tensor, Tensor, Tensor, Tensor]


def decode_quantized(
    q: Tensor,
    before: Quantized,
    quantized: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    scale: float,
    shape: Tiling | None = None,
    parts: int | None = None,
) -> Tensor:
    """``decode_attention`` where the first tokens are quantized in 4 bits.

    ``quantized`` is a device tensor with one integer, the tokens of whole groups: all rows see so many of ``before``.
    Then come keys and values [Hkv, S, D] as they are, the new tokens' in slots ``at`` .. ``at+n-1``. ``shape`` and
    ``parts`` override the tiling and the number of programs for the former.
    """
    tokens, groups = before[3].shape[1], before[2].shape[1]
    heads, rows, dim = keys.shape[0], checked_rows(q, keys), q.shape[2]
    own = tiling(rows, dim, q.dtype)
    shape = shape or Tiling(own.rows, tokens // groups, STAGES, WARPS)
    first = parts or splits(heads, triton.cdiv(rows, shape.rows), tokens)
    last = splits(heads, triton.cdiv(rows, own.rows), keys.shape[1])
    partial = Partial.empty(first + last, heads, rows, dim, q.device)
    attend_groups(partial.parts(0, first), q, before, quantized, scale, shape)
    attend(partial.parts(first, first + last), q, keys, values, at, scale, own)
    return joined(partial, q)


def attend_groups(
    out: Partial, q: Tensor, before: Quantized, quantized: Tensor, scale: float, shape: Tiling
) -> None:
    """Partial attention of q [n, Hq, D] over groups of ``shape.slots`` quantized tokens, all seen by every row."""
    n, query_heads, dim = q.shape
    parts, heads = out.tops.shape[:2]
    group = query_heads // heads
    _attend_groups[(triton.cdiv(n * group, shape.rows), parts, heads)](
        q,
        *before,
        quantized,
        *out,
        scale * math.log2(math.e),
        n,
        heads,
        *q.stride()[:2],
        *(part.stride(0) for part in before),
        group=group,
        dim=dim,
        height=shape.rows,
        pairs=shape.slots // 2,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )


@triton.jit
def _attend_groups(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    quantized,
    sums,
    tops,
    totals,
    scale,  # of the scores, times log2(e)
    n,
    heads,
    q_token,
    q_head,
    keys_head,
    values_head,
    key_scales_head,
    value_scales_head,
    group: tl.constexpr,
    dim: tl.constexpr,
    height: tl.constexpr,
    pairs: tl.constexpr,  # of tokens in a group, each of which shares its bytes
):
    part, parts, head = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    row = tl.program_id(0) * height + tl.arange(0, height)
    rows = n * group
    groups = tl.load(quantized).to(tl.int32) // (2 * pairs)
    first, last = part * groups // parts, (part + 1) * groups // parts
    place = (part * heads + head).to(tl.int64) * rows + row
    top = tl.full((height,), NOTHING, tl.float32)
    if first == last:
        tl.store(tops + place, top, mask=row < rows)
        return
    column, pair = tl.arange(0, dim), tl.arange(0, pairs)
    q_at = q + (row // group).to(tl.int64) * q_token + (head * group + row % group) * q_head
    queries = tl.load(q_at[:, None] + column, mask=row[:, None] < rows, other=0.0)

    total, offset = tl.zeros((height,), tl.float32), tl.zeros((height,), tl.float32)
    mixed = tl.zeros((height, dim), tl.float32)
    k_at = keys + head.to(tl.int64) * keys_head + first.to(tl.int64) * pairs * dim
    v_at = values + head.to(tl.int64) * values_head + first.to(tl.int64) * pairs * dim
    k_scale_at = key_scales + head.to(tl.int64) * key_scales_head + first * 2 * dim + column
    v_scale_at = value_scales + head.to(tl.int64) * value_scales_head + first * 4 * pairs + 4 * pair
    for _ in range(first, last):
        k = tl.load(k_at + pair[None, :] * dim + column[:, None])  # [dim, pairs]
        k_scale, k_low = tl.load(k_scale_at).to(tl.float32), tl.load(k_scale_at + dim).to(tl.float32)
        turned = (queries.to(tl.float32) * k_scale[None, :]).to(queries.dtype)
        shift = tl.sum(queries.to(tl.float32) * k_low[None, :], 1)[:, None]
        even = tl.dot(turned, (k & 15).to(queries.dtype), input_precision="ieee")
        odd = tl.dot(turned, (k >> 4).to(queries.dtype), input_precision="ieee")
        even, odd = (even + shift) * scale, (odd + shift) * scale
        highest = tl.maximum(top, tl.maximum(tl.max(even, 1), tl.max(odd, 1)))
        even, odd = tl.exp2(even - highest[:, None]), tl.exp2(odd - highest[:, None])
        fading = tl.exp2(top - highest)
        total = total * fading + tl.sum(even + odd, 1)
        even_low, odd_low = (
            tl.load(v_scale_at + 1).to(tl.float32),
            tl.load(v_scale_at + 3).to(tl.float32),
        )
        offset = offset * fading + tl.sum(even * even_low[None, :] + odd * odd_low[None, :], 1)
        even *= tl.load(v_scale_at).to(tl.float32)[None, :]
        odd *= tl.load(v_scale_at + 2).to(tl.float32)[None, :]
        v = tl.load(v_at + pair[:, None] * dim + column[None, :])  # [pairs, dim]
        mixed *= fading[:, None]
        mixed = tl.dot(even.to(queries.dtype), (v & 15).to(queries.dtype), mixed, input_precision="ieee")
        mixed = tl.dot(odd.to(queries.dtype), (v >> 4).to(queries.dtype), mixed, input_precision="ieee")
        top = highest
        k_at += pairs * dim
        v_at += pairs * dim
        k_scale_at += 2 * dim
        v_scale_at += 4 * pairs

    tl.store(tops + place, top, mask=row < rows)
    tl.store(totals + place, total, mask=row < rows)
    tl.store(sums + place[:, None] * dim + column, mixed + offset[:, None], mask=row[:, None] < rows)
