"""Lookup of the last tokens of a history in everything before them, in two launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # positions searched by one program
SPAN = 32  # bits of a position, below those of its match length


def search(history: Tensor, end: Tensor, orders: int, n: int) -> tuple[Tensor, Tensor]:
    """Find an earlier occurrence of the last of the first ``end`` [] tokens of history [m].

    Returns (the n tokens after the match [n], length of the match []); without a match its length is 0. The longest
    match up to ``orders`` tokens wins, and the latest among equals. A match fewer than n tokens back is continued
    periodically.
    """
    best, tokens = history.new_zeros(()), history.new_empty(n)
    length = torch.empty_like(best)
    _search[(triton.cdiv(len(history), BLOCK),)](history, end, best, orders=orders, block=BLOCK, span=SPAN)
    _continue[(1,)](history, end, best, tokens, length, n, width=triton.next_power_of_2(n), span=SPAN)
    return tokens, length


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


@triton.jit
def _continue(history, end, best, tokens, length, n, width: tl.constexpr, span: tl.constexpr):
    found = tl.load(best)
    matched = found >> span
    place = found - (matched << span)
    period = tl.maximum(tl.load(end) - place, 1)
    steps = tl.arange(0, width)
    following = tl.load(history + place + steps % period, mask=steps < n, other=0)
    tl.store(tokens + steps, following, mask=steps < n)
    tl.store(length, matched)
