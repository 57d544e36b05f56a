"""Attention of a few new tokens over a long cache (flash-decoding, split along the cache).

The query heads that share a KV head are rows of one tile, so every key and value is read once. A fixed number of
programs per KV head divide its visible tiles evenly by a length that they read on the device, and a second kernel
merges their partial results. So one captured graph serves every length.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PROCESSORS = 132  # streaming multiprocessors of a Hopper GPU
RESIDENT = 2  # programs that run on one multiprocessor at a time
LEAST = 128  # slots that are worth a program of their own
MOST_SPLITS = 128
GOOD = 0.95  # occupancy that the waves of programs should reach on average
TILE_BYTES = 16384  # of keys, and as many of values: with three stages, two programs fit a multiprocessor
LARGEST_ROWS = {2: 64, 4: 16}  # by bytes per element: without tensor cores, fp32 products fill registers


class Tiling(NamedTuple):
    """Compile-time parameters: rows and slots of a tile, pipeline stages, warps of a program."""

    rows: int
    slots: int
    stages: int = 3
    warps: int = 4


def tiling(rows: int, dim: int, dtype: torch.dtype) -> Tiling:
    """The tiling for ``rows`` queries that share a KV head, limited by shared memory and registers."""
    slots = TILE_BYTES // (dim * dtype.itemsize)
    height = max(16, min(LARGEST_ROWS[dtype.itemsize], triton.next_power_of_2(rows)))
    return Tiling(height, max(16, min(128, slots)))


def splits(heads: int, row_tiles: int, most: int) -> int:
    """The number of programs that divide one KV head's visible slots, at most ``most`` of them.

    The fewest for which all programs fill the GPU in (nearly) complete waves.
    """
    places, programs = PROCESSORS * RESIDENT, heads * row_tiles
    limit = max(1, min(MOST_SPLITS, -(-most // LEAST), 2 * places // programs))

    def filled(count: int) -> float:
        return programs * count / (places * math.ceil(programs * count / places))

    full = (count for count in range(1, limit + 1) if filled(count) >= GOOD)
    return next(full, None) or max(range(1, limit + 1), key=filled)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    scale: float,
    most: int,
    shape: Tiling | None = None,
    parts: int | None = None,
) -> Tensor:
    """Causal attention of n new tokens whose own keys are in slots ``at`` .. ``at+n-1``.

    q [n, Hq, D], keys and values [Hkv, S, D], the last dimension contiguous; ``at`` is a device tensor with one
    integer: row i sees slots 0 .. at+i, and slots after the visible ones are not read. ``most`` is an upper bound of
    at+n and only determines the number of programs. Returns [n, Hq, D]. ``shape`` and ``parts`` override the tiling
    and the number of programs per head. Raises ValueError unless D is a power of two.
    """
    n, query_heads, dim = q.shape
    heads = keys.shape[0]
    if dim & (dim - 1):
        raise ValueError(f"the head dimension {dim} is no power of two")
    group = query_heads // heads
    rows = n * group
    shape = shape or tiling(rows, dim, q.dtype)
    row_tiles = triton.cdiv(rows, shape.rows)
    parts = parts or splits(heads, row_tiles, most)
    sums = torch.empty((parts, heads, rows, dim), dtype=torch.float32, device=q.device)
    tops, totals = torch.empty((2, parts, heads, rows), dtype=torch.float32, device=q.device)
    _attend[(row_tiles, parts, heads)](
        q,
        keys,
        values,
        at,
        sums,
        tops,
        totals,
        scale * math.log2(math.e),
        n,
        *q.stride()[:2],
        *keys.stride()[:2],
        *values.stride()[:2],
        group=group,
        dim=dim,
        height=shape.rows,
        width=shape.slots,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return joined(sums, tops, totals, at, out, shape.slots)


def joined(sums: Tensor, tops: Tensor, totals: Tensor, at: Tensor, out: Tensor, width: int) -> Tensor:
    """Merge the parts of attention by log-sum-exp into ``out`` [n, Hq, D].

    sums [parts, Hkv, rows, D] are weighted values, tops and totals [parts, Hkv, rows] the highest score and the sum of
    weights of each row; ``width`` is the number of slots of a tile.
    """
    parts, heads, _, dim = sums.shape
    n, query_heads = out.shape[:2]
    block = triton.next_power_of_2(parts)
    _join[(n, query_heads)](
        *(sums, tops, totals, at, out, n, heads, parts),
        group=query_heads // heads,
        dim=dim,
        width=width,
        block=block,
        num_warps=min(8, max(1, block * dim // 1024)),
    )
    return out


@triton.jit
def _attend(
    q,
    keys,
    values,
    at,
    sums,
    tops,
    totals,
    scale,  # of the scores, times log2(e)
    n,
    q_token,
    q_head,
    keys_head,
    keys_slot,
    values_head,
    values_slot,
    group: tl.constexpr,
    dim: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
):
    part, parts, head = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    before = tl.load(at).to(tl.int32)
    tiles = tl.cdiv(before + n, width)
    first, last = part * tiles // parts, (part + 1) * tiles // parts
    if first == last:
        return
    rows, column = n * group, tl.arange(0, dim)
    row = tl.program_id(0) * height + tl.arange(0, height)
    token = row // group
    q_at = q + token.to(tl.int64) * q_token + (head * group + row % group) * q_head
    queries = tl.load(q_at[:, None] + column, mask=row[:, None] < rows, other=0.0)

    # Finite, so that a row that sees no slot of this program gets zero weights instead of NaN.
    top = tl.full((height,), -1.0e30, tl.float32)
    total, mixed = tl.zeros((height,), tl.float32), tl.zeros((height, dim), tl.float32)
    lane = tl.arange(0, width)
    k_at = keys + head.to(tl.int64) * keys_head + first.to(tl.int64) * width * keys_slot
    v_at = values + head.to(tl.int64) * values_head + first.to(tl.int64) * width * values_slot
    # One loop that always masks: a separate loop for the last tile would restart the pipeline.
    for tile in range(first, last):
        slot = tile * width + lane
        stored = slot < before + n
        k = tl.load(k_at + lane[None, :] * keys_slot + column[:, None], mask=stored[None, :], other=0.0)
        scores = tl.dot(queries, k, input_precision="ieee") * scale
        scores = tl.where(slot[None, :] <= before + token[:, None], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        fading = tl.exp2(top - highest)
        v = tl.load(v_at + lane[:, None] * values_slot + column[None, :], mask=stored[:, None], other=0.0)
        total = total * fading + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * fading[:, None], input_precision="ieee")
        top = highest
        k_at += width * keys_slot
        v_at += width * values_slot

    place = (part * tl.num_programs(2) + head).to(tl.int64) * rows + row
    tl.store(tops + place, top, mask=row < rows)
    tl.store(totals + place, total, mask=row < rows)
    tl.store(sums + place[:, None] * dim + column, mixed, mask=row[:, None] < rows)


@triton.jit
def _join(
    sums,
    tops,
    totals,
    at,
    out,
    n,
    heads,
    parts,
    group: tl.constexpr,
    dim: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    token, query_head = tl.program_id(0), tl.program_id(1)
    tiles = tl.cdiv(tl.load(at).to(tl.int32) + n, width)
    part = tl.arange(0, block)
    used = (part < parts) & (part * tiles // parts < (part + 1) * tiles // parts)
    row = token * group + query_head % group
    place = (part * heads + query_head // group).to(tl.int64) * (n * group) + row
    top = tl.load(tops + place, mask=used, other=float("-inf"))
    weight = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(weight * tl.load(totals + place, mask=used, other=0.0), 0)
    column = tl.arange(0, dim)
    mixed = tl.load(sums + place[:, None] * dim + column, mask=used[:, None], other=0.0)
    joined = tl.sum(mixed * weight[:, None], 0) / total
    to = out + (token * heads * group + query_head) * dim + column
    tl.store(to, joined.to(out.dtype.element_ty))
