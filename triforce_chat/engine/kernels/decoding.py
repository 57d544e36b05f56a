"""Attention of a few new tokens over a long cache (flash-decoding, split along the cache).

The query heads that share a KV head are rows of one tile, so every key and value is read once. A fixed number of
programs per KV head divide its visible tiles evenly by a length that they read on the device, and a second kernel
merges their partial results. So one captured graph serves every length.

The tokens may be of several sequences, each with keys of its own; what comes before all of them, the same documents,
is then read once for the rows of all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels import chip

PROCESSORS = 132  # streaming multiprocessors of a Hopper GPU
RESIDENT = 2  # programs of so many warps that run on one multiprocessor at a time
WARPS = 4
LEAST = 128  # slots that are worth a program of their own
MOST_SPLITS = 128
GOOD = 0.95  # occupancy that the waves of programs should reach on average
STAGES = 3
MOST_SLOTS = 128  # of a tile
NARROW_DIM = 128  # numbers of a row of keys in fewer bits than the queries' that each warp of a program takes
GAIN = tl.constexpr(32768.0)  # of weights in fp16, so that small ones keep their bits
SHARE = tl.constexpr(0.0625)  # of queries in fp16: those of bfloat16 may be larger than what fp16 holds
LARGEST_ROWS = {2: 64, 4: 16}  # by bytes per element: without tensor cores, fp32 products fill registers
WEIGHED = 256  # chunks that a program adds up
WEIGHED_ROWS = 16  # of them at a time: the least that a tile has
NOTHING = tl.constexpr(
    -1.0e30
)  # the highest score of a row that sees no slot: finite, as its weights would be NaN


class Tiling(NamedTuple):
    """Compile-time parameters: rows and slots of a tile, pipeline stages, warps of a program."""

    rows: int
    slots: int
    stages: int = STAGES
    warps: int = WARPS


def tiling(
    rows: int, dim: int, dtype: torch.dtype, listed: bool = False, kept: torch.dtype | None = None
) -> Tiling:
    """The tiling for ``rows`` queries that share a KV head, limited by shared memory and registers.

    ``kept``: the dtype of keys and values, if not the queries'.
    """
    height = max(16, min(LARGEST_ROWS[dtype.itemsize], triton.next_power_of_2(rows)))
    shape = Tiling(height, tile_slots(tile_bytes(), dim, dtype))
    if kept is not None and kept.itemsize == 1 and height == 16 and dtype.itemsize == 2:
        # One warp waits for no other, and several would each compute what all of a tile's rows need.
        shape = shape._replace(slots=max(16, shape.slots // 2), warps=narrow_warps(dim))
    # Half of the stages load the list: so as many loads of keys and values are in flight as without one.
    return shape._replace(stages=2 * shape.stages - 1) if listed else shape


def tile_bytes() -> int:
    """Bytes of the keys of a tile, and as many of values: with all stages, two programs fit a multiprocessor."""
    return 1 << (chip.share() // (2 * STAGES)).bit_length() - 1


def tile_slots(size: int, dim: int, dtype: torch.dtype) -> int:
    """Slots of a tile with ``size`` bytes of keys."""
    return max(16, min(MOST_SLOTS, size // (dim * dtype.itemsize)))


def narrow_warps(dim: int) -> int:
    """Warps of a program over keys and values in 8 bits for the rows of the smallest tile."""
    return -(-dim // NARROW_DIM)


def splits(heads: int, row_tiles: int, most: int, warps: int = WARPS) -> int:
    """The number of programs of so many warps that divide one KV head's visible slots, at most ``most`` of them.

    The fewest for which all programs fill the GPU in (nearly) complete waves.
    """
    places, programs = PROCESSORS * RESIDENT * max(1, WARPS // warps), heads * row_tiles
    limit = max(1, min(MOST_SPLITS, -(-most // LEAST), 2 * places // programs))

    def filled(count: int) -> float:
        return programs * count / (places * math.ceil(programs * count / places))

    full = (count for count in range(1, limit + 1) if filled(count) >= GOOD)
    return next(full, None) or max(range(1, limit + 1), key=filled)


class Sequences(NamedTuple):
    """The sequences of a forward's tokens, on the device: sequence i has tokens ``starts[i]`` .. ``starts[i+1]-1``."""

    starts: Tensor  # [B+1]
    at: Tensor  # [B], the slot of each sequence's first token
    places: Tensor  # [B], where each sequence lies among those that keys and values are kept of
    most: int  # tokens of a sequence


class Prefix(NamedTuple):
    """Keys and values that come before those of all sequences."""

    keys: Tensor  # [Hkv, S, D]
    values: Tensor  # [Hkv, S, D]
    length: Tensor  # [1], on the device; at least 1
    rows: Tensor  # [2], on the device: 0 and the number of all sequences' tokens


class Weighing(NamedTuple):
    """What the tokens of a forward pay to each chunk of slots is added to what earlier ones paid."""

    total: Tensor  # [Hkv, C], fp32, contiguous: chunk c begins at slot c * ``chunk``
    chunk: int  # slots; see ``weighable``
    half_life: float  # tokens after which what was paid counts half
    counted: Tensor  # [1], on the device: only the first so many tokens count


class Ancestors(NamedTuple):
    """What the tokens of a forward see that are the nodes of a tree, as bits of the latest slots of its sequence."""

    # [n, words], int64, contiguous: bit j of token i, the lowest of a word first, whether it sees slot ``origin`` + j.
    masks: Tensor
    origin: Tensor  # [B], on the device; all tokens of a sequence see all slots before that


class Seen(NamedTuple):
    """The weights of a forward's attention, summed by chunk, before its rows are normalized; see ``Weighing``."""

    sums: Tensor  # [Hkv, C, rows], fp16, relative to the row's highest score so far
    tops: Tensor  # [Hkv, tiles, rows], that score after each tile
    norms: Tensor  # [Hkv, rows], the logarithm to base 2 of the sum of all weights

    @staticmethod
    def empty(weighing: Weighing, rows: int, shape: Tiling) -> Seen:
        """Room for whole tiles, which are written without masks and read in vectors."""
        heads, chunks = weighing.total.shape
        device, width = weighing.total.device, shape.slots
        tiles, rows = triton.cdiv(chunks * weighing.chunk, width), triton.cdiv(rows, shape.rows) * shape.rows
        sums = torch.empty((heads, tiles * width // weighing.chunk, rows), dtype=torch.float16, device=device)
        tops = torch.empty((heads, tiles, rows), dtype=torch.float32, device=device)
        return Seen(sums, tops, tops.new_empty(heads, rows))


class Partial(NamedTuple):
    """Attention over parts of the slots, one part after the other, to be merged by ``joined``."""

    sums: Tensor  # [parts, Hkv, rows, D], weighted values, fp32
    tops: Tensor  # [parts, Hkv, rows], the highest score of each row
    totals: Tensor  # [parts, Hkv, rows], the sum of its weights

    @staticmethod
    def empty(parts: int, heads: int, rows: int, dim: int, device: torch.device) -> Partial:
        sums = torch.empty((parts, heads, rows, dim), dtype=torch.float32, device=device)
        tops, totals = torch.empty((2, parts, heads, rows), dtype=torch.float32, device=device)
        return Partial(sums, tops, totals)

    def parts(self, first: int, last: int) -> Partial:
        """The parts from ``first`` to before ``last``."""
        return Partial(*(each[first:last] for each in self))


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    scale: float,
    most: int,
    shape: Tiling | None = None,
    parts: int | None = None,
    listed: Tensor | None = None,
    weighing: Weighing | None = None,
    tree: Ancestors | None = None,
) -> Tensor:
    """Causal attention of n new tokens whose own keys are in slots ``at`` .. ``at+n-1``.

    q [n, Hq, D], keys and values [Hkv, S, D] in q's dtype or in fp8, the last dimension contiguous; ``at`` is a device
    tensor with one integer: row i sees slots 0 .. at+i, and slots after the visible ones are not read. ``most`` is an
    upper bound of at+n and only determines the number of programs. Returns [n, Hq, D]. ``shape`` and ``parts`` override
    the tiling and the number of programs per head. ``listed`` [Hkv, m] int32, the last dimension contiguous: slot i of
    a head is the ``listed[i]``-th of its keys and values; None: the i-th. ``weighing``: adds up what is paid to each
    chunk of all S slots. ``tree``: what each row sees in place of all earlier tokens. Raises ValueError unless D is a
    power of two.
    """
    heads, rows = keys.shape[0], checked_rows(q, keys)
    shape = shape or tiling(rows, q.shape[2], q.dtype, listed is not None, keys.dtype)
    parts = parts or splits(heads, triton.cdiv(rows, shape.rows), most, shape.warps)
    partial = Partial.empty(parts, heads, rows, q.shape[2], q.device)
    seen = None if weighing is None else Seen.empty(weighing, rows, shape)
    attend(partial, q, keys, values, at, scale, shape, listed=listed, seen=seen, tree=tree)
    out = joined(partial, q, seen)
    if weighing is not None and seen is not None:
        weigh(weighing, seen, at, len(q), rows // len(q), shape.slots)
    return out


def attend_together(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sequences: Sequences,
    scale: float,
    most: int,
    prefix: Prefix | None = None,
    tree: Ancestors | None = None,
) -> Tensor:
    """``decode_attention`` of the tokens of several sequences, whose keys begin with a common prefix if there is one.

    q [n, Hq, D]; keys and values [P, Hkv, S, D] are those after the prefix, in P places. ``most`` is an upper bound of
    any sequence's slots there. Rows that no sequence has come out as anything. ``tree``: of all sequences, some of
    which may be chains. Returns [n, Hq, D].
    """
    heads, dim = keys.shape[1], q.shape[2]
    rows, count = checked_rows(q, keys[0]), len(sequences.at)
    own = tiling(rows // len(q) * sequences.most, dim, q.dtype, kept=keys.dtype)
    after = splits(heads * count, triton.cdiv(rows // len(q) * sequences.most, own.rows), most, own.warps)
    if prefix is None:
        partial = Partial.empty(after, heads, rows, dim, q.device)
        attend(partial, q, keys, values, sequences.at, scale, own, sequences, tree=tree)
        return joined(partial, q)
    shape = tiling(rows, dim, q.dtype, kept=keys.dtype)
    # Mostly the tokens fill one tile of rows, however many there is room for: programs of other tiles return at once.
    before = splits(heads, 1, prefix.keys.shape[1], shape.warps)
    as_one = Sequences(prefix.rows, prefix.length, prefix.rows[:1], len(q))
    partial = Partial.empty(before + after, heads, rows, dim, q.device)
    early = partial.parts(0, before)
    attend(early, q, prefix.keys, prefix.values, prefix.length, scale, shape, as_one, causal=False)
    later = partial.parts(before, before + after)
    attend(later, q, keys, values, sequences.at, scale, own, sequences, tree=tree)
    return joined(partial, q)


def checked_rows(q: Tensor, keys: Tensor) -> int:
    """Rows of q [n, Hq, D] for each KV head of keys [Hkv, S, D]. Raises ValueError unless D is a power of two."""
    n, query_heads, dim = q.shape
    if dim & (dim - 1):
        raise ValueError(f"the head dimension {dim} is no power of two")
    return n * (query_heads // keys.shape[0])


def attend(
    out: Partial,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    scale: float,
    shape: Tiling,
    sequences: Sequences | None = None,
    causal: bool = True,
    listed: Tensor | None = None,
    seen: Seen | None = None,
    tree: Ancestors | None = None,
) -> None:
    """Partial attention of q [n, Hq, D]; see ``decode_attention`` and, with ``sequences``, ``attend_together``.

    Not ``causal``: every row sees slots 0 .. at-1.
    """
    n, query_heads, dim = q.shape
    parts, heads = out.tops.shape[:2]
    group, several = query_heads // heads, sequences is not None
    starts, places, count, tokens = at, at, 1, n
    words = 1 if tree is None else tree.masks.shape[1]
    if sequences is not None:
        starts, places, count, tokens = sequences.starts, sequences.places, len(at), sequences.most
    _attend[(triton.cdiv(tokens * group, shape.rows), parts, heads * count)](
        q,
        keys,
        values,
        at,
        starts,
        places,
        at if listed is None else listed,
        *((at, at) if tree is None else tree),
        *(out[:2] if seen is None else seen[:2]),
        *out,
        scale * math.log2(math.e),
        n,
        heads,
        *q.stride()[:2],
        *keys.stride()[-3:-1],
        *values.stride()[-3:-1],
        keys.stride(0),
        values.stride(0),
        0 if listed is None else listed.stride(0),
        words,
        *((0, 0) if seen is None else (seen.sums.stride(0), seen.tops.stride(0))),
        lanes=0 if seen is None else seen.tops.shape[2],
        group=group,
        dim=dim,
        height=shape.rows,
        width=shape.slots,
        several=several,
        causal=causal,
        branching=tree is not None,
        wide=words > 1,
        by_list=listed is not None,
        pieces=0 if seen is None else seen.sums.shape[1] // seen.tops.shape[1],
        num_stages=shape.stages,
        num_warps=shape.warps,
    )


def joined(partial: Partial, q: Tensor, seen: Seen | None = None) -> Tensor:
    """Merge the parts of attention by log-sum-exp: what q [n, Hq, D] gets, [n, Hq, D]; fills the norms of ``seen``."""
    parts, heads, _, dim = partial.sums.shape
    n, query_heads = q.shape[:2]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(parts)
    _join[(n, query_heads)](
        *partial,
        out,
        out if seen is None else seen.norms,
        n,
        heads,
        parts,
        lanes=0 if seen is None else seen.norms.shape[1],
        group=query_heads // heads,
        dim=dim,
        block=block,
        num_warps=min(8, max(1, block * dim // 1024)),
    )
    return out


def weigh(to: Weighing, seen: Seen, at: Tensor, n: int, group: int, width: int) -> None:
    """Add what was seen to the chunks' totals, after those have faded by what the tokens are in half-lives."""
    heads, chunks = to.total.shape
    pieces = width // to.chunk
    block = max(1, WEIGHED // pieces)
    _weigh[(triton.cdiv(chunks, block * pieces), heads)](
        *seen,
        to.total,
        at,
        to.counted,
        float(to.half_life),
        n,
        chunks,
        *(part.stride(0) for part in seen[:2]),
        lanes=seen.norms.shape[1],
        group=group,
        width=width,
        pieces=pieces,
        block=block,
        height=WEIGHED_ROWS,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["words"], do_not_specialize_on_alignment=["masks", "origin"])
def _attend(
    q,
    keys,
    values,
    at,
    starts,
    places,
    listed,
    masks,
    origin,
    seen_sums,
    seen_tops,
    sums,
    tops,
    totals,
    scale,  # of the scores, times log2(e)
    n,
    heads,
    q_token,
    q_head,
    keys_head,
    keys_slot,
    values_head,
    values_slot,
    keys_place,
    values_place,
    listed_head,
    words,  # in which a row's mask is written
    seen_sums_head,
    seen_tops_head,
    lanes: tl.constexpr,  # rows of what is seen, whole tiles of them
    group: tl.constexpr,
    dim: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    several: tl.constexpr,
    causal: tl.constexpr,
    branching: tl.constexpr,
    wide: tl.constexpr,  # a mask is several words
    by_list: tl.constexpr,
    pieces: tl.constexpr,  # chunks of a tile whose weights are summed; 0: of no interest
):
    part, parts, head = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    row = tl.program_id(0) * height + tl.arange(0, height)
    if several:
        sequence = head // heads
        head = head % heads
        start = tl.load(starts + sequence).to(tl.int32)
        own = tl.load(starts + sequence + 1).to(tl.int32) - start
        before = tl.load(at + sequence).to(tl.int32)
        which = tl.load(places + sequence).to(tl.int64)
        keys += which * keys_place
        values += which * values_place
        q += start.to(tl.int64) * q_token
        if tl.program_id(0) * height >= own * group:
            return
    else:
        sequence = 0
        start = 0
        own = n
        before = tl.load(at).to(tl.int32)
    rows = own * group
    end = before + own if causal else before
    tiles = tl.cdiv(end, width)
    first, last = part * tiles // parts, (part + 1) * tiles // parts
    place = (part * heads + head).to(tl.int64) * n * group + start * group + row
    top = tl.full((height,), NOTHING, tl.float32)
    if first == last:
        tl.store(tops + place, top, mask=row < rows)
        return
    column = tl.arange(0, dim)
    token = row // group
    q_at = q + token.to(tl.int64) * q_token + (head * group + row % group) * q_head
    queries = tl.load(q_at[:, None] + column, mask=row[:, None] < rows, other=0.0)

    # From 8 bits to fp16 is a short way, even beside bfloat16. The product is rounded to the queries' dtype first,
    # which changes nothing: otherwise LLVM makes it one in fp16, and that overflows.
    narrow: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth == 8 and queries.dtype != tl.float32
    if narrow:
        queries = (queries.to(tl.float32) * SHARE).to(queries.dtype).to(tl.float16)
        scale = scale / SHARE
    total, mixed = tl.zeros((height,), tl.float32), tl.zeros((height, dim), tl.float32)
    lane = tl.arange(0, width)
    k_at, v_at = keys + head.to(tl.int64) * keys_head, values + head.to(tl.int64) * values_head
    if branching:
        if wide:
            masks += (start + token) * words
        else:
            mask = tl.load(masks + start + token, mask=row < rows, other=0)
        base = tl.load(origin + sequence).to(tl.int32)
    if by_list:
        list_at = listed + head.to(tl.int64) * listed_head
    else:
        k_at += first.to(tl.int64) * width * keys_slot
        v_at += first.to(tl.int64) * width * values_slot
    # One loop that always masks: a separate loop for the last tile would restart the pipeline.
    for tile in range(first, last):
        slot = tile * width + lane
        stored = slot < end
        there = tl.load(list_at + slot, mask=stored, other=0) if by_list else lane
        k = tl.load(k_at + there[None, :] * keys_slot + column[:, None], mask=stored[None, :], other=0.0)
        k = k.to(queries.dtype)
        scores = tl.dot(queries, k, input_precision="ieee") * scale
        if branching:
            if wide:
                visible = _seen(masks, row, rows, tile * width - base, width, words)
            else:
                bit = slot - base
                seen = (mask[:, None] >> tl.minimum(tl.maximum(bit, 0), 63).to(tl.int64)[None, :]) & 1
                visible = (bit < 0)[None, :] | ((bit < 64)[None, :] & (seen == 1))
            scores = tl.where(stored[None, :] & visible, scores, float("-inf"))
        elif causal:
            scores = tl.where(slot[None, :] <= before + token[:, None], scores, float("-inf"))
        else:
            scores = tl.where(stored[None, :], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        fading = tl.exp2(top - highest)
        if pieces:
            summed = tl.sum(tl.reshape(weights, (height, pieces, width // pieces)), 2)
            piece = tile * pieces + tl.arange(0, pieces)
            to = seen_sums + head.to(tl.int64) * seen_sums_head + piece[None, :] * lanes + row[:, None]
            tl.store(to, summed.to(tl.float16))
            tl.store(seen_tops + head.to(tl.int64) * seen_tops_head + tile * lanes + row, highest)
        v = tl.load(v_at + there[:, None] * values_slot + column[None, :], mask=stored[:, None], other=0.0)
        v = v.to(queries.dtype)
        total = total * fading + tl.sum(weights, 1)
        if narrow:
            weights *= GAIN
        mixed = tl.dot(weights.to(v.dtype), v, mixed * fading[:, None], input_precision="ieee")
        top = highest
        if not by_list:
            k_at += width * keys_slot
            v_at += width * values_slot

    if narrow:
        mixed /= GAIN
    tl.store(tops + place, top, mask=row < rows)
    tl.store(totals + place, total, mask=row < rows)
    tl.store(sums + place[:, None] * dim + column, mixed, mask=row[:, None] < rows)


@triton.jit
def _seen(masks, row, rows, first, width: tl.constexpr, words):
    """Which bits from ``first`` on are set in the words at ``masks`` [height], all before them are: [height, width].

    A tile overlaps with two or three words, which are shifted to begin where it begins.
    """
    lane = tl.arange(0, width)
    word, shift = first >> 6, (first & 63).to(tl.uint64)
    after = _word(masks, row, rows, word + 1, words)
    begun = _begun(_word(masks, row, rows, word, words), after, shift)[:, None]
    if width > 64:
        rest = _begun(after, _word(masks, row, rows, word + 2, words), shift)[:, None]
        begun = tl.where((lane < 64)[None, :], begun, rest)
    return ((begun >> (lane & 63).to(tl.uint64)[None, :]) & 1) == 1


@triton.jit
def _word(masks, row, rows, at, words):
    """A word of each row: all bits before the first word are set, none is after the last."""
    there = tl.where((at >= 0) & (at < words), rows, 0)
    word = tl.load(masks + at, mask=row < there, other=0)
    return (word | tl.where(at < 0, -1, 0).to(tl.int64)).to(tl.uint64, bitcast=True)


@triton.jit
def _begun(word, following, shift):
    """The 64 bits from bit ``shift`` of a word on, the last of which are those of the following one."""
    return (word >> shift) | ((following << (63 - shift)) << 1)


@triton.jit
def _join(
    sums,
    tops,
    totals,
    out,
    norms,
    n,
    heads,
    parts,
    lanes: tl.constexpr,  # rows of the norms; 0: they are of no interest
    group: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    token, query_head = tl.program_id(0), tl.program_id(1)
    part = tl.arange(0, block)
    row = token * group + query_head % group
    place = (part * heads + query_head // group).to(tl.int64) * (n * group) + row
    top = tl.load(tops + place, mask=part < parts, other=NOTHING)
    used = top > NOTHING
    highest = tl.max(top, 0)
    weight = tl.exp2(top - highest)
    total = tl.sum(weight * tl.load(totals + place, mask=used, other=0.0), 0)
    if lanes:
        tl.store(norms + query_head // group * lanes + row, highest + tl.log2(total))
    column = tl.arange(0, dim)
    mixed = tl.load(sums + place[:, None] * dim + column, mask=used[:, None], other=0.0)
    joined = tl.sum(mixed * weight[:, None], 0) / total
    to = out + (token * heads * group + query_head) * dim + column
    tl.store(to, joined.to(out.dtype.element_ty))


@triton.jit
def _weigh(
    sums,
    tops,
    norms,
    totals,
    at,
    count,
    half_life,
    n,
    chunks,
    sums_head,
    tops_head,
    lanes: tl.constexpr,
    group: tl.constexpr,
    width: tl.constexpr,
    pieces: tl.constexpr,
    block: tl.constexpr,  # tiles
    height: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) * block + tl.arange(0, block)
    piece = tile[:, None] * pieces + tl.arange(0, pieces)
    counted = tl.minimum(tl.load(count).to(tl.int32), n)
    seen = tile < tl.cdiv(tl.load(at).to(tl.int32) + n, width)
    sums += head * sums_head
    tops += head * tops_head
    paid = tl.zeros((block, pieces), tl.float32)
    for first in range(0, counted * group, height):
        row = first + tl.arange(0, height)
        # No mask depends on the row, so that vectors are loaded: rows that do not count get a weight of zero.
        norm = tl.load(norms + head * lanes + row, mask=row < counted * group, other=float("inf"))
        top = tl.load(tops + tile[:, None] * lanes + row, mask=seen[:, None], other=0.0)
        factor = tl.exp2(top - norm)
        weight = tl.load(sums + piece[:, :, None] * lanes + row, mask=seen[:, None, None], other=0.0)
        paid += tl.sum(weight.to(tl.float32) * factor[:, None, :], 2)
    place, there = totals + head * chunks + piece, piece < chunks
    before = tl.load(place, mask=there, other=0.0)
    tl.store(place, before * tl.exp2(-counted.to(tl.float32) / half_life) + paid, mask=there)
