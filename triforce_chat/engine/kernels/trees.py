"""Token trees on a device: walking the path that is accepted, keeping its keys and values.

A tree's shape is a tensor: ``links`` [2, n+1] holds the first child of every row and its next sibling, as numbers of
nodes, or -1. Row 0 is the token that the tree follows, row i+1 is node i. So one captured graph serves every shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.children import LEAST

BLOCK = 8192  # tokens of the vocabulary at a time
WARPS = 16


class Walked(NamedTuple):
    """The accepted path of a tree."""

    accepted: Tensor  # [1], how many nodes it has
    rows: Tensor  # [n+1], int64: row 0 and those of its nodes, the last one repeated
    left: Tensor  # [1, V], weights for the token that follows it


def walk(tokens: Tensor, probs: Tensor, target: Tensor, tests: Tensor | None, links: Tensor) -> Walked:
    """The path of a tree that passes: each child in turn is tested against what its rejected siblings left over.

    tokens [n] and probs [n, V] are those of a draft, target [n+1, V] the distributions after every row, all fp32;
    ``tests`` [n], in [0, 1), decide on each token; None: all distributions are one-hot.
    """
    n, vocabulary = probs.shape
    count, rows, left, side = _room_for_path(n, target)
    _walk[(1,)](
        tokens,
        probs,
        target,
        target if tests is None else tests,
        links,
        count,
        rows,
        left,
        side,
        n,
        vocabulary,
        block=min(BLOCK, triton.next_power_of_2(vocabulary)),
        greedy=tests is None,
        num_warps=WARPS,
    )
    return Walked(count, rows, left.index_select(0, side))


def walk_along(
    tokens: Tensor,
    probs: Tensor,
    target: Tensor,
    tests: Tensor | None,
    links: Tensor,
    forced: Tensor,
    independent: bool,
) -> Walked:
    """``walk`` where the output is going to be ``forced`` [n+1], int64, by depth; negative: whatever passes.

    See ``verify_tree``. ``independent``: siblings have been drawn independently of one another.
    """
    n, vocabulary = probs.shape
    count, rows, left, side = _room_for_path(n, target)
    _walk_along[(1,)](
        tokens,
        probs,
        target,
        target if tests is None else tests,
        links,
        forced,
        count,
        rows,
        left,
        torch.empty_like(left[0]),
        side,
        n,
        vocabulary,
        block=min(BLOCK, triton.next_power_of_2(vocabulary)),
        greedy=tests is None,
        independent=independent,
        num_warps=WARPS,
    )
    return Walked(count, rows, left.index_select(0, side))


def _room_for_path(n: int, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where a walk writes how many tokens pass, their rows, what is left of two distributions, and which one counts."""
    count, rows, side = (torch.empty(m, dtype=torch.long, device=target.device) for m in (1, n + 1, 1))
    return count, rows, target.new_empty(2, target.shape[-1]), side


def keep_slots(keys: Tensor, values: Tensor, at: Tensor, path: Tensor) -> None:
    """Move slots ``at + path[i]`` of keys and values [layers, Hkv, S, D] to ``at + i``, for an ascending path [m].

    ``at`` is a device tensor with one integer. The last dimension is contiguous.
    """
    layers, heads, _, dim = keys.shape
    _keep[(heads, layers)](
        keys,
        values,
        at,
        path,
        len(path),
        *keys.stride()[:3],
        *values.stride()[:3],
        dim=dim,
        width=triton.next_power_of_2(dim),
        num_warps=1,
    )


@triton.jit(do_not_specialize=["n"])
def _walk(
    tokens,
    probs,
    target,
    tests,
    links,
    count,
    rows,
    left,  # what remains of a row, and where what remains after the next rejection is written
    side,
    n,
    vocabulary,
    block: tl.constexpr,
    greedy: tl.constexpr,
):
    lane = tl.arange(0, block)
    row = tl.load(links) * 0
    taken = row
    walking = row == 0
    this = row  # which of the two rows of ``left``
    while walking:
        tl.store(rows + taken, row)
        node = tl.load(links + row)
        p, total = 0.0, 1.0
        for first in range(0, vocabulary, block):
            token = first + lane
            there = token < vocabulary
            weight = tl.load(target + row * vocabulary + token, mask=there, other=0.0)
            tl.store(left + this * vocabulary + token, weight, mask=there)
        tl.debug_barrier()
        if node >= 0:
            p = tl.load(target + row * vocabulary + tl.load(tokens + node))
        passed = node * 0 - 1
        while (node >= 0) & (passed < 0):
            own = tl.load(tokens + node)
            q = tl.load(probs + node * vocabulary + own)
            accepted = p > 0 if greedy else tl.load(tests + node) * q < p
            if accepted:
                passed = node
            else:
                following = tl.load(links + n + 1 + node + 1)
                wanted = tl.load(tokens + following, mask=following >= 0, other=-1)
                rest, value, same = 0.0, 0.0, 0.0
                for first in range(0, vocabulary, block):
                    token = first + lane
                    there = token < vocabulary
                    weight = tl.load(left + this * vocabulary + token, mask=there, other=0.0) / total
                    law = tl.load(probs + node * vocabulary + token, mask=there, other=0.0)
                    above = tl.maximum(weight - law, 0.0)
                    tl.store(left + (1 - this) * vocabulary + token, above, mask=there)
                    rest += tl.sum(above, 0)
                    value += tl.sum(tl.where(token == wanted, above, 0.0), 0)
                    same += tl.sum(tl.where(token == wanted, weight, 0.0), 0)
                tl.debug_barrier()
                if rest > 0:
                    this = 1 - this
                    total = rest
                    p = value / rest
                else:  # rounding left nothing: it stays as it was
                    p = same
                node = following
        walking = passed >= 0
        row = tl.where(walking, passed + 1, row)
        taken += walking.to(tl.int64)
    tl.store(count, taken)
    tl.store(side, this)
    for at in range(taken + 1, n + 1):
        tl.store(rows + at, row)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["forced"])
def _walk_along(
    tokens,
    probs,
    target,
    tests,
    links,
    forced,
    count,
    rows,
    left,  # as of ``_walk``
    law,  # that the next child is drawn from
    side,
    n,
    vocabulary,
    block: tl.constexpr,
    greedy: tl.constexpr,
    independent: tl.constexpr,
):
    lane = tl.arange(0, block)
    row = tl.load(links) * 0
    taken = row
    walking = row == 0
    this = row
    while walking:
        tl.store(rows + taken, row)
        node = tl.load(links + row)
        wanted = tl.load(forced + taken)
        free = wanted < 0
        total, mass = 1.0, 1.0
        first_child = tl.maximum(node, 0)
        for first in range(0, vocabulary, block):
            token = first + lane
            there = token < vocabulary
            weight = tl.load(target + row * vocabulary + token, mask=there, other=0.0)
            tl.store(left + this * vocabulary + token, weight, mask=there)
            share = tl.load(probs + first_child * vocabulary + token, mask=there, other=0.0)
            tl.store(law + token, share, mask=there)
        tl.debug_barrier()
        passed = node * 0 - 1
        while (node >= 0) & (passed < 0):
            own = tl.where(free, tl.load(tokens + node), wanted)
            p = tl.load(left + this * vocabulary + own) / total
            q = tl.load(law + own) / mass
            u = 0.0 if greedy else tl.load(tests + node)
            accepted = tl.where(free, u * q < p, u * p < q)
            if accepted:
                passed = node
            else:
                following = tl.load(links + n + 1 + node + 1)
                rest, over = 0.0, 0.0
                for first in range(0, vocabulary, block):
                    token = first + lane
                    there = token < vocabulary
                    weight = tl.load(left + this * vocabulary + token, mask=there, other=0.0) / total
                    share = tl.load(law + token, mask=there, other=0.0) / mass
                    above = tl.maximum(weight - share, 0.0)
                    tl.store(left + (1 - this) * vocabulary + token, above, mask=there)
                    rest += tl.sum(above, 0)
                    over += tl.sum(tl.maximum(share - weight, 0.0), 0)
                # The rejected token: what is above the chance to be accepted decides on it.
                beyond = tl.where(p > q, (u * p - q) / tl.where(p > q, p - q, 1.0), 0.0) * over
                before = 0.0
                gone = node * 0 + vocabulary
                for first in range(0, vocabulary, block):
                    token = first + lane
                    there = token < vocabulary
                    weight = tl.load(left + this * vocabulary + token, mask=there, other=0.0) / total
                    share = tl.load(law + token, mask=there, other=0.0) / mass
                    part = tl.maximum(share - weight, 0.0)
                    met = (before + tl.cumsum(part, 0) > beyond) & (part > 0)
                    gone = tl.minimum(gone, tl.min(tl.where(met, token, vocabulary), 0).to(tl.int64))
                    before += tl.sum(part, 0)
                tl.debug_barrier()
                again = free
                if independent:
                    again = node >= 0
                spare = probs + tl.maximum(following, 0) * vocabulary
                remaining = 0.0
                for first in range(0, vocabulary, block):
                    token = first + lane
                    there = token < vocabulary
                    fewer = tl.where(token == gone, 0.0, tl.load(law + token, mask=there, other=0.0))
                    share = tl.where(again, tl.load(spare + token, mask=there, other=0.0), fewer)
                    tl.store(law + token, share, mask=there)
                    remaining += tl.sum(share, 0)
                mass = tl.where(remaining < LEAST, 1.0, remaining)
                if remaining < LEAST:  # the child that follows then is certain
                    for first in range(0, vocabulary, block):
                        token = first + lane
                        there = token < vocabulary
                        tl.store(law + token, tl.load(spare + token, mask=there, other=0.0), mask=there)
                tl.debug_barrier()
                if rest > 0:
                    this = 1 - this
                    total = rest
                node = following
        walking = passed >= 0
        row = tl.where(walking, passed + 1, row)
        taken += walking.to(tl.int64)
    tl.store(count, taken)
    tl.store(side, this)
    for at in range(taken + 1, n + 1):
        tl.store(rows + at, row)


@triton.jit(do_not_specialize=["m"], do_not_specialize_on_alignment=["path"])
def _keep(
    keys,
    values,
    at,
    path,
    m,
    keys_layer,
    keys_head,
    keys_slot,
    values_layer,
    values_head,
    values_slot,
    dim: tl.constexpr,
    width: tl.constexpr,
):
    head, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, width)
    start = tl.load(at).to(tl.int64)
    k_at, v_at = (
        keys + layer * keys_layer + head * keys_head,
        values + layer * values_layer + head * values_head,
    )
    # One after the other: a slot is overwritten after it was read, as the path ascends.
    for i in range(m):
        slot = start + tl.load(path + i)
        k = tl.load(k_at + slot * keys_slot + column, mask=column < dim)
        v = tl.load(v_at + slot * values_slot + column, mask=column < dim)
        tl.store(k_at + (start + i) * keys_slot + column, k, mask=column < dim)
        tl.store(v_at + (start + i) * values_slot + column, v, mask=column < dim)
