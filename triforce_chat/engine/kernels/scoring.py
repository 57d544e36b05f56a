"""Logits of the mean keys of chunks, by which a retrieval cache selects, in one pass over the keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.decoding import Tiling, splits, tiling

LARGEST_CHUNK = 64
STAGES = 4


def chunk_scores(
    q: Tensor, keys: Tensor, chunk: int, scale: float | None = None, shape: Tiling | None = None
) -> Tensor:
    """The mean of ``scale`` * q @ k over the keys of each chunk: fp32 [Hkv, G*m, C].

    q [Hq, m, D], keys [Hkv, C*chunk, D], the last dimension contiguous; ``scale`` is D**-0.5 unless given. The rows of
    a KV head are those of its G query heads, one head after the other. The mean of the products equals the product
    with the mean key, so no mean keys are stored. Raises ValueError unless ``chunk`` is a power of two up to 64 that
    divides the number of slots. ``shape`` overrides the tiling.
    """
    query_heads, m, dim = q.shape
    heads, slots = keys.shape[:2]
    if chunk & (chunk - 1) or not 0 < chunk <= LARGEST_CHUNK or slots % chunk:
        raise ValueError(f"{slots} slots do not make chunks of {chunk}: a power of two up to {LARGEST_CHUNK}")
    rows = m * query_heads // heads
    shape = shape or tiling(rows, dim, q.dtype)._replace(stages=STAGES)
    width = max(shape.slots, chunk)
    row_tiles = triton.cdiv(rows, shape.rows)
    out = torch.empty((heads, rows, slots // chunk), dtype=torch.float32, device=q.device)
    _score[(row_tiles, splits(heads, row_tiles, slots), heads)](
        q,
        keys,
        out,
        (dim**-0.5 if scale is None else scale) / chunk,
        rows,
        m,
        slots,
        *q.stride()[:2],
        *keys.stride()[:2],
        chunk=chunk,
        dim=dim,
        height=shape.rows,
        width=width,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )
    return out


@triton.jit
def _score(
    q,
    keys,
    out,
    scale,
    rows,
    m,
    slots,
    q_head,
    q_token,
    keys_head,
    keys_slot,
    chunk: tl.constexpr,
    dim: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
):
    part, parts, head = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    tiles = tl.cdiv(slots, width)
    first, last = part * tiles // parts, (part + 1) * tiles // parts
    row = tl.program_id(0) * height + tl.arange(0, height)
    column, lane = tl.arange(0, dim), tl.arange(0, width)
    group = rows // m
    q_at = q + (head * group + row // m).to(tl.int64) * q_head + (row % m) * q_token
    queries = tl.load(q_at[:, None] + column, mask=row[:, None] < rows, other=0.0)
    k_at = keys + head.to(tl.int64) * keys_head + first.to(tl.int64) * width * keys_slot
    chunks = slots // chunk
    to = out + (head * rows + row).to(tl.int64)[:, None] * chunks
    place = tl.arange(0, width // chunk)
    for tile in range(first, last):
        stored = tile * width + lane < slots
        k = tl.load(k_at + lane[None, :] * keys_slot + column[:, None], mask=stored[None, :], other=0.0)
        scores = tl.dot(queries, k.to(queries.dtype), input_precision="ieee")
        if chunk > 1:
            scores = tl.sum(tl.reshape(scores, (height, width // chunk, chunk)), 2)
        at = tile * (width // chunk) + place
        tl.store(to + at[None, :], scores * scale, mask=(row[:, None] < rows) & (at[None, :] < chunks))
        k_at += width * keys_slot
