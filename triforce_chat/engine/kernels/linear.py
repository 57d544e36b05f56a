"""Linear layers with quantized weights for a few tokens, where reading the weights takes all the time."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.decoding import PROCESSORS
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight

MEMORY = 232_448  # bytes of shared memory of one multiprocessor
RESERVED = 1_024  # bytes of it that the system reserves per program
MOST_SUMS = {2: 2048, 4: 512}  # accumulators of a tile that fit the registers, by bytes per element
TILES, MOST_TILES = 2, 3  # in flight per program, wanted and at most
LINE = 128  # bytes of a cache line
PIECES = (LINE, 64, 32, 16)  # candidates for the inputs of a tile that one warp reads
MOST_GROUPED = 16  # tokens up to which a warp takes two spans of a grouped weight at once
SHARED = 4  # bytes that a group shares

# Integers become bfloat16 numbers by their bits: 0x4300 is 128, and the last seven bits count in ones.
BIAS = tl.constexpr(128)
NIBBLES = tl.constexpr("""{
.reg .b32 low, high;
and.b32 low, $4, 0x0F0F0F0F;
shr.u32 high, $4, 4;
and.b32 high, high, 0x0F0F0F0F;
prmt.b32 $0, low, 0x43434343, 0x4140;
prmt.b32 $1, low, 0x43434343, 0x4342;
prmt.b32 $2, high, 0x43434343, 0x4140;
prmt.b32 $3, high, 0x43434343, 0x4342;
}""")
BYTES = tl.constexpr("""{
.reg .b32 high;
lop3.b32 $0, $2, 0x00FF00FF, 0x43004300, 0xEA;
shr.u32 high, $2, 8;
lop3.b32 $1, high, 0x00FF00FF, 0x43004300, 0xEA;
}""")


class Blocking(NamedTuple):
    """Compile-time parameters: outputs of a tile, words that a piece has of each, pipeline stages, warps, pieces.

    Without a number of pieces each warp reads one.
    """

    outputs: int
    inputs: int
    stages: int
    warps: int = 4
    pieces: int = 0

    @property
    def parts(self) -> int:
        """Pieces of a tile."""
        return self.pieces or self.warps


def blocking(n: int, outputs: int, dtype: torch.dtype, gated: bool = False) -> Blocking:
    """The tiling with enough tiles in flight for two programs per multiprocessor.

    Tiles are tall if there are enough outputs, or many tokens, because then x is read less often. In fp32 they are
    shallow: its products are computed in registers, without tensor cores.
    """
    wanted = n > 16 or outputs >= 32 * 2 * PROCESSORS
    sums = 32 * padded(n) * (2 if gated else 1)
    height = 32 if wanted and sums <= MOST_SUMS[dtype.itemsize] else 16
    room = MEMORY // 2 - RESERVED
    pieces = PIECES[-1:] if dtype == torch.float32 else PIECES

    def tiles(inputs: int) -> int:
        return room // tile_bytes(n, Blocking(height, inputs, 0), dtype, gated)

    inputs = next((each for each in pieces if tiles(each) >= TILES), pieces[-1])
    return Blocking(height, inputs, min(MOST_TILES, tiles(inputs)) + 1)


def tile_bytes(n: int, shape: Blocking, dtype: torch.dtype, gated: bool = False) -> int:
    """Bytes of shared memory that one pipeline stage takes: weights, x and the norm's weight."""
    heights = 2 * shape.outputs if gated else shape.outputs
    each: int = heights + dtype.itemsize * (padded(n) + 1)
    return shape.parts * shape.inputs * each


def grouped_blocking(
    n: int, weight: QuantizedWeight, outputs: int, dtype: torch.dtype, gated: bool
) -> Blocking:
    """The tiling of a weight whose groups are scaled one by one: a piece is a span, so that only their number varies.

    It is the same for all small numbers of tokens: then a row's sums have the same order.
    """
    codes, few = weight.codes, padded(n) <= MOST_GROUPED
    pieces = 8 if few and not gated else 4
    height = 32 if few and outputs >= 32 * 2 * PROCESSORS else 16
    wide = height * (2 if gated else 1)
    words = codes.words * weight.data.itemsize
    each = wide * (words + codes.parts * SHARED) + codes.words * codes.parts * dtype.itemsize * (
        padded(n) + 1
    )
    stages = min(MOST_TILES, max(1, (MEMORY // 2 - RESERVED) // (pieces * each))) + 1
    return Blocking(height, codes.words, stages, 4, pieces)


def padded(n: int) -> int:
    """Columns of the tile that holds n tokens."""
    columns: int = max(8, triton.next_power_of_2(n))
    return columns


class Norm(NamedTuple):
    """Parameters of an RMS norm of the input: ``weight`` [I], and ``eps`` against division by zero."""

    weight: Tensor
    eps: float


def quantized_linear(
    x: Tensor,
    weight: QuantizedWeight,
    add: Tensor | None = None,
    norm: Norm | None = None,
    gated: bool = False,
    shape: Blocking | None = None,
) -> Tensor:
    """Norm x [n, I] (optional), multiply by the transposed weight and add ``add`` [n, O] (optional): [n, O].

    ``add`` is a residual or an expanded bias. ``gated``: the weight's rows are gates [M, I] followed by as many others,
    and the result is silu(gates) * others [n, M], for which there is no ``add``. The last dimension of each tensor must
    be contiguous. ``shape`` overrides the tiling.

    Integers are multiplied with x, whose products are summed in fp32 and scaled then: no weight is rounded. x times the
    norm's weight is rounded to x's dtype before.
    """
    n, inputs = x.shape
    outputs = weight.outputs // (2 if gated else 1)
    grouped = not weight.whole
    if shape is None and grouped:
        shape = grouped_blocking(n, weight, outputs, x.dtype, gated)
    shape = shape or blocking(n, outputs, x.dtype, gated)
    out = x.new_empty(n, outputs)
    data = weight.data
    _multiply[(triton.cdiv(outputs, shape.outputs),)](
        x,
        data,
        weight.scale,
        x if norm is None else norm.weight,
        out if add is None else add,
        out,
        n,
        outputs,
        inputs,
        len(data) * data.shape[2],
        0.0 if norm is None else norm.eps,
        x.stride(0),
        data.stride(0) // data.shape[2] if grouped else 1,
        data.stride(1),
        weight.scale.stride(0),
        0 if add is None else add.stride(0),
        group=weight.group if grouped else 0,
        zero=weight.codes.zero,
        adds=add is not None,
        norms=norm is not None,
        gates=gated,
        tokens=padded(n),
        height=shape.outputs,
        pieces=shape.parts,
        depth=shape.inputs,
        stages=shape.stages,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )
    return out


@triton.jit
def _pair(words, kind: tl.constexpr):
    """The two integers of each word, plus 128, in ``kind``."""
    if words.dtype == tl.uint8:
        low, high = tl.inline_asm_elementwise(
            NIBBLES, "=r,=r,=r,=r,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    else:
        low, high = tl.inline_asm_elementwise(
            BYTES, "=r,=r,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    return low.to(kind), high.to(kind)


@triton.jit
def _scaled(total, codes, part, sums, shared, sided: tl.constexpr, offset: tl.constexpr, zero: tl.constexpr):
    """Add the product of groups of integers, which are too large by ``offset``, with their inputs.

    ``sums`` of the inputs; ``shared``: 32 bits of each group.
    """
    made = tl.dot(codes, part, input_precision="ieee")
    if sided:
        factor = shared.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        least = (shared >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        total += made * factor[:, :, None]
        total += sums * (least - offset * factor)[:, :, None]
    elif offset:
        total += (made - sums * (offset + zero)) * shared[:, :, None]
    else:
        total += made * shared[:, :, None]
    return total


@triton.jit
def _multiply(
    x,
    data,
    scale,
    norm,
    add,
    out,
    n,
    outputs,
    inputs,
    words,
    eps,
    x_row,
    jump,
    data_row,
    scale_row,
    add_row,
    group: tl.constexpr,
    zero: tl.constexpr,
    adds: tl.constexpr,
    norms: tl.constexpr,
    gates: tl.constexpr,
    tokens: tl.constexpr,
    height: tl.constexpr,
    pieces: tl.constexpr,
    depth: tl.constexpr,
    stages: tl.constexpr,
):
    # Numbers in a word; whether groups have a minimum; how much larger than themselves integers are multiplied.
    paired: tl.constexpr = data.dtype.element_ty != tl.int8
    parts: tl.constexpr = 2 if paired else 1
    sided: tl.constexpr = scale.dtype.element_ty == tl.int32
    offset: tl.constexpr = BIAS if paired else 0
    output = tl.program_id(0) * height + tl.arange(0, height)
    token = tl.arange(0, tokens)
    row = tl.minimum(output, outputs - 1)
    valid = (output[:, None] < outputs) & (token[None, :] < n)
    # Load early what is needed at the end.
    if not group:
        factor = tl.load(scale + row)
        other_factor = tl.load(scale + outputs + row) if gates else factor
    if adds:
        base = tl.load(add + token[None, :] * add_row + output[:, None], mask=valid, other=0.0).to(tl.float32)

    # Each warp reads its own part of the inputs, so no element is loaded twice.
    piece = tl.arange(0, pieces) * depth
    lane = piece[:, None, None]
    across, down = tl.arange(0, depth)[None, None, :], tl.arange(0, depth)[None, :, None]
    w_at = data + row.to(tl.int64)[None, :, None] * data_row + lane.to(tl.int64) * jump + across
    x_at = x + token[None, None, :] * x_row + lane * parts + down
    total = tl.zeros((pieces, height, tokens), tl.float32)
    other = tl.zeros((pieces, height, tokens), tl.float32)
    squares = tl.zeros((pieces, tokens), tl.float32)
    ones = tl.full((pieces, height, depth), 1.0, x.dtype.element_ty)
    for start in tl.range(0, words, pieces * depth, num_stages=stages):
        inside = lane + across < words - start
        w = tl.load(w_at, mask=inside, other=0)
        if gates:
            v = tl.load(w_at + outputs.to(tl.int64) * data_row, mask=inside, other=0)
        w_at += pieces * depth * jump
        for half in tl.static_range(parts):
            at = start * parts + half * depth
            some = lane * parts + down < inputs - at
            part = tl.load(x_at + at, mask=(token[None, None, :] < n) & some, other=0.0)
            if norms:
                squares += tl.sum(part.to(tl.float32) * part.to(tl.float32), 1)
                weigh = tl.load(norm + lane * parts + down + at, mask=some, other=0.0)
                part = (part.to(tl.float32) * weigh.to(tl.float32)).to(part.dtype)
            # 127 is exact in every dtype; via bfloat16, to which Triton converts four bytes at a time.
            w_codes = _pair(w, part.dtype)[half] if paired else w.to(tl.bfloat16).to(part.dtype)
            if gates:
                v_codes = _pair(v, part.dtype)[half] if paired else v.to(tl.bfloat16).to(part.dtype)
            if group:
                # By a product, because that comes in the layout in which it is needed.
                sums = tl.dot(ones, part, input_precision="ieee") if sided or paired else total
                shared_at = scale + (at + piece * parts)[:, None] // group * scale_row + row[None, :]
                here = piece[:, None] < words - start
                shared = tl.load(shared_at, mask=here, other=0)
                total = _scaled(total, w_codes, part, sums, shared, sided, offset, zero)
                if gates:
                    shared = tl.load(shared_at + outputs, mask=here, other=0)
                    other = _scaled(other, v_codes, part, sums, shared, sided, offset, zero)
            else:
                total = tl.dot(w_codes, part, total, input_precision="ieee")
                if gates:
                    other = tl.dot(v_codes, part, other, input_precision="ieee")
    made, made_other = tl.sum(total, 0), tl.sum(other, 0)
    if not group:
        made, made_other = made * factor[:, None], made_other * other_factor[:, None]
    if norms:
        steady = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / inputs + eps)
        made, made_other = made * steady[None, :], made_other * steady[None, :]
    if gates:
        made = made * tl.sigmoid(made) * made_other
    if adds:
        made += base
    to = out + token[None, :] * outputs + output[:, None]
    tl.store(to, made.to(out.dtype.element_ty), mask=valid)
