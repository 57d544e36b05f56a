"""Products of grouped weights with several tokens, on tensor cores.

A program multiplies a block of rows with all tokens, over a share of the inputs; sums of shares are added afterwards,
because a matrix has too few blocks of rows for a whole GPU. Integers are exact in any dtype of x, and so tensor cores
take them as they are; what a group shares is applied to its sum in fp32, where it costs one multiplication for each
row and token instead of several instructions for each number.

A thread of a tensor core's operand holds inputs 2t, 2t + 1, 2t + 8 and 2t + 9 of 16. So that these are one word of a
weight, x changes places instead: it is laid out anew before the product.

A minimum counts once for the sum of its group's inputs, which is the same for all rows. So these sums lie beside x as
16 more inputs of a tile, whose weights are its minima: tensor cores take them with the rest.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.blocking import GROUPED_BYTES, GroupedBlocking, padded
from triforce_chat.engine.kernels.expanding import UNPACKED_NIBBLES, scale_and_low
from triforce_chat.engine.kernels.quantized_weight import RUN, Codes, QuantizedWeight
from triforce_chat.engine.kernels.rows import Norm

COLUMNS = 512  # of a program that adds shares
LAID_OUT = 1024  # inputs of a program that lays out x
LEAST_COLUMNS = 16  # of a product on tensor cores
WORD = tl.constexpr(4)  # bytes
QUARTERS = tl.constexpr(4)  # of a tile's inputs: no group is smaller
ZERO = tl.constexpr(Codes.BITS_4.zero)
# Unpacked integers less 128 + ZERO (0xC308 is -136) are the signed ones that they stand for.
NIBBLES = tl.constexpr(f"""{{
{UNPACKED_NIBBLES}
.reg .b32 one, excess;
mov.b32 one, 0x3F803F80;
mov.b32 excess, 0xC308C308;
fma.rn.bf16x2 $0, $0, one, excess;
fma.rn.bf16x2 $1, $1, one, excess;
fma.rn.bf16x2 $2, $2, one, excess;
fma.rn.bf16x2 $3, $3, one, excess;
}}""")
# The last seven bits of a signed byte count so, too; 128 + 128 are subtracted if its first bit is set, else 128.
BYTES = tl.constexpr("""{
.reg .b32 part, sign, near, far, minus;
mov.b32 minus, 0xBF80BF80;
and.b32 part, $2, 0x7F7F7F7F;
and.b32 sign, $2, 0x80808080;
prmt.b32 near, sign, 0x43434343, 0x4140;
prmt.b32 far, sign, 0x43434343, 0x4342;
prmt.b32 $0, part, 0x43434343, 0x4140;
prmt.b32 $1, part, 0x43434343, 0x4342;
fma.rn.bf16x2 $0, near, minus, $0;
fma.rn.bf16x2 $1, far, minus, $1;
}""")


def multiply_grouped(
    x: Tensor,
    weight: QuantizedWeight,
    out: Tensor,
    add: Tensor | None,
    norm: Norm | None,
    gated: bool,
    shape: GroupedBlocking,
) -> None:
    """Write to ``out`` [n, O] what ``quantized_linear`` returns; O counts pairs of rows if ``gated``.

    x times the norm's weight is rounded to x's dtype.
    """
    n, inputs = x.shape
    rows, size = weight.data.shape
    tiles = triton.cdiv(size, GROUPED_BYTES)
    share = triton.cdiv(tiles, shape.shares)
    shares = triton.cdiv(tiles, share)
    made = x.new_empty(shares, n, rows, dtype=torch.float32)
    words = weight.data.view(torch.int32)
    _multiply_grouped[triton.cdiv(rows, shape.rows), shares](
        _laid_out(x, norm, weight, tiles),
        words,
        weight.scale,
        made,
        n,
        rows,
        size,
        tiles,
        share,
        words.stride(0),
        weight.scale.stride(0),
        group=weight.group,
        parts=weight.codes.parts,
        even=size % GROUPED_BYTES == 0,
        tokens=max(LEAST_COLUMNS, padded(n)),
        height=shape.rows,
        depth=GROUPED_BYTES,
        run=RUN,
        stages=shape.stages,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )
    _add_shares[n, triton.cdiv(out.shape[1], COLUMNS)](
        made,
        x,
        out if add is None else add,
        out,
        n,
        rows,
        out.shape[1],
        inputs,
        shares,
        0.0 if norm is None else norm.eps,
        x.stride(0),
        0 if add is None else add.stride(0),
        adds=add is not None,
        norms=norm is not None,
        gates=gated,
        most=triton.next_power_of_2(shares),
        columns=COLUMNS,
        span=triton.next_power_of_2(inputs),
    )


def _laid_out(x: Tensor, norm: Norm | None, weight: QuantizedWeight, tiles: int) -> Tensor:
    """x [n, I], times the norm's weight if there is one, in tiles, with zeros up to the last tile's end.

    A tile is its quarters, each [n, inputs], and, if the weight has minima, [n, 16] numbers that stand for their means.
    """
    n, inputs = x.shape
    width = GROUPED_BYTES * weight.codes.parts
    tiled = x.new_empty(tiles, n * (width + RUN * weight.sided))
    _lay_out[n, triton.cdiv(tiles * width, LAID_OUT)](
        x,
        x if norm is None else norm.weight,
        tiled,
        n,
        inputs,
        tiles,
        x.stride(0),
        norms=norm is not None,
        sided=weight.sided,
        width=width,
        run=RUN,
        columns=LAID_OUT,
    )
    return tiled


@triton.jit
def _lay_out(
    x,
    norm,
    tiled,
    n,
    inputs,
    tiles,
    x_row,
    norms: tl.constexpr,
    sided: tl.constexpr,
    width: tl.constexpr,
    run: tl.constexpr,
    columns: tl.constexpr,
):
    spread: tl.constexpr = width + run if sided else width
    quarter: tl.constexpr = width // QUARTERS
    token, start = tl.program_id(0), tl.program_id(1) * columns
    column = start + tl.arange(0, columns)
    part = tl.load(x + token.to(tl.int64) * x_row + column, mask=column < inputs, other=0.0)
    if norms:
        weigh = tl.load(norm + column, mask=column < inputs, other=0.0)
        part = (part.to(tl.float32) * weigh.to(tl.float32)).to(part.dtype)
    # Of byte 4t + 2a + b the place is 8a + 2t + b.
    byte = column % run
    place = byte % 4 // 2 * (run // 2) + byte // 4 * 2 + byte % 2
    tile = column // width
    at = (tile * spread + column % width // quarter * quarter) * n + token * quarter
    tl.store(tiled + at + column % quarter // run * run + place, part, mask=tile < tiles)
    if sided:
        # As many minima meet them as ``_minima`` says: two numbers for each, in all pairs.
        count: tl.constexpr = columns // quarter
        mean = tl.sum(part.to(tl.float32).reshape(count, quarter), 1) / quarter
        near = mean.to(part.dtype)
        rest = (mean - near.to(tl.float32)).to(part.dtype)
        of, both = start // quarter + tl.arange(0, count), tl.arange(0, 2)[None, :]
        to = tiled + (of // QUARTERS * spread + width) * n + token * run + of % QUARTERS * 2
        there = (of // QUARTERS < tiles)[:, None]
        tl.store(to[:, None] + both, tl.broadcast_to(near[:, None], (count, 2)), mask=there)
        tl.store(to[:, None] + run // 2 + both, tl.broadcast_to(rest[:, None], (count, 2)), mask=there)


@triton.jit
def _pair(word):
    """Two bfloat16 numbers of 32 bits."""
    low, high = word.to(tl.int16), (word >> 16).to(tl.int16)
    return low.to(tl.bfloat16, bitcast=True), high.to(tl.bfloat16, bitcast=True)


@triton.jit
def _quarters(part):
    """[m, 4] -> four [m], in their order."""
    even, odd = tl.split(part.reshape(part.shape[0], 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _runs(first, second, third, fourth, run: tl.constexpr):
    """The numbers of each word of four runs, each [height, 16] -> an operand [height, 16] of each run."""
    height: tl.constexpr = first.shape[0]
    words: tl.constexpr = run // WORD
    both = tl.join(tl.join(first, second), tl.join(third, fourth))  # [height, runs * words, 2, 2]
    both = both.reshape(height, 2, 2, words, 2, 2).permute(0, 5, 3, 4, 1, 2).reshape(height, run, 2, 2)
    even, odd = tl.split(both)
    one, three = tl.split(even)
    two, four = tl.split(odd)
    return one, two, three, four


@triton.jit
def _nibbles(words, kind: tl.constexpr, run: tl.constexpr):
    """The integers of a tile's quarters, as the signed numbers that they stand for: four operands [height, 32]."""
    if kind == tl.bfloat16:
        a, b, c, d = tl.inline_asm_elementwise(
            NIBBLES,
            "=r,=r,=r,=r,r",
            [words],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        low, high = _runs(*_pair(a), *_pair(b), run), _runs(*_pair(c), *_pair(d), run)
    else:
        low = _runs(*_fields(words, 0, kind), run)
        high = _runs(*_fields(words, 4, kind), run)
    return _wide(low[0], high[0]), _wide(low[1], high[1]), _wide(low[2], high[2]), _wide(low[3], high[3])


@triton.jit
def _wide(first, second):
    """[m, k] and [m, k] -> [m, 2 k]."""
    return tl.join(first, second).permute(0, 2, 1).reshape(first.shape[0], 2 * first.shape[1])


@triton.jit
def _fields(words, shift: tl.constexpr, kind: tl.constexpr):
    """The integers of 4 bits of each byte, from bit ``shift`` on."""
    first = (((words >> shift) & 15) - ZERO).to(kind)
    second = (((words >> (8 + shift)) & 15) - ZERO).to(kind)
    third = (((words >> (16 + shift)) & 15) - ZERO).to(kind)
    fourth = (((words >> (24 + shift)) & 15) - ZERO).to(kind)
    return first, second, third, fourth


@triton.jit
def _bytes(words, kind: tl.constexpr, run: tl.constexpr):
    """The signed bytes of a tile's quarters: four operands [height, 16]."""
    if kind == tl.bfloat16:
        a, b = tl.inline_asm_elementwise(
            BYTES, "=r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
        made = _runs(*_pair(a), *_pair(b), run)
    else:
        first, second = (words << 24 >> 24).to(kind), (words << 16 >> 24).to(kind)
        made = _runs(first, second, (words << 8 >> 24).to(kind), (words >> 24).to(kind), run)
    return made


@triton.jit
def _minima(shared, zero: tl.constexpr, count: tl.constexpr, kind: tl.constexpr, run: tl.constexpr):
    """What a tile's rows add for each mean of ``count`` inputs, from the words [height, groups] of its groups.

    An operand [height, 16]. Two numbers stand for a minimum as for a mean: thread t has them at 2t and again at 2t + 8.
    """
    scale, low = scale_and_low(shared)
    height: tl.constexpr = shared.shape[0]
    groups: tl.constexpr = shared.shape[1]
    least = ((low + zero * scale) * count)[:, :, None]
    least = tl.broadcast_to(least, (height, groups, QUARTERS // groups)).reshape(height, QUARTERS)
    near = least.to(kind)
    pair = tl.join(near, (least - near.to(tl.float32)).to(kind))
    return tl.join(pair, pair).permute(0, 3, 1, 2).reshape(height, run)


@triton.jit(do_not_specialize=["tiles", "share"])  # no address is computed from them
def _multiply_grouped(
    x,
    data,
    scale,
    sums,
    n,
    rows,
    size,
    tiles,
    share,
    data_row,
    scale_row,
    group: tl.constexpr,
    parts: tl.constexpr,
    even: tl.constexpr,
    tokens: tl.constexpr,
    height: tl.constexpr,
    depth: tl.constexpr,
    run: tl.constexpr,
    stages: tl.constexpr,
):
    paired: tl.constexpr = parts == 2
    sided: tl.constexpr = scale.dtype.element_ty == tl.int32
    kind: tl.constexpr = x.dtype.element_ty
    quarter: tl.constexpr = depth * parts // QUARTERS
    step: tl.constexpr = min(group, depth * parts)
    groups: tl.constexpr = depth * parts // step  # of a tile
    spread: tl.constexpr = depth * parts + (run if sided else 0)
    output = tl.program_id(0) * height + tl.arange(0, height)
    row = tl.minimum(output, rows - 1).to(tl.int64)
    token, word, each = tl.arange(0, tokens), tl.arange(0, depth // WORD), tl.arange(0, groups)
    first = tl.program_id(1) * share
    w_at = data + row[:, None] * data_row + word[None, :]
    shared_at = scale + row[:, None] * scale_row
    # Of tokens that there are not, a column repeats the last one's.
    known = tl.minimum(token, n - 1)
    x_at = x + known[None, :] * quarter + tl.arange(0, quarter)[:, None]
    means_at = x + known[None, :] * run + tl.arange(0, run)[:, None]
    total = tl.zeros((height, tokens), tl.float32)
    for tile in tl.range(first, tl.minimum(first + share, tiles), num_stages=stages):
        # Bytes beyond the last input are multiplied by zeros.
        w = tl.load(
            w_at + tile * (depth // WORD), mask=None if even else (word * WORD < size - tile * depth)[None, :]
        )
        at = tile * (depth * parts) // group + each
        there = None if even else (tile * (depth * parts) + each * group < size * parts)[None, :]
        shared = tl.load(shared_at + at[None, :], mask=there, other=None if even else 0)
        factors = scale_and_low(shared)[0] if sided else shared
        if groups == 4:
            factor = _quarters(factors)
        elif groups == 2:
            factor = tl.split(factors)
        else:
            factor = (factors.reshape(height),)
        if sided:
            means = tl.load(means_at + (tile * spread + depth * parts) * n)
            minima = _minima(shared, ZERO if paired else 0, quarter, kind, run)
            total = tl.dot(minima, means, total, input_precision="ieee")
        numbers = _nibbles(w, kind, run) if paired else _bytes(w, kind, run)
        for part in tl.static_range(QUARTERS):
            here = tl.load(x_at + (tile * spread + part * quarter) * n)
            if part * quarter % step == 0:
                made = tl.dot(numbers[part], here, input_precision="ieee")
            else:
                made = tl.dot(numbers[part], here, made, input_precision="ieee")
            if (part + 1) * quarter % step == 0:
                total += made * factor[part * quarter // step][:, None]
    to = sums + (tl.program_id(1) * n + token).to(tl.int64)[None, :] * rows + output[:, None]
    tl.store(to, total, mask=(output < rows)[:, None] & (token < n)[None, :])


@triton.jit
def _add_shares(
    sums,
    x,
    add,
    out,
    n,
    rows,
    outputs,
    inputs,
    shares,
    eps,
    x_row,
    add_row,
    adds: tl.constexpr,
    norms: tl.constexpr,
    gates: tl.constexpr,
    most: tl.constexpr,
    columns: tl.constexpr,
    span: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    output, share = tl.program_id(1) * columns + tl.arange(0, columns), tl.arange(0, most)[:, None]
    inside = output < outputs
    # All at once: one after another each would wait for the last.
    at, there = sums + (share * n + token) * rows + output[None, :], (share < shares) & inside[None, :]
    made = tl.sum(tl.load(at, mask=there, other=0.0), 0)
    other = tl.sum(tl.load(at + outputs, mask=there, other=0.0), 0) if gates else made
    if norms:
        lane = tl.arange(0, span)
        whole = tl.load(x + token * x_row + lane, mask=lane < inputs, other=0.0).to(tl.float32)
        steady = 1.0 / tl.sqrt_rn(tl.sum(whole * whole) / inputs + eps)
        made, other = made * steady, other * steady
    if gates:
        made = made * tl.sigmoid(made) * other
    if adds:
        made += tl.load(add + token * add_row + output, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * outputs + output, made.to(out.dtype.element_ty), mask=inside)
