"""Linear layers with quantized weights for a few tokens, where reading the weights takes all the time."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.blocking import (
    Blocking,
    FewBlocking,
    blocking,
    few_blocking,
    grouped_blocking,
    padded,
    wide_blocking,
)
from triforce_chat.engine.kernels.few import multiply_few
from triforce_chat.engine.kernels.quantized_weight import Codes, QuantizedWeight
from triforce_chat.engine.kernels.rows import Norm

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
# The four integers of each of two words, moved to those bits, and 136 subtracted: 128, and 8 for the one that means 0.
WIDE = tl.constexpr("""{
.reg .b32 t, one, less;
mov.b32 one, 0x3F803F80;
mov.b32 less, 0xC308C308;
lop3.b32 t, $4, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 $0, t, one, less;
shr.u32 t, $4, 4;
lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 $1, t, one, less;
shr.u32 t, $4, 8;
lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 $2, t, one, less;
shr.u32 t, $4, 12;
lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
fma.rn.bf16x2 $3, t, one, less;
}""")


def quantized_linear(
    x: Tensor,
    weight: QuantizedWeight,
    add: Tensor | None = None,
    norm: Norm | None = None,
    gated: bool = False,
    shape: Blocking | FewBlocking | None = None,
) -> Tensor:
    """Norm x [n, I] (optional), multiply by the transposed weight and add ``add`` [n, O] (optional): [n, O].

    ``add`` is a residual or an expanded bias. ``gated``: the weight's rows are gates [M, I] followed by as many others,
    and the result is silu(gates) * others [n, M], for which there is no ``add``. The last dimension of each tensor must
    be contiguous. ``shape`` overrides the tiling, and by its type the kernel.

    Integers are multiplied with x, whose products are summed in fp32 and scaled then: no weight is rounded. The order
    of a sum depends on the number of rows n, and so a result may differ by the rounding to its dtype.
    """
    n = len(x)
    outputs = weight.outputs // (2 if gated else 1)
    out = x.new_empty(n, outputs)
    if shape is None and weight.codes is Codes.WIDE_4:
        shape = wide_blocking(n, weight, x.dtype, gated)
    elif shape is None and not weight.whole:
        shape = few_blocking(n, outputs, weight.inputs, gated) or grouped_blocking(
            n, weight, outputs, x.dtype, gated
        )
    if isinstance(shape, FewBlocking):
        multiply_few(x, weight, out, add, norm, gated, shape)
    else:
        _by_tensor_cores(x, weight, out, add, norm, gated, shape or blocking(n, outputs, x.dtype, gated))
    return out


def _by_tensor_cores(
    x: Tensor,
    weight: QuantizedWeight,
    out: Tensor,
    add: Tensor | None,
    norm: Norm | None,
    gated: bool,
    shape: Blocking,
) -> None:
    """x times the norm's weight is rounded to x's dtype here."""
    n, inputs = x.shape
    outputs, data, scale = out.shape[1], weight.data, weight.scale
    _multiply[(triton.cdiv(outputs, shape.outputs),)](
        x,
        data,
        scale,
        x if norm is None else norm.weight,
        out if add is None else add,
        out,
        n,
        outputs,
        inputs,
        data.shape[1],
        0.0 if norm is None else norm.eps,
        x.stride(0),
        data.stride(0),
        scale.stride(0),
        scale.stride(1),
        0 if add is None else add.stride(0),
        parts=weight.codes.parts,
        group=0 if weight.whole else weight.group,
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


@triton.jit
def _of_wide(words, kind: tl.constexpr):
    """The four integers of each word, less the one that means 0."""
    first, second, third, fourth = tl.inline_asm_elementwise(
        WIDE,
        "=r,=r,=r,=r,r",
        [words],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )
    return first.to(kind), second.to(kind), third.to(kind), fourth.to(kind)


@triton.jit
def _of_nibbles(words, kind: tl.constexpr):
    """The two integers of each byte, larger by 128."""
    low, high = tl.inline_asm_elementwise(
        NIBBLES, "=r,=r,=r,=r,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
    )
    return low.to(kind), high.to(kind)


@triton.jit
def _unpacked(words, kind: tl.constexpr):
    """The integers of each word in ``kind``, four, two or one."""
    if words.dtype == tl.int16:
        codes = _of_wide(words, kind)
    elif words.dtype == tl.uint8:
        codes = _of_nibbles(words, kind)
    else:
        # 127 is exact in every dtype; via bfloat16, to which Triton converts four bytes at a time.
        codes = (words.to(tl.bfloat16).to(kind),)
    return codes


@triton.jit
def _weighed(part, norm, at, mask):
    """A block of inputs times the norm's weight, and the sums of their squares."""
    squares = tl.sum(part.to(tl.float32) * part.to(tl.float32), 1)
    weigh = tl.load(norm + at, mask=mask, other=0.0)
    return (part.to(tl.float32) * weigh.to(tl.float32)).to(part.dtype), squares


@triton.jit
def _scaled(
    total,
    made,
    sums,
    shared,
    sided: tl.constexpr,
    offset: tl.constexpr,
    zero: tl.constexpr,
    second: tl.constexpr,
):
    """Add the products of groups of integers, which are too large by ``offset``, with their inputs.

    ``sums`` of the inputs; ``shared``: 32 bits of each group, or of two of them, of which it may be the ``second``.
    """
    if sided:
        factor = shared.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        least = (shared >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        total += made * factor[:, :, None]
        total += sums * (least - offset * factor)[:, :, None]
    elif offset:
        total += (made - sums * (offset + zero)) * shared[:, :, None]
    elif shared.dtype == tl.int32:
        bits = (shared >> 16 if second else shared) << 16
        total += made * bits.to(tl.float32, bitcast=True)[:, :, None]
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
    data_row,
    scale_row,
    scale_step,
    add_row,
    parts: tl.constexpr,
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
    # Whether groups have a minimum; how much larger than themselves integers are multiplied; parts of a run in a group.
    paired: tl.constexpr = parts == 2
    wide: tl.constexpr = parts == 4
    sided: tl.constexpr = scale.dtype.element_ty == tl.int32 and not wide
    offset: tl.constexpr = BIAS if paired else 0
    span: tl.constexpr = depth * parts
    several: tl.constexpr = parts // 2 if wide else parts
    output = tl.program_id(0) * height + tl.arange(0, height)
    token = tl.arange(0, tokens)
    row = tl.minimum(output, outputs - 1)
    valid = (output[:, None] < outputs) & (token[None, :] < n)
    # Load early what is needed at the end.
    if not group:
        factor = tl.load(scale + row * scale_row)
        other_factor = tl.load(scale + (outputs + row) * scale_row) if gates else factor
    if adds:
        base = tl.load(add + token[None, :] * add_row + output[:, None], mask=valid, other=0.0).to(tl.float32)

    # Each warp reads its own part of the inputs, so no element is loaded twice.
    piece = tl.arange(0, pieces) * depth
    lane = piece[:, None, None]
    across, down = tl.arange(0, depth)[None, None, :], tl.arange(0, depth)[None, :, None]
    w_at = data + row.to(tl.int64)[None, :, None] * data_row + lane + across
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
        w_at += pieces * depth
        codes = _unpacked(w, x.dtype.element_ty)
        if gates:
            other_codes = _unpacked(v, x.dtype.element_ty)
        if group:
            shared_at = scale + output[None, :].to(tl.int64) * scale_row
            shared_at += ((start + piece) * parts // (span if wide else group))[:, None] * scale_step
            here = (piece[:, None] < words - start) & (output[None, :] < outputs)
            shared = tl.load(shared_at, mask=here, other=0)
            if gates:
                other_shared = tl.load(shared_at + outputs.to(tl.int64) * scale_row, mask=here, other=0)
        for first in tl.static_range(0, parts, several):
            if group:
                made = tl.zeros((pieces, height, tokens), tl.float32)
                made_other = made
                sums = made
            for which in tl.static_range(several):
                at = start * parts + (first + which) * depth
                some = lane * parts + down < inputs - at
                part = tl.load(x_at + at, mask=(token[None, None, :] < n) & some, other=0.0)
                if norms:
                    part, squared = _weighed(part, norm, lane * parts + down + at, some)
                    squares += squared
                if group:
                    made = tl.dot(codes[first + which], part, made, input_precision="ieee")
                    if sided or paired:
                        # By a product, because that comes in the layout in which it is needed.
                        sums = tl.dot(ones, part, sums, input_precision="ieee")
                    if gates:
                        made_other = tl.dot(
                            other_codes[first + which], part, made_other, input_precision="ieee"
                        )
                else:
                    total = tl.dot(codes[first + which], part, total, input_precision="ieee")
                    if gates:
                        other = tl.dot(other_codes[first + which], part, other, input_precision="ieee")
            if group:
                total = _scaled(total, made, sums, shared, sided, offset, zero, first * 2 // parts)
                if gates:
                    other = _scaled(
                        other, made_other, sums, other_shared, sided, offset, zero, first * 2 // parts
                    )
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
