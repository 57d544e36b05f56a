"""Lookup of the last tokens of a history in everything before them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # positions searched by one program
SPAN = 32  # bits of a position, below those of its match length


def search(history: Tensor, end: Tensor, orders: int) -> tuple[Tensor, Tensor]:
    """Find an earlier occurrence of the last of the first ``end`` [] tokens of history [m].

    Returns (position after the match, length of the match), both []; (0, 0) without a match. The longest match up to
    ``orders`` tokens wins, and the latest among equals.
    """
    best = history.new_zeros(())
    _search[(triton.cdiv(len(history), BLOCK),)](history, end, best, orders=orders, block=BLOCK, span=SPAN)
    return best & ((1 << SPAN) - 1), best >> SPAN


@triton.jit
def _search(history, end, best, orders: tl.constexpr, block: tl.constexpr, span: tl.constexpr):
    length = tl.load(end)
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)  # position after the match
    same = at < length
    match = tl.zeros((block,), tl.int64)
    for back in tl.static_range(1, orders + 1):
        last = tl.load(history + length - back, mask=length >= back, other=-1)
        same = same & (at >= back)
        same = same & (tl.load(history + at - back, mask=same, other=-2) == last)
        match += same.to(tl.int64)
    tl.atomic_max(best, tl.max(tl.where(match > 0, (match << span) + at, 0), 0))
