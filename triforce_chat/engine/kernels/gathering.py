"""Copies what a retrieval cache keeps from the full cache, all layers in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_BYTES = 16384  # copied by one program: with four warps, each thread has eight 16-byte loads in flight


def gather_chunks(
    source: Tensor, chosen: Tensor | None, out: Tensor, sinks: int, tail: int, total: int, chunk: int
) -> None:
    """Fill the first slots of out with source's first ``sinks`` slots, the chosen chunks, and ``tail`` .. ``total-1``.

    source [layers, Hkv, S, D] and out [layers, Hkv, capacity, D], the last dimension contiguous; chosen
    [layers, Hkv, chunks] are indices of chunks of ``chunk`` slots, counted from slot ``sinks``; None if there are none.
    The other slots of out stay unchanged.
    """
    layers, heads, _, dim = source.shape
    kept = 0 if chosen is None else chosen.shape[-1] * chunk
    filled = sinks + kept + total - tail
    picks = torch.empty(0, dtype=torch.int64, device=out.device) if chosen is None else chosen.contiguous()
    width = triton.next_power_of_2(dim)
    height = max(1, TILE_BYTES // (width * source.element_size()))
    _gather[(triton.cdiv(filled, height), heads, layers)](
        source,
        picks,
        out,
        sinks,
        kept,
        tail,
        filled,
        *source.stride()[:3],
        *out.stride()[:3],
        chunk=chunk,
        dim=dim,
        width=width,
        height=height,
        num_warps=4,
    )


# These change with every build; specialized variants (multiples of 16) would be compiled in the middle of an answer.
@triton.jit(do_not_specialize=["sinks", "kept", "tail", "filled"])
def _gather(
    source,
    picks,
    out,
    sinks,
    kept,
    tail,
    filled,
    source_layer,
    source_head,
    source_slot,
    out_layer,
    out_head,
    out_slot,
    chunk: tl.constexpr,
    dim: tl.constexpr,
    width: tl.constexpr,
    height: tl.constexpr,
):
    head, layer = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    slot = tl.program_id(0) * height + tl.arange(0, height)
    column = tl.arange(0, width)
    among = slot - sinks  # slot within the chosen chunks
    picked = (among >= 0) & (among < kept)
    first = picks + (layer * tl.num_programs(1) + head) * (kept // chunk)
    pick = tl.load(first + among // chunk, mask=picked, other=0).to(tl.int64)
    place = tl.where(slot < sinks, slot, tail + among - kept)
    place = tl.where(picked, sinks + pick * chunk + among % chunk, place.to(tl.int64))
    valid = (slot[:, None] < filled) & (column[None, :] < dim)
    at = source + layer * source_layer + head * source_head + place[:, None] * source_slot + column[None, :]
    to = out + layer * out_layer + head * out_head + slot.to(tl.int64)[:, None] * out_slot + column[None, :]
    tl.store(to, tl.load(at, mask=valid), mask=valid)
