"""Token trees on a device: walking the paths that are accepted, keeping their keys and values.

Which child of a row passes depends on that row alone: on its distribution, its children's, and the numbers that decide.
So the children of all rows are tested at once, by a program for each row, and a second kernel follows the path from the
root. What the rejection of a child leaves of a distribution is written to a place of that child's.

Trees' shapes are tensors, see ``Family``. So one captured graph serves all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.children import LEAST, PATH

BLOCK = 8192  # tokens of the vocabulary at a time
WARPS = 16
COPIED = 2048  # tokens that a program copies of what is left


class AcceptedPaths(NamedTuple):
    """The accepted paths of B trees."""

    accepted: Tensor  # [B], how many nodes each has
    rows: Tensor  # [B, n+1], int64: row 0 and those of its nodes, the last one repeated
    left: Tensor  # [B, V], weights for the token that follows it


def walk(tokens: Tensor, probs: Tensor, target: Tensor, tests: Tensor | None, links: Tensor) -> AcceptedPaths:
    """The path of each tree that passes: each child in turn is tested against what its rejected siblings left over.

    tokens [B, n] and probs [B, n, V] are those of drafts, target [B, n+1, V] the distributions after every row, all
    fp32 and contiguous. ``tests`` [B, n], in [0, 1), decide on each token; None: all distributions are one-hot.
    ``links``: see ``Family``.
    """
    trees, n, vocabulary = probs.shape
    found = TestResults.empty(probs, tests is None)
    _test_children[(n + 1, trees)](
        tokens,
        probs,
        target,
        target if tests is None else tests,
        links,
        *found,
        n,
        vocabulary,
        block=min(BLOCK, triton.next_power_of_2(vocabulary)),
        greedy=tests is None,
        num_warps=WARPS,
    )
    return _followed(found, target)


def walk_along(
    tokens: Tensor,
    probs: Tensor,
    target: Tensor,
    tests: Tensor | None,
    links: Tensor,
    lines: Tensor,
    forced: Tensor,
    independent: bool,
) -> AcceptedPaths:
    """``walk`` where the outputs are going to be ``forced`` [B, n+1], int64, by depth; negative: whatever passes.

    See ``verify_tree``. ``independent``: siblings have been drawn independently of one another. ``lines``: see
    ``Family``.
    """
    trees, n, vocabulary = probs.shape
    found = TestResults.empty(probs, tests is None)
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    blocks = triton.cdiv(vocabulary, block)
    _test_along[(n + 1, trees)](
        tokens,
        probs,
        target,
        target if tests is None else tests,
        links,
        lines,
        forced,
        *found,
        target if tests is None else torch.empty_like(target),
        n,
        lines.shape[2],
        vocabulary,
        block=block,
        blocks=blocks,
        places=triton.next_power_of_2(blocks),
        reach=triton.next_power_of_2(max(PATH, lines.shape[2])),
        greedy=tests is None,
        independent=independent,
        num_warps=WARPS,
    )
    return _followed(found, target)


class TestResults(NamedTuple):
    """What the tests of all rows' children have found."""

    passed: Tensor  # [B, n+1], the child of each row that passes, or -1
    source: Tensor  # [B, n+1], the last child whose rejection left something, or -1
    rests: Tensor  # [B, n, V], what it left

    @staticmethod
    def empty(probs: Tensor, greedy: bool) -> TestResults:
        trees, n, _ = probs.shape
        passed, source = torch.empty((2, trees, n + 1), dtype=torch.long, device=probs.device)
        return TestResults(passed, source, probs if greedy else torch.empty_like(probs))


def _followed(found: TestResults, target: Tensor) -> AcceptedPaths:
    trees, rows, vocabulary = target.shape
    count, left = found.passed.new_empty(trees), target.new_empty(trees, vocabulary)
    path = torch.empty_like(found.passed)
    grid = triton.cdiv(vocabulary, COPIED), trees
    _follow[grid](*found, target, count, path, left, rows - 1, vocabulary, block=COPIED, num_warps=4)
    return AcceptedPaths(count, path, left)


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


@triton.jit
def _either(first, rows, at, vocabulary, token):
    """The numbers of some tokens in row ``at`` of ``rows``, or in ``first`` if that is negative."""
    one = tl.load(first + token, mask=token < tl.where(at < 0, vocabulary, 0), other=0.0)
    own = rows + at * vocabulary + token
    return one + tl.load(own, mask=token < tl.where(at < 0, 0, vocabulary), other=0.0)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["passed", "source"])
def _test_children(
    tokens,
    probs,
    target,
    tests,
    links,
    passed,
    source,
    rests,
    n,
    vocabulary,
    block: tl.constexpr,
    greedy: tl.constexpr,
):
    row, tree = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    tokens += tree * n
    tests += tree * n
    links += tree * 2 * (n + 1)
    probs += tree * n * vocabulary
    rests += tree * n * vocabulary
    target += (tree * (n + 1) + row) * vocabulary
    lane = tl.arange(0, block)
    node = tl.load(links + row)
    came, rest_of = node * 0 - 1, node * 0 - 1
    p, total = 0.0, 1.0
    if node >= 0:
        p = tl.load(target + tl.load(tokens + node))
    while (node >= 0) & (came < 0):
        q = tl.load(probs + node * vocabulary + tl.load(tokens + node))
        accepted = p > 0 if greedy else tl.load(tests + node) * q < p
        if accepted:
            came = node
        else:
            following = tl.load(links + n + 1 + node + 1)
            wanted = tl.load(tokens + following, mask=following >= 0, other=0)
            if greedy:  # a token that is not the target's takes nothing away
                p = tl.load(target + wanted)
            else:
                above = tl.zeros((block,), tl.float32)
                for first in range(0, vocabulary, block):
                    token = first + lane
                    there = token < vocabulary
                    weight = _either(target, rests, rest_of, vocabulary, token) / total
                    dist = tl.load(probs + node * vocabulary + token, mask=there, other=0.0)
                    more = tl.maximum(weight - dist, 0.0)
                    tl.store(rests + node * vocabulary + token, more, mask=there)
                    above += more
                rest = tl.sum(above, 0)
                tl.debug_barrier()
                if rest > 0:
                    rest_of = node
                    total = rest
                # Else rounding left nothing: it stays as it was.
                p = _either(target, rests, rest_of, vocabulary, wanted) / total
            node = following
    tl.store(passed + tree * (n + 1) + row, came)
    tl.store(source + tree * (n + 1) + row, rest_of)


@triton.jit(do_not_specialize=["n", "deepest"], do_not_specialize_on_alignment=["forced", "passed", "source"])
def _test_along(
    tokens,
    probs,
    target,
    tests,
    links,
    lines,
    forced,
    passed,
    source,
    rests,
    dists,  # for each row, the distribution that its next child is drawn from, if it is not the one on record
    n,
    deepest,
    vocabulary,
    block: tl.constexpr,
    blocks: tl.constexpr,
    places: tl.constexpr,
    reach: tl.constexpr,
    greedy: tl.constexpr,
    independent: tl.constexpr,
):
    row, tree = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    tokens += tree * n
    tests += tree * n
    links += tree * 2 * (n + 1)
    probs += tree * n * vocabulary
    rests += tree * n * vocabulary
    target += (tree * (n + 1) + row) * vocabulary
    dists += (tree * (n + 1) + row) * vocabulary
    lane, place, column = tl.arange(0, block), tl.arange(0, places), tl.arange(0, reach)
    line = tl.load(lines + (tree * (n + 1) + row) * deepest + column, mask=column < deepest, other=n)
    imposed = tl.load(forced + tree * (n + 1) + tl.sum((line < n).to(tl.int32), 0))
    free = imposed < 0
    node = tl.load(links + row)
    came, rest_of = node * 0 - 1, node * 0 - 1
    dist_of = node  # the child whose distribution is on record, -1: it is in ``dists``
    total, mass = 1.0, 1.0
    while (node >= 0) & (came < 0):
        own = tl.where(free, tl.load(tokens + node), imposed)
        p = _either(target, rests, rest_of, vocabulary, own) / total
        q = _either(dists, probs, dist_of, vocabulary, own) / mass
        u = 0.0 if greedy else tl.load(tests + node)
        accepted = tl.where(free, u * q < p, u * p < q)
        following = tl.load(links + n + 1 + node + 1)
        if accepted:
            came = node
        else:
            if greedy:  # all are one-hot: what is on record of the next child is what it was drawn from
                dist_of = following
            else:
                above, sums = tl.zeros((block,), tl.float32), tl.zeros((places,), tl.float32)
                for i in range(blocks):
                    token = i * block + lane
                    there = token < vocabulary
                    weight = _either(target, rests, rest_of, vocabulary, token) / total
                    dist = _either(dists, probs, dist_of, vocabulary, token)
                    more = tl.maximum(weight - dist / mass, 0.0)
                    tl.store(dists + token, dist, mask=there)
                    tl.store(rests + node * vocabulary + token, more, mask=there)
                    above += more
                    over = tl.sum(tl.maximum(dist / mass - weight, 0.0), 0)
                    sums = tl.where(place == i, over, sums)
                tl.debug_barrier()
                rest = tl.sum(above, 0)
                # The rejected token: what is above the chance to be accepted decides on it. Rounding may have left no
                # block beyond that, or no token in it.
                beyond = tl.where(p > q, (u * p - q) / tl.where(p > q, p - q, 1.0), 0.0) * tl.sum(sums, 0)
                until = tl.cumsum(sums, 0)
                at = tl.min(tl.where((until > beyond) & (sums > 0), place, places), 0)
                at = tl.where(at < places, at, tl.argmax(sums, 0))
                token = at * block + lane
                there = token < vocabulary
                weight = _either(target, rests, rest_of, vocabulary, token) / total
                part = tl.maximum(tl.load(dists + token, mask=there, other=0.0) / mass - weight, 0.0)
                before = tl.sum(tl.where(place < at, sums, 0.0), 0)
                met = (before + tl.cumsum(part, 0) > beyond) & (part > 0)
                found = tl.min(tl.where(met, lane, block), 0)
                gone = at * block + tl.where(found < block, found, tl.argmax(part, 0))
                gone = tl.where(tl.max(part, 0) > 0, gone, vocabulary)
                again = free
                if independent:
                    again = node >= 0
                fewer = tl.zeros((block,), tl.float32)
                for i in range(blocks):
                    token = i * block + lane
                    there = (token < vocabulary) & (token != gone)
                    fewer += tl.load(dists + token, mask=there, other=0.0)
                    tl.store(dists + token, 0.0, mask=(token < vocabulary) & (token == gone))
                remaining = tl.sum(fewer, 0)
                again = again | (remaining < LEAST)  # the child that follows then is certain
                dist_of = tl.where(again, following, -1)
                mass = tl.where(again, 1.0, remaining)
                tl.debug_barrier()
                if rest > 0:
                    rest_of = node
                    total = rest
            node = following
    tl.store(passed + tree * (n + 1) + row, came)
    tl.store(source + tree * (n + 1) + row, rest_of)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["passed", "source"])
def _follow(
    passed,
    source,
    rests,
    target,
    count,
    rows,
    left,
    n,
    vocabulary,
    block: tl.constexpr,
):
    tile, tree = tl.program_id(0), tl.program_id(1).to(tl.int64)
    passed += tree * (n + 1)
    rows += tree * (n + 1)
    node = tl.load(passed)
    row = node * 0
    taken = row
    while node >= 0:
        if tile == 0:
            tl.store(rows + taken, row)
        taken += 1
        row = node + 1
        node = tl.load(passed + row)
    if tile == 0:
        tl.store(count + tree, taken)
        for at in range(taken, n + 1):
            tl.store(rows + at, row)
    token = tile * block + tl.arange(0, block)
    there = token < vocabulary
    rest_of = tl.load(source + tree * (n + 1) + row)
    target += (tree * (n + 1) + row) * vocabulary
    weight = _either(target, rests + tree * n * vocabulary, rest_of, vocabulary, token)
    tl.store(left + tree * vocabulary + token, weight, mask=there)


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
