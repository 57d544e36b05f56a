"""Decoder blocks of a small model in two kernels each, for a few tokens of one sequence or of a tree after it.

A step of a small model reads so few bytes that its time depends on the number of its kernels. So programs repeat each
other's work where they would otherwise need one more kernel: each of them sums up the residual stream and normalizes
it, then computes its own part, which is one head's attention to some slots and its share of the output projection, or
some neurons and their share of the down projection. All parts are written side by side, and the programs of the next
kernel sum them up, always in the same order; for more than two tokens a separate kernel does that once.

Everything that a program needs and the kernel before it does not write is loaded before that kernel is over. Tensor
cores take 16 rows, so fewer tokens are repeated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels import chip
from triforce_chat.engine.kernels.decoding import NOTHING, tile_slots
from triforce_chat.engine.kernels.overlap import overlap, wait_for_previous
from triforce_chat.engine.kernels.rows import Norm

ROWS = tl.constexpr(16)  # of a tile
MOST_TOKENS = 16
MOST_CHANNELS = 512  # of models whose step time depends on the number of kernels
MOST_REPEATED = (
    2  # tokens whose stream all programs sum up: that of more takes longer than a kernel that does it once
)
MOST_PARTS = 48  # programs whose sums all programs of the next kernel read
NEURONS = 64  # of a program, unless there would be too many programs
TILE_BYTES = 32_768  # of weights
KEY_BYTES = 16_384  # of keys, and as many of values, that a program reads
DEEPEST = 256  # inputs of a tile at most
SUMS = 16_384  # numbers of parts that a program reads at once
WARPS = 8


class Stream(NamedTuple):
    """The residual stream of n tokens: n rows of ``base``, the first ones or those listed, plus all of ``parts``.

    The parts of one head's attention are averaged, each with the weight 2 ** its number in ``logs``.
    """

    base: Tensor  # [m, C]
    parts: Tensor  # [p, n, C], contiguous; there may be none
    rows: Tensor | None = None  # [n], int64
    logs: Tensor | None = None  # [p, n], fp32
    splits: int = 1  # parts of one head


class TreeRows(NamedTuple):
    """The n tokens of a forward as nodes of a tree, all at the same depth.

    The tree's root went to slot ``place[0] + root`` and has position ``place[1] + root``. All tokens see the slots up
    to it.
    """

    masks: (
        Tensor  # [n, 1], int64: bit j, whether a token sees the j-th slot after the root's, its own included
    )
    root: int
    depth: int  # below the root


class Rotation(NamedTuple):
    """A rotary embedding: ``frequencies`` [D/2], fp32; cos and sin are multiplied by ``factor``."""

    frequencies: Tensor
    factor: float


def splittable(hidden: int, inner: int, heads: int, dim: int, capacity: int, dtype: torch.dtype) -> bool:
    """Whether these kernels take a model of these dimensions over so many slots: it must be small and fill tiles.

    Not in fp16, where the input of the last norm could overflow, nor in fp32 on a chip whose shared memory is too small
    for its tiles.
    """
    return (
        (dtype == torch.bfloat16 or (dtype == torch.float32 and chip.is_roomy()))
        and hidden <= MOST_CHANNELS
        and dim.bit_count() == 1
        and max(heads * splits(capacity, dim, dtype), inner // neurons(inner)) <= MOST_PARTS
        and min(dim // 2, neurons(inner), tile_depth(hidden, max(dim, neurons(inner)), dtype)) >= ROWS.value
    )


def splits(capacity: int, dim: int, dtype: torch.dtype) -> int:
    """How many programs divide the slots of a head: one per tile."""
    tiles: int = triton.cdiv(capacity, tile_slots(KEY_BYTES, dim, dtype))
    return tiles


def tile_depth(hidden: int, width: int, dtype: torch.dtype) -> int:
    """Channels of a tile of ``width`` outputs: a power of two that divides them all."""
    return min(hidden & -hidden, DEEPEST, TILE_BYTES // (width * dtype.itemsize))


def neurons(inner: int) -> int:
    """Neurons of each program."""
    fewest: int = triton.next_power_of_2(triton.cdiv(inner, MOST_PARTS))
    return min(inner & -inner, max(NEURONS, fewest))


def add_attention(
    stream: Stream,
    norm: Norm,
    qkv: Tensor,
    project: Tensor,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    place: Tensor,
    step: int,
    tree: TreeRows | None = None,
) -> Stream:
    """The residual stream after attention: norm, projections, rotary embedding, storing, attention, output projection.

    qkv [(Hq + 2 Hkv) D, C] and ``project`` [C, Hq D] are contiguous; keys and values [Hkv, S, D] in the dtype of the
    model. The first token goes to slot ``place[0] + step`` and has position ``place[1] + step``, which are on the
    device; each sees the slots before the first one, and the tokens up to itself, or what ``tree`` says. No kernel
    just before this one may write ``place`` or those slots.
    """
    (kv_heads, capacity, dim), hidden, stream = keys.shape, stream.base.shape[1], settled(stream)
    heads = project.shape[1] // dim
    parts = splits(capacity, dim, keys.dtype)
    made = followed(stream, heads * parts, parts)
    n = made.parts.shape[1]
    tokens = triton.next_power_of_2(n)
    _attend_head[(heads, parts)](
        *given(stream),
        norm.weight,
        qkv,
        project,
        rotation.frequencies,
        place,
        place if tree is None else tree.masks,
        keys,
        values,
        *given(made),
        n,
        step,
        *((step, 0) if tree is None else (tree.root + tree.depth, tree.root + 1)),
        norm.eps,
        rotation.factor,
        dim**-0.5 * math.log2(math.e),
        *keys.stride()[:2],
        *values.stride()[:2],
        **described(stream, tokens, tile_depth(hidden, dim, qkv.dtype)),
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        tokens=tokens,
        width=tile_slots(KEY_BYTES, dim, keys.dtype),
        branching=tree is not None,
    )
    return made


def add_neurons(stream: Stream, norm: Norm, gate_up: Tensor, down: Tensor) -> Stream:
    """The residual stream after a gated MLP: norm, ``gate_up`` [2 I, C], gates, ``down`` [C, I], both contiguous."""
    (hidden, inner), stream = down.shape, settled(stream)
    width = neurons(inner)
    made = followed(stream, inner // width)
    n = made.parts.shape[1]
    tokens = triton.next_power_of_2(n)
    _add_neurons[(inner // width,)](
        *given(stream),
        norm.weight,
        gate_up,
        down,
        *made[:2],
        n,
        norm.eps,
        **described(stream, tokens, tile_depth(hidden, width, down.dtype)),
        inner=inner,
        tokens=tokens,
        width=width,
    )
    return made


def settled(stream: Stream) -> Stream:
    """The stream with its parts summed up by a kernel, for more tokens than all programs should do that for."""
    count, n, hidden = stream.parts.shape
    if count == 0 or n <= MOST_REPEATED:
        return stream
    made = Stream(stream.base.new_empty(n, hidden), stream.base.new_empty(0, n, hidden))
    _settle[(n,)](
        *given(stream), made.base, n, **described(stream, 1, tile_depth(hidden, 1, made.base.dtype))
    )
    return made


def last_normed(stream: Stream, norm: Norm, count: int) -> Tensor:
    """The last tokens' residual stream after an RMS norm: [count, C]."""
    n, hidden = stream.parts.shape[1:]
    out = stream.base.new_empty(count, hidden)
    depth = tile_depth(hidden, 1, out.dtype)
    _norm_last[(count,)](*given(stream), norm.weight, out, n, norm.eps, **described(stream, 1, depth))
    return out


def given(stream: Stream) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The stream as the kernels take it."""
    base, parts, rows, logs, _ = stream
    return base, parts, base if rows is None else rows, parts if logs is None else logs


def described(stream: Stream, tokens: int, depth: int) -> dict[str, int]:
    """The compile-time arguments that describe a stream, and the launch options, of all these kernels."""
    overlaps, count = overlap(), len(stream.parts)
    spread = triton.next_power_of_2(stream.splits)
    padded = triton.next_power_of_2(count // stream.splits) * spread if count else 0
    return {
        "hidden": stream.base.shape[1],
        "count": count,
        "splits": stream.splits,
        "spread": spread,
        "padded": padded,
        "batch": max(spread, min(padded, SUMS // (tokens * depth))),
        "indexed": stream.rows is not None,
        "depth": depth,
        "overlaps": overlaps,
        "launch_pdl": overlaps,
        "num_warps": WARPS,
    }


def followed(stream: Stream, count: int, splits: int = 1) -> Stream:
    """An empty stream of the same size after ``stream``, with room for the parts of so many programs."""
    n, hidden = stream.parts.shape[1:]
    sums = torch.empty((count, n, hidden), dtype=torch.float32, device=stream.base.device)
    logs = sums.new_empty(count, n) if splits > 1 else None
    return Stream(stream.base.new_empty(n, hidden), sums, None, logs, splits)


@triton.jit
def _summed(
    base,
    parts,
    rows,
    logs,
    token,
    n,
    column,
    hidden: tl.constexpr,
    count: tl.constexpr,
    splits: tl.constexpr,
    spread: tl.constexpr,
    padded: tl.constexpr,
    batch: tl.constexpr,
    indexed: tl.constexpr,
):
    """The stream [tokens, columns], rounded as it is kept, in fp32."""
    tokens: tl.constexpr = token.shape[0]
    there = token < n
    row = token.to(tl.int64)
    if indexed:
        row = tl.load(rows + token, mask=there, other=0)
    x = tl.load(base + row[:, None] * hidden + column[None, :], mask=there[:, None], other=0.0).to(tl.float32)
    for first in tl.static_range(0, padded, batch):
        # Those of a head are followed by as many as a power of two lacks.
        place = first + tl.arange(0, batch)
        part = place // spread * splits + place % spread
        some = ((place % spread < splits) & (part < count))[:, None] & there[None, :]
        at = part[:, None] * n + token[None, :]
        to = parts + at[:, :, None] * hidden + column[None, None, :]
        each = tl.load(to, mask=some[:, :, None], other=0.0).to(tl.float32)
        if splits > 1:
            log = tl.load(logs + at, mask=some, other=NOTHING).reshape(batch // spread, spread, tokens)
            share = tl.exp2(log - tl.max(log, 1)[:, None, :])
            share = share / tl.sum(share, 1)[:, None, :]
            each *= share.reshape(batch, tokens)[:, :, None]
        x += tl.sum(each, 0)
    return x.to(base.dtype.element_ty).to(tl.float32)


@triton.jit
def _repeated(x):
    """Each row as often as a tile has rows for it: [tokens, k] -> [ROWS, k]."""
    tokens: tl.constexpr = x.shape[0]
    width: tl.constexpr = x.shape[1]
    wide = tl.broadcast_to(x.reshape(tokens, 1, width), (tokens, ROWS // tokens, width))
    return wide.reshape(ROWS, width)


@triton.jit
def _product(x, w):
    """x [ROWS, k] times the transposed w [n, k], in fp32: [ROWS, n]."""
    return tl.dot(x, tl.trans(w), input_precision="ieee")


@triton.jit
def _steady(squares, hidden, eps):
    """The factor that normalizes each row, from the sum of its squares: [tokens] -> [ROWS, 1]."""
    return _repeated((1.0 / tl.sqrt_rn(squares / hidden + eps))[:, None])


@triton.jit
def _turned(x, y, position, frequencies, factor, kind: tl.constexpr):
    """The halves x and y [rows, D/2] of heads, rotated to their positions [rows]."""
    half: tl.constexpr = x.shape[1]
    angle = position.to(tl.float32)[:, None] * tl.load(frequencies + tl.arange(0, half))[None, :]
    cos = (tl.cos(angle) * factor).to(kind).to(tl.float32)
    sin = (tl.sin(angle) * factor).to(kind).to(tl.float32)
    x, y = x.to(kind).to(tl.float32), y.to(kind).to(tl.float32)
    return (x * cos - y * sin).to(kind), (y * cos + x * sin).to(kind)


@triton.jit
def _ancestor(mask, bit):
    """Whether those bits of the masks are set: [rows], [k] -> [rows, k]."""
    return ((mask[:, None] >> tl.minimum(tl.maximum(bit, 0), 63).to(tl.int64)[None, :]) & 1) == 1


@triton.jit(
    do_not_specialize=["n", "step", "turned", "first"], do_not_specialize_on_alignment=["rows", "masks"]
)
def _attend_head(
    base,
    parts,
    rows,
    logs,
    norm,
    qkv,
    project,
    frequencies,
    place,
    masks,
    keys,
    values,
    stream,
    sums,
    _,
    own_logs,
    n,
    step,
    turned,  # positions after the first one
    first,  # slots after the first one that a tree's begin at
    eps,
    factor,
    scale,  # of the scores, times log2(e)
    keys_head,
    keys_slot,
    values_head,
    values_slot,
    hidden: tl.constexpr,
    count: tl.constexpr,
    splits: tl.constexpr,
    spread: tl.constexpr,
    padded: tl.constexpr,
    batch: tl.constexpr,
    indexed: tl.constexpr,
    overlaps: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    dim: tl.constexpr,
    tokens: tl.constexpr,
    depth: tl.constexpr,
    width: tl.constexpr,
    branching: tl.constexpr,
):
    head, part = tl.program_id(0), tl.program_id(1)
    kind: tl.constexpr = base.dtype.element_ty
    half: tl.constexpr = dim // 2
    times: tl.constexpr = ROWS // tokens
    group: tl.constexpr = heads // kv_heads
    token, low, across = tl.arange(0, tokens), tl.arange(0, half), tl.arange(0, dim)
    row = tl.arange(0, ROWS)
    own = row // times  # whose token a row is
    q_row, k_row = head * dim + low, (heads + head // group) * dim + low
    v_row = (heads + kv_heads + head // group) * dim + across
    keys += head // group * keys_head
    values += head // group * values_head

    # Heads are kept as two halves, which is how they are rotated. Past the first cache, as another kernel has stored.
    before, position = tl.load(place).to(tl.int32) + step, tl.load(place + 1).to(tl.int32) + turned
    slot = part * width + tl.arange(0, width)
    stored = slot < before
    at = keys + slot[None, :] * keys_slot + low[:, None]
    old_x = tl.load(at, mask=stored[None, :], other=0.0, cache_modifier=".cg")
    old_y = tl.load(at + half, mask=stored[None, :], other=0.0, cache_modifier=".cg")
    at = values + slot[:, None] * values_slot + across[None, :]
    old = tl.load(at, mask=stored[:, None], other=0.0, cache_modifier=".cg")
    project_at = project + head * dim + across[None, :]
    w = tl.load(project_at + tl.arange(0, depth)[:, None] * (heads * dim))
    if branching:
        mask = tl.load(masks + own, mask=own < n, other=0)
        at_first = before - step + first
        turn = position + own * 0
    else:
        turn = position + own

    q_x, q_y = tl.zeros((ROWS, half), tl.float32), tl.zeros((ROWS, half), tl.float32)
    k_x, k_y = tl.zeros((ROWS, half), tl.float32), tl.zeros((ROWS, half), tl.float32)
    v, squares = tl.zeros((ROWS, dim), tl.float32), tl.zeros((tokens,), tl.float32)
    first_one = tl.where(head + part == 0, n, 0)  # tokens whose stream this program writes
    for start in tl.static_range(0, hidden, depth):
        column = start + tl.arange(0, depth)
        q_at = qkv + q_row[:, None] * hidden + column[None, :]
        k_at = qkv + k_row[:, None] * hidden + column[None, :]
        w_qx, w_qy = tl.load(q_at), tl.load(q_at + half * hidden)
        w_kx, w_ky = tl.load(k_at), tl.load(k_at + half * hidden)
        w_v = tl.load(qkv + v_row[:, None] * hidden + column[None, :])
        weight = tl.load(norm + column).to(tl.float32)
        if start == 0:
            wait_for_previous(overlaps)
        given = base, parts, rows, logs, token, n, column
        x = _summed(*given, hidden, count, splits, spread, padded, batch, indexed)
        to = stream + token[:, None] * hidden + column[None, :]
        tl.store(to, x.to(kind), mask=(token < first_one)[:, None])
        squares += tl.sum(x * x, 1)
        normal = _repeated((x * weight[None, :]).to(kind))
        q_x += _product(normal, w_qx)
        q_y += _product(normal, w_qy)
        k_x += _product(normal, w_kx)
        k_y += _product(normal, w_ky)
        v += _product(normal, w_v)
    steady = _steady(squares, hidden, eps)

    q_x, q_y = _turned(q_x * steady, q_y * steady, turn, frequencies, factor, kind)
    k_x, k_y = _turned(k_x * steady, k_y * steady, turn, frequencies, factor, kind)
    v = (v * steady).to(kind)
    mine = (row % times == 0) & (own < n)
    keeps = mine & (own < tl.where(head % group + part == 0, n, 0))
    to = keys + (before + own)[:, None] * keys_slot + low[None, :]
    tl.store(to, k_x, mask=keeps[:, None])
    tl.store(to + half, k_y, mask=keeps[:, None])
    tl.store(values + (before + own)[:, None] * values_slot + across[None, :], v, mask=keeps[:, None])

    # The program of the first slots also attends to the new tokens.
    among = tl.dot(q_x, tl.trans(k_x), input_precision="ieee")
    among = tl.dot(q_y, tl.trans(k_y), among, input_precision="ieee") * scale
    if branching:
        here = (row % times == 0) & (own < tl.where(part == 0, n, 0))
        seen = here[None, :] & _ancestor(mask, before - at_first + own)
    else:
        seen = (row % times == 0)[None, :] & (own[None, :] <= tl.where(part == 0, own, -1)[:, None])
    among = tl.where(seen, among, NOTHING)
    scores = tl.dot(q_x, old_x, input_precision="ieee")
    scores = tl.dot(q_y, old_y, scores, input_precision="ieee") * scale
    if branching:
        old_one = (slot < at_first)[None, :] | _ancestor(mask, slot - at_first)
        scores = tl.where(stored[None, :] & old_one, scores, NOTHING)
    else:
        scores = tl.where(stored[None, :], scores, NOTHING)
    top = tl.maximum(tl.max(among, 1), tl.max(scores, 1))
    share, weights = tl.exp2(among - top[:, None]), tl.exp2(scores - top[:, None])
    total = tl.sum(share, 1) + tl.sum(weights, 1)
    mixed = tl.dot(share.to(kind), v, input_precision="ieee")
    mixed = tl.dot(weights.to(kind), old, mixed, input_precision="ieee")
    mixed = (mixed / total[:, None]).to(kind)
    place_of = (head * tl.num_programs(1) + part) * n + own
    if tl.num_programs(1) > 1:
        tl.store(own_logs + place_of, top + tl.log2(total), mask=mine)
    for start in tl.static_range(0, hidden, depth):
        column = start + tl.arange(0, depth)
        if start:
            w = tl.load(project_at + column[:, None] * (heads * dim))
        tl.store(sums + place_of[:, None] * hidden + column[None, :], _product(mixed, w), mask=mine[:, None])


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["rows"])
def _add_neurons(
    base,
    parts,
    rows,
    logs,
    norm,
    gate_up,
    down,
    stream,
    sums,
    n,
    eps,
    hidden: tl.constexpr,
    count: tl.constexpr,
    splits: tl.constexpr,
    spread: tl.constexpr,
    padded: tl.constexpr,
    batch: tl.constexpr,
    indexed: tl.constexpr,
    overlaps: tl.constexpr,
    inner: tl.constexpr,
    tokens: tl.constexpr,
    depth: tl.constexpr,
    width: tl.constexpr,
):
    part = tl.program_id(0)
    kind: tl.constexpr = base.dtype.element_ty
    times: tl.constexpr = ROWS // tokens
    token, neuron = tl.arange(0, tokens), part * width + tl.arange(0, width)
    down_at = down + neuron[None, :]
    w = tl.load(down_at + tl.arange(0, depth)[:, None] * inner)
    gate, up = tl.zeros((ROWS, width), tl.float32), tl.zeros((ROWS, width), tl.float32)
    squares = tl.zeros((tokens,), tl.float32)
    first_one = tl.where(part == 0, n, 0)  # tokens whose stream this program writes
    for start in tl.static_range(0, hidden, depth):
        column = start + tl.arange(0, depth)
        at = gate_up + neuron[:, None] * hidden + column[None, :]
        w_gate, w_up = tl.load(at), tl.load(at + inner * hidden)
        weight = tl.load(norm + column).to(tl.float32)
        if start == 0:
            wait_for_previous(overlaps)
        given = base, parts, rows, logs, token, n, column
        x = _summed(*given, hidden, count, splits, spread, padded, batch, indexed)
        to = stream + token[:, None] * hidden + column[None, :]
        tl.store(to, x.to(kind), mask=(token < first_one)[:, None])
        squares += tl.sum(x * x, 1)
        normal = _repeated((x * weight[None, :]).to(kind))
        gate += _product(normal, w_gate)
        up += _product(normal, w_up)
    steady = _steady(squares, hidden, eps)
    gate, up = (gate * steady).to(kind).to(tl.float32), (up * steady).to(kind).to(tl.float32)
    active = (gate * tl.sigmoid(gate) * up).to(kind)
    row = tl.arange(0, ROWS)
    own = row // times  # whose token a row is
    mine = (row % times == 0) & (own < n)
    for start in tl.static_range(0, hidden, depth):
        column = start + tl.arange(0, depth)
        if start:
            w = tl.load(down_at + column[:, None] * inner)
        to = sums + (part * n + own)[:, None] * hidden + column[None, :]
        tl.store(to, _product(active, w), mask=mine[:, None])


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["rows"])
def _settle(
    base,
    parts,
    rows,
    logs,
    out,
    n,
    hidden: tl.constexpr,
    count: tl.constexpr,
    splits: tl.constexpr,
    spread: tl.constexpr,
    padded: tl.constexpr,
    batch: tl.constexpr,
    indexed: tl.constexpr,
    overlaps: tl.constexpr,
    depth: tl.constexpr,
):
    wait_for_previous(overlaps)
    token = tl.program_id(0) + tl.arange(0, 1)
    for start in tl.static_range(0, hidden, depth):
        column = start + tl.arange(0, depth)
        given = base, parts, rows, logs, token, n, column
        x = _summed(*given, hidden, count, splits, spread, padded, batch, indexed)
        tl.store(out + token[:, None] * hidden + column[None, :], x.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["rows"])
def _norm_last(
    base,
    parts,
    rows,
    logs,
    norm,
    out,
    n,
    eps,
    hidden: tl.constexpr,
    count: tl.constexpr,
    splits: tl.constexpr,
    spread: tl.constexpr,
    padded: tl.constexpr,
    batch: tl.constexpr,
    indexed: tl.constexpr,
    overlaps: tl.constexpr,
    depth: tl.constexpr,
):
    wait_for_previous(overlaps)
    at = tl.program_id(0)
    token, squares = n - tl.num_programs(0) + at + tl.arange(0, 1), tl.zeros((1,), tl.float32)
    for start in tl.static_range(0, hidden, depth):
        column = start + tl.arange(0, depth)
        given = base, parts, rows, logs, token, n, column
        x = _summed(*given, hidden, count, splits, spread, padded, batch, indexed)
        squares += tl.sum(x * x, 1)
    steady = 1.0 / tl.sqrt_rn(squares / hidden + eps)
    for start in tl.static_range(0, hidden, depth):
        column = start + tl.arange(0, depth)
        given = base, parts, rows, logs, token, n, column
        x = _summed(*given, hidden, count, splits, spread, padded, batch, indexed)
        normal = (x * steady[:, None]).to(base.dtype.element_ty).to(tl.float32)
        scaled = normal * tl.load(norm + column).to(tl.float32)[None, :]
        tl.store(
            out + at * hidden + tl.arange(0, 1)[:, None] + column[None, :], scaled.to(out.dtype.element_ty)
        )
