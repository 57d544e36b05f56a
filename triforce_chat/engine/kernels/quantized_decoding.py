"""Attention of a few new tokens over keys and values in 8 or 4 bits, and over the newest ones as they are.

Keys and values are not dequantized. A key of 4 bits is code * scale + low in each channel of a group: the scales
multiply the group's queries, and the lows add a constant to the scores of each row. A value has one scale and one low,
which multiply the weights and add to a row's sum. In 8 bits there are no lows.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels import chip
from triforce_chat.engine.kernels.decoding import (
    NOTHING,
    Partial,
    Sequences,
    Tiling,
    attend,
    checked_rows,
    joined,
    narrow_warps,
    splits,
    tiling,
)
from triforce_chat.engine.kernels.expanding import UNPACKED_NIBBLES, scale_and_low

STAGES, WARPS = 4, 4
LEAST_ROWS, FEW_ROWS = 16, (32, 3)  # rows of the smallest tile; tokens and stages of codes of 8 bits there
# Of weights in fp16, so that small ones keep their bits, and none is too large for values up to 130,000.
GAIN = tl.constexpr(64.0)
# Whole numbers of 8 bits become fp16 numbers by their bits: 0x6400 is 1024, and the last ten bits count in ones.
BYTES = tl.constexpr("""{
.reg .b32 raised, excess;
mov.b32 excess, 0x64806480;
xor.b32 raised, $2, 0x80808080;
prmt.b32 $0, raised, 0x64646464, 0x4140;
prmt.b32 $1, raised, 0x64646464, 0x4342;
sub.f16x2 $0, $0, excess;
sub.f16x2 $1, $1, excess;
}""")
BIAS = tl.constexpr(128)  # of unpacked integers of 4 bits
NIBBLES = tl.constexpr(f"{{ {UNPACKED_NIBBLES} }}")
# The first four fields of ``QuantizedTokens``: codes of keys [Hkv, rows, D] and of values [Hkv, S/group, rows, D] whose
# rows lie side by side; a scale, in 4 bits also a lowest number, of each channel of the keys of a group
# [Hkv, S/group, 1 or 2, D], and of each token's values [Hkv, S, 1 or 2].
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
    """``decode_attention`` where the first tokens are quantized.

    ``quantized`` is a device tensor with one integer, the tokens of whole groups: all rows see so many of ``before``.
    Then come keys and values [Hkv, S, D] as they are, the new tokens' in slots ``at`` .. ``at+n-1``. ``shape`` and
    ``parts`` override the tiling and the number of programs for the former.
    """
    shape = shape or group_tiling(q, before)
    own = tiling(checked_rows(q, keys), q.shape[2], q.dtype, kept=keys.dtype)
    partial, early, late = parts_of(q, before, keys.shape[1], shape, own, parts)
    attend_groups(early, q, before, quantized, scale, shape)
    attend(late, q, keys, values, at, scale, own)
    return joined(partial, q)


def decode_grouped(
    q: Tensor,
    before: Quantized,
    at: Tensor,
    keys: Tensor,
    values: Tensor,
    own: Sequences,
    scale: float,
    shape: Tiling | None = None,
    parts: int | None = None,
) -> Tensor:
    """Attention of n tokens, at most a group's, each to its own group as it is and to all earlier groups quantized.

    q [n, Hq, D]; ``at`` is a device tensor with one integer, the tokens before them. ``before`` must have all groups
    that are full. ``keys`` and ``values`` [P, Hkv, group, D] are those of the newest groups; by ``own`` the tokens of
    each of the two groups that they may belong to are a sequence in the place of its own. Returns [n, Hq, D].
    """
    shape = shape or group_tiling(q, before)
    tiles = tiling(checked_rows(q, keys[0]), q.shape[2], q.dtype)
    partial, early, late = parts_of(q, before, keys.shape[2], shape, tiles, parts)
    attend_groups(early, q, before, at, scale, shape, growing=True)
    attend(late, q, keys, values, own.at, scale, tiles, own)
    return joined(partial, q)


def group_tiling(q: Tensor, before: Quantized) -> Tiling:
    """The tiling of q [n, Hq, D] over groups."""
    heads, slots, _ = before[3].shape
    own, width = tiling(len(q) * q.shape[1] // heads, q.shape[2], q.dtype), slots // before[2].shape[1]
    # Products of fp32 would not fit the registers of one warp.
    few = before[0].dtype == torch.int8 and own.rows == LEAST_ROWS and q.dtype.itemsize == 2
    shape = Tiling(own.rows, *((*FEW_ROWS, narrow_warps(q.shape[2])) if few else (width, STAGES, WARPS)))
    fits = chip.shared_memory() >= chip.HOPPER
    return shape if fits else shape._replace(stages=fitting_stages(shape, q, before))


def fitting_stages(shape: Tiling, q: Tensor, before: Quantized) -> int:
    """Pipeline stages of which two programs fit a multiprocessor: all but one load a tile ahead."""
    dim, bits = q.shape[2], 8 if before[0].dtype == torch.int8 else 4
    tile = 2 * shape.slots * dim * bits // 8
    # Queries pass through shared memory, in fp32 what codes stand for does, too.
    beside = dim * q.dtype.itemsize * (shape.rows + (shape.slots if q.dtype.itemsize == 4 else 0))
    left = chip.share() * shape.warps // WARPS - beside
    return min(shape.stages, 1 + max(0, left // tile))


def parts_of(
    q: Tensor, before: Quantized, newest: int, shape: Tiling, own: Tiling, parts: int | None
) -> tuple[Partial, Partial, Partial]:
    """Room for the results over quantized tokens and over so many of the newest ones: all of it, and these parts."""
    heads, slots, _ = before[3].shape
    rows = len(q) * q.shape[1] // heads
    first = parts or splits(heads, triton.cdiv(rows, shape.rows), slots, shape.warps)
    last = splits(heads, triton.cdiv(rows, own.rows), newest)
    partial = Partial.empty(first + last, heads, rows, q.shape[2], q.device)
    return partial, partial.parts(0, first), partial.parts(first, first + last)


def attend_groups(
    out: Partial,
    q: Tensor,
    before: Quantized,
    tokens: Tensor,
    scale: float,
    shape: Tiling,
    growing: bool = False,
) -> None:
    """Partial attention of q [n, Hq, D] over quantized tokens, a tile of ``shape.slots`` of a group at a time.

    Codes of 4 bits take tiles of whole groups.

    ``tokens`` is a device tensor with one integer: how many of whole groups every row sees. If ``growing``, that of
    the tokens before the first row instead, and each row sees the groups before its own.
    """
    n, query_heads, dim = q.shape
    parts, heads = out.tops.shape[:2]
    group = query_heads // heads
    keys, values, key_scales, value_scales = before
    bits, shared = 8 if keys.dtype == torch.int8 else 4, value_scales.flatten(1)
    if bits == 4:
        shared = shared.view(torch.int64)  # all that belongs to the values of two tokens is loaded at once
    _attend_groups[(triton.cdiv(n * group, shape.rows), parts, heads)](
        q,
        keys,
        values,
        key_scales,
        shared,
        tokens,
        *out,
        scale * math.log2(math.e),
        n,
        heads,
        *q.stride()[:2],
        *(part.stride(0) for part in (keys, values, key_scales, shared)),
        group=group,
        dim=dim,
        height=shape.rows,
        width=value_scales.shape[1] // key_scales.shape[1],
        tile=shape.slots,
        bits=bits,
        growing=growing,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )


@triton.jit
def _scales(k_scale_at, shared_at, dim: tl.constexpr, bits: tl.constexpr):
    """The scales of a group's keys, their lowest numbers, and what belongs to its values."""
    k_scale = tl.load(k_scale_at)
    k_low = k_scale if bits == 8 else tl.load(k_scale_at + dim)
    return k_scale, k_low, tl.load(shared_at)


@triton.jit
def _whole(words, kind: tl.constexpr):
    """Integers of 8 bits in ``kind``."""
    if kind == tl.float16:
        made = tl.inline_asm_elementwise(BYTES, "=r,=r,r", [words], dtype=tl.float16, is_pure=True, pack=4)
    else:
        made = words.to(kind)
    return made


@triton.jit
def _halves(words, kind: tl.constexpr):
    """The two integers of 4 bits in each byte in ``kind``, larger by BIAS."""
    low, high = tl.inline_asm_elementwise(
        NIBBLES, "=r,=r,=r,=r,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
    )
    return low.to(kind), high.to(kind)


@triton.jit
def _attend_groups(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    tokens,
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
    width: tl.constexpr,  # tokens of a group
    tile: tl.constexpr,  # those of them that are read at a time
    bits: tl.constexpr,
    growing: tl.constexpr,
):
    part, parts, head = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    row = tl.program_id(0) * height + tl.arange(0, height)
    rows = n * group
    token = row // group
    before = tl.load(tokens).to(tl.int32)
    seen = (before + token) // width if growing else before // width + token * 0  # groups, by row
    pieces: tl.constexpr = width // tile
    tiles = ((before + n - 1) // width if growing else before // width) * pieces
    first, last = part * tiles // parts, (part + 1) * tiles // parts
    place = (part * heads + head).to(tl.int64) * rows + row
    top = tl.full((height,), NOTHING, tl.float32)
    if first == last:
        tl.store(tops + place, top, mask=row < rows)
        return
    stored: tl.constexpr = width * bits // 8  # rows of codes in a group
    loaded: tl.constexpr = tile * bits // 8  # in a tile
    numbers: tl.constexpr = 1 if bits == 8 else 2  # that belong to a code
    column, lane = tl.arange(0, dim), tl.arange(0, loaded)
    q_at = q + token.to(tl.int64) * q_token + (head * group + row % group) * q_head
    queries = tl.load(q_at[:, None] + column, mask=row[:, None] < rows, other=0.0)

    if bits == 8:
        # In fp16 even beside bfloat16, to which bytes take twice as long to convert.
        kind: tl.constexpr = tl.float32 if queries.dtype == tl.float32 else tl.float16
        queries = (queries.to(tl.float32) * scale).to(kind)
    total, offset = tl.zeros((height,), tl.float32), tl.zeros((height,), tl.float32)
    mixed = tl.zeros((height, dim), tl.float32)
    k_at = keys + head.to(tl.int64) * keys_head + first.to(tl.int64) * loaded * dim
    v_at = values + head.to(tl.int64) * values_head + (first // pieces).to(tl.int64) * stored * dim
    v_at += first % pieces * loaded
    k_scale_at = key_scales + head.to(tl.int64) * key_scales_head + column
    shared_at = value_scales + head.to(tl.int64) * value_scales_head + lane
    k_scale_at += first // pieces * numbers * dim
    shared_at += first * loaded
    k_scale, k_low, shared = _scales(k_scale_at, shared_at, dim, bits)
    for this in range(first, last):
        # Triton pipelines no loads as small as these: so the next tile's are launched before anything else.
        step = tl.minimum(1, last - 1 - this)
        ends = this % pieces == pieces - 1  # its group
        k_scale_at += step * ends * numbers * dim
        shared_at += step * loaded
        next_scale, next_low, next_shared = _scales(k_scale_at, shared_at, dim, bits)
        k = tl.load(k_at + lane[None, :] * dim + column[:, None])  # [dim, loaded]
        v = tl.load(v_at + lane[:, None] + column[None, :] * stored)  # [loaded, dim]
        hidden = (this // pieces >= seen)[:, None]
        if bits == 8:
            turned = queries * k_scale.to(queries.dtype)[None, :]
            scores = tl.dot(turned, _whole(k, queries.dtype), input_precision="ieee")
            scores = tl.where(hidden, float("-inf"), scores)
            highest = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - highest[:, None])
            fading = tl.exp2(top - highest)
            total = total * fading + tl.sum(weights, 1)
            weights = (weights * (shared.to(tl.float32) * GAIN)[None, :]).to(queries.dtype)
            v = _whole(v, queries.dtype)
            mixed = tl.dot(weights, v, mixed * fading[:, None], input_precision="ieee")
        else:  # codes are too large by BIAS
            turned = (queries.to(tl.float32) * k_scale.to(tl.float32)[None, :]).to(queries.dtype)
            k_even, k_odd = _halves(k, queries.dtype)
            shift = queries.to(tl.float32) * k_low.to(tl.float32)[None, :] - BIAS * turned.to(tl.float32)
            shift = tl.sum(shift, 1)[:, None]
            even = (tl.dot(turned, k_even, input_precision="ieee") + shift) * scale
            odd = (tl.dot(turned, k_odd, input_precision="ieee") + shift) * scale
            even, odd = tl.where(hidden, float("-inf"), even), tl.where(hidden, float("-inf"), odd)
            highest = tl.maximum(top, tl.maximum(tl.max(even, 1), tl.max(odd, 1)))
            even, odd = tl.exp2(even - highest[:, None]), tl.exp2(odd - highest[:, None])
            fading = tl.exp2(top - highest)
            total = total * fading + tl.sum(even + odd, 1)
            even_scale, even_low = scale_and_low(shared)
            odd_scale, odd_low = scale_and_low(shared >> 32)
            lowest = tl.sum(even * even_low[None, :] + odd * odd_low[None, :], 1)
            even = (even * even_scale[None, :]).to(queries.dtype)
            odd = (odd * odd_scale[None, :]).to(queries.dtype)
            excess = BIAS * tl.sum(even.to(tl.float32) + odd.to(tl.float32), 1)
            offset = offset * fading + lowest - excess
            v_even, v_odd = _halves(v, queries.dtype)
            mixed = tl.dot(even, v_even, mixed * fading[:, None], input_precision="ieee")
            mixed = tl.dot(odd, v_odd, mixed, input_precision="ieee")
        top = highest
        k_scale, k_low, shared = next_scale, next_low, next_shared
        k_at += loaded * dim
        v_at += loaded + ends * stored * (dim - 1)

    mixed = mixed / GAIN if bits == 8 else mixed
    tl.store(tops + place, top, mask=row < rows)
    tl.store(totals + place, total, mask=row < rows)
    tl.store(sums + place[:, None] * dim + column, mixed + offset[:, None], mask=row[:, None] < rows)
