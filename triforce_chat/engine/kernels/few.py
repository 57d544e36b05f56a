"""Products of grouped weights with a few tokens, without tensor cores.

With one token a product takes as long as its weights take to be read, if nothing else is in the way. So a thread loads
16 bytes of several rows at once, a run each, and the run's inputs, which serve all of these rows. It unpacks an integer
by one instruction and adds it times its input; what the run's group shares is applied to that sum. Nothing passes
through shared memory but the sums of a program's threads at the end, and no thread waits for another before that.

Triton gives each thread whole runs because tensors that are loaded have two dimensions at most, of which the last one
is a run or the contiguous one: of more it would take the order into its own hands.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.blocking import WARP, FewBlocking
from triforce_chat.engine.kernels.expanding import scale_and_low
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight
from triforce_chat.engine.kernels.rows import Norm

# PRMT moves a byte of a word to where it is the integer in an fp32 number: in 0x43000000, which is 128, bit 16 counts
# as one; in 0x47000000, which is 32,768, bit 8 does.
NIBBLE_BIAS, BYTE_BIAS = tl.constexpr(128.0), tl.constexpr(32768.0 + 128.0)
# The compiler must not know that number: it would hold it where PRMT cannot read it, and copy it before each. What a
# shuffle gives it does not know, although the first lane's is less than 2 ** 16.
NIBBLE_FRAME = tl.constexpr(
    "{ .reg .b32 t; shfl.sync.idx.b32 t, $1, 0, 31, 0xFFFFFFFF; shr.u32 t, t, 16; or.b32 $0, t, 0x43000000; }"
)
BYTE_FRAME = tl.constexpr(
    "{ .reg .b32 t; shfl.sync.idx.b32 t, $1, 0, 31, 0xFFFFFFFF; shr.u32 t, t, 16; or.b32 $0, t, 0x47000000; }"
)
NIBBLE_0 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7044;")
NIBBLE_1 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7144;")
NIBBLE_2 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7244;")
NIBBLE_3 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7344;")
BYTE_0 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7404;")
BYTE_1 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7414;")
BYTE_2 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7424;")
BYTE_3 = tl.constexpr("prmt.b32 $0, $1, $2, 0x7434;")
FLIP = tl.constexpr(-0x7F7F7F80)  # 0x80808080: adds 128 to each signed byte
LOW = tl.constexpr(0x0F0F0F0F)
WORDS = tl.constexpr(4)  # of a run
HALF = tl.constexpr(16)  # inputs of a run's low or high nibbles, or of its bytes
PIECE = tl.constexpr(8)  # inputs of a load


def multiply_few(
    x: Tensor,
    weight: QuantizedWeight,
    out: Tensor,
    add: Tensor | None,
    norm: Norm | None,
    gated: bool,
    shape: FewBlocking,
) -> None:
    """Write to ``out`` [n, O] what ``quantized_linear`` returns; O counts pairs of rows if ``gated``."""
    n, inputs = x.shape
    outputs = out.shape[1]
    words, scale = weight.data.view(torch.int32), weight.scale
    _multiply_few[(triton.cdiv(outputs, shape.rows),)](
        x,
        words,
        scale,
        x if norm is None else norm.weight,
        out if add is None else add,
        out,
        n,
        outputs,
        inputs,
        inputs // weight.codes.span,
        0.0 if norm is None else norm.eps,
        x.stride(0),
        words.stride(0),
        scale.stride(0),
        scale.stride(1),
        0 if add is None else add.stride(0),
        group=weight.group,
        zero=weight.codes.zero,
        parts=weight.codes.parts,
        adds=add is not None,
        norms=norm is not None,
        gates=gated,
        tokens=triton.next_power_of_2(n),
        height=shape.rows,
        depth=WARP * shape.warps,
        stages=shape.stages,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )


@triton.jit
def _halves(part):
    """[m, 2 k] -> two [m, k], all of a thread's own."""
    return tl.split(part.reshape(part.shape[0], 2, part.shape[1] // 2).permute(0, 2, 1))


@triton.jit
def _quarters(part):
    """[m, 4] -> four [m]."""
    low, high = _halves(part)
    first, second = tl.split(low)
    third, fourth = tl.split(high)
    return first, second, third, fourth


@triton.jit
def _times(made, word, text: tl.constexpr, frame, part, bias: tl.constexpr):
    """Add to ``made`` [tokens, rows, runs] a byte of each word [rows * runs] times its input [tokens * runs].

    ``frame`` [rows * runs]: the number into whose bits the byte is moved.
    """
    tokens: tl.constexpr = made.shape[0]
    height: tl.constexpr = made.shape[1]
    depth: tl.constexpr = made.shape[2]
    bits = tl.inline_asm_elementwise(text, "=r,r,r", [word, frame], dtype=tl.int32, is_pure=True, pack=1)
    number = bits.to(tl.float32, bitcast=True)
    if bias != 0.0:
        number -= bias
    return made + number.reshape(1, height, depth) * part.reshape(tokens, 1, depth)


@triton.jit
def _word(made, word, frame, part, half: tl.constexpr, packed: tl.constexpr):
    """Add the integers of each word [rows * runs] times their inputs [tokens * runs, 4]; by 128 larger if packed."""
    first, second, third, fourth = _quarters(part)
    if packed:
        nibbles = (word >> (4 * half)) & LOW
        made = _times(made, nibbles, NIBBLE_0, frame, first, 0.0)
        made = _times(made, nibbles, NIBBLE_1, frame, second, 0.0)
        made = _times(made, nibbles, NIBBLE_2, frame, third, 0.0)
        made = _times(made, nibbles, NIBBLE_3, frame, fourth, 0.0)
    else:  # left in the sums, so large a bias would cost digits
        flipped = word ^ FLIP
        made = _times(made, flipped, BYTE_0, frame, first, BYTE_BIAS)
        made = _times(made, flipped, BYTE_1, frame, second, BYTE_BIAS)
        made = _times(made, flipped, BYTE_2, frame, third, BYTE_BIAS)
        made = _times(made, flipped, BYTE_3, frame, fourth, BYTE_BIAS)
    return made


@triton.jit
def _scaled(made, sums, shared, packed: tl.constexpr, sided: tl.constexpr, zero: tl.constexpr):
    """The products [tokens, rows, runs] of numbers, from those of integers, from the inputs' ``sums`` [tokens, runs].

    ``shared`` [rows, runs]: 32 bits of each run's group.
    """
    bias: tl.constexpr = NIBBLE_BIAS if packed else 0.0
    if sided:
        factor, least = scale_and_low(shared)
        return made * factor[None] + sums[:, None] * (least - bias * factor)[None]
    if packed:
        return (made - sums[:, None] * (bias + zero)) * shared[None]
    return made * shared[None]


@triton.jit(do_not_specialize=["scale_step"])
def _multiply_few(
    x,
    data,
    scale,
    norm,
    add,
    out,
    n,
    outputs,
    inputs,
    runs,
    eps,
    x_row,
    data_row,
    scale_row,
    scale_step,  # one, which the compiler must not know: it would give a thread several runs' scales
    add_row,
    group: tl.constexpr,
    zero: tl.constexpr,
    parts: tl.constexpr,
    adds: tl.constexpr,
    norms: tl.constexpr,
    gates: tl.constexpr,
    tokens: tl.constexpr,
    height: tl.constexpr,
    depth: tl.constexpr,
    stages: tl.constexpr,
):
    packed: tl.constexpr = parts == 2
    sided: tl.constexpr = scale.dtype.element_ty == tl.int32
    span: tl.constexpr = HALF * parts
    first = tl.program_id(0) * height
    output, token = first + tl.arange(0, height), tl.arange(0, tokens)
    valid = (output[None, :] < outputs) & (token[:, None] < n)
    if adds:  # early, because it is needed at the end
        base = tl.load(add + token[:, None] * add_row + output[None, :], mask=valid, other=0.0).to(tl.float32)

    row = tl.minimum(output, outputs - 1).to(tl.int64)
    word = tl.arange(0, WORDS * depth)
    w_at = data + row[:, None] * data_row + word[None, :]
    of_row = tl.arange(0, height * depth)
    scale_at = scale + tl.minimum(first + of_row // depth, outputs - 1).to(tl.int64) * scale_row
    of_token = tl.arange(0, tokens * depth)
    input_at = of_token % depth * span
    piece = tl.arange(0, PIECE)[None, :]
    x_at = x + (of_token // depth * x_row + input_at)[:, None] + piece
    norm_at = norm + input_at[:, None] + piece

    lanes = tl.arange(0, depth)
    frame = tl.inline_asm_elementwise(
        NIBBLE_FRAME if packed else BYTE_FRAME, "=r,r", [lanes], dtype=tl.int32, is_pure=True, pack=1
    )
    frame = tl.broadcast_to(frame[None, :], (height, depth)).reshape(height * depth)
    total = tl.zeros((tokens, height, depth), tl.float32)
    other = total
    squares = tl.zeros((tokens * depth,), tl.float32)
    for start in tl.range(0, runs, depth, num_stages=stages):
        left = runs - start
        inside = word[None, :] < left * WORDS
        w = tl.load(w_at + start * WORDS, mask=inside, other=0)
        w0, w1, w2, w3 = _quarters(w.reshape(height * depth, WORDS))
        group_at = scale_at + (start + of_row % depth) * span // group * scale_step
        shared = tl.load(group_at, mask=of_row % depth < left, other=0).reshape(height, depth)
        if gates:
            v = tl.load(w_at + outputs.to(tl.int64) * data_row + start * WORDS, mask=inside, other=0)
            v0, v1, v2, v3 = _quarters(v.reshape(height * depth, WORDS))
            other_at = group_at + outputs.to(tl.int64) * scale_row
            shared_other = tl.load(other_at, mask=of_row % depth < left, other=0).reshape(height, depth)
        made = tl.zeros((tokens, height, depth), tl.float32)
        made_other = made
        sums = tl.zeros((tokens * depth,), tl.float32)
        some = ((of_token % depth < left) & (of_token // depth < n))[:, None]
        for half in tl.static_range(parts):
            for side in tl.static_range(2):
                at = start * span + half * HALF + side * PIECE
                part = tl.load(x_at + at, mask=some, other=0.0).to(tl.float32)
                if norms:
                    squares += tl.sum(part * part, 1)
                    part *= tl.load(norm_at + at, mask=some, other=0.0).to(tl.float32)
                sums += tl.sum(part, 1)
                near, far = _halves(part)
                made = _word(made, w0 if side == 0 else w2, frame, near, half, packed)
                made = _word(made, w1 if side == 0 else w3, frame, far, half, packed)
                if gates:
                    made_other = _word(made_other, v0 if side == 0 else v2, frame, near, half, packed)
                    made_other = _word(made_other, v1 if side == 0 else v3, frame, far, half, packed)
        summed = sums.reshape(tokens, depth)
        total += _scaled(made, summed, shared, packed, sided, zero)
        if gates:
            other += _scaled(made_other, summed, shared_other, packed, sided, zero)
    result, result_other = tl.sum(total, 2), tl.sum(other, 2)
    if norms:
        mean = tl.sum(squares.reshape(tokens, depth), 1) / inputs
        steady = (1.0 / tl.sqrt_rn(mean + eps))[:, None]
        result, result_other = result * steady, result_other * steady
    if gates:
        result = result * tl.sigmoid(result) * result_other
    if adds:
        result += base
    to = out + token[:, None] * outputs + output[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=valid)
