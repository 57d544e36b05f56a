"""Linear layers with quantized weights for a few tokens, where reading the weights takes all the time."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.blocking import (
    Blocking,
    FewBlocking,
    GroupedBlocking,
    blocking,
    few_blocking,
    grouped_blocking,
    most_tokens,
    padded,
)
from triforce_chat.engine.kernels.few import multiply_few
from triforce_chat.engine.kernels.grouped import multiply_grouped
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight
from triforce_chat.engine.kernels.rows import Norm


def quantized_linear(
    x: Tensor,
    weight: QuantizedWeight,
    add: Tensor | None = None,
    norm: Norm | None = None,
    gated: bool = False,
    shape: Blocking | GroupedBlocking | FewBlocking | None = None,
) -> Tensor:
    """Norm x [n, I] (optional), multiply by the transposed weight and add ``add`` [n, O] (optional): [n, O].

    ``add`` is a residual or an expanded bias. ``gated``: the weight's rows are gates [M, I] followed by as many others,
    and the result is silu(gates) * others [n, M], for which there is no ``add``. The last dimension of each tensor must
    be contiguous. ``shape`` overrides the tiling, and by its type the kernel.

    No weight is rounded to x's dtype, and products are summed in fp32. The order of a sum depends on the number of rows
    n, and so a result may differ by the rounding to its dtype.
    """
    n = len(x)
    outputs = weight.outputs // (2 if gated else 1)
    out = x.new_empty(n, outputs)
    if shape is None and not weight.whole:
        shape = few_blocking(n, outputs, weight.inputs, gated) or grouped_blocking(n, weight, x.dtype)
    match shape:
        case FewBlocking():
            multiply_few(x, weight, out, add, norm, gated, shape)
        case GroupedBlocking():
            multiply_grouped(x, weight, out, add, norm, gated, shape)
        case _:
            most = most_tokens(x.dtype, gated)
            for part in (slice(first, min(first + most, n)) for first in range(0, n, most)):
                tiles = shape or blocking(part.stop - part.start, outputs, x.dtype, gated)
                added = None if add is None else add[part]
                _multiply_rows(x[part], weight, out[part], added, norm, gated, tiles)
    return out


def _multiply_rows(
    x: Tensor,
    weight: QuantizedWeight,
    out: Tensor,
    add: Tensor | None,
    norm: Norm | None,
    gated: bool,
    shape: Blocking,
) -> None:
    """A weight of bytes with a scale for each row; x times the norm's weight is rounded to x's dtype here."""
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
        0.0 if norm is None else norm.eps,
        x.stride(0),
        data.stride(0),
        scale.stride(0),
        0 if add is None else add.stride(0),
        adds=add is not None,
        norms=norm is not None,
        gates=gated,
        tokens=padded(n),
        height=shape.outputs,
        pieces=shape.warps,
        depth=shape.inputs,
        stages=shape.stages,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )


@triton.jit
def _weighed(part, norm, at, mask):
    """A block of inputs times the norm's weight, and the sums of their squares."""
    squares = tl.sum(part.to(tl.float32) * part.to(tl.float32), 1)
    weigh = tl.load(norm + at, mask=mask, other=0.0)
    return (part.to(tl.float32) * weigh.to(tl.float32)).to(part.dtype), squares


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
    eps,
    x_row,
    data_row,
    scale_row,
    add_row,
    adds: tl.constexpr,
    norms: tl.constexpr,
    gates: tl.constexpr,
    tokens: tl.constexpr,
    height: tl.constexpr,
    pieces: tl.constexpr,
    depth: tl.constexpr,
    stages: tl.constexpr,
):
    output = tl.program_id(0) * height + tl.arange(0, height)
    token = tl.arange(0, tokens)
    row = tl.minimum(output, outputs - 1)
    valid = (output[:, None] < outputs) & (token[None, :] < n)
    # Load early what is needed at the end.
    factor = tl.load(scale + row * scale_row)
    other_factor = tl.load(scale + (outputs + row) * scale_row) if gates else factor
    if adds:
        base = tl.load(add + token[None, :] * add_row + output[:, None], mask=valid, other=0.0).to(tl.float32)

    # Each warp reads its own part of the inputs, so no element is loaded twice.
    piece = tl.arange(0, pieces) * depth
    lane = piece[:, None, None]
    across, down = tl.arange(0, depth)[None, None, :], tl.arange(0, depth)[None, :, None]
    w_at = data + row.to(tl.int64)[None, :, None] * data_row + lane + across
    x_at = x + token[None, None, :] * x_row + lane + down
    total = tl.zeros((pieces, height, tokens), tl.float32)
    other = tl.zeros((pieces, height, tokens), tl.float32)
    squares = tl.zeros((pieces, tokens), tl.float32)
    for start in tl.range(0, inputs, pieces * depth, num_stages=stages):
        inside = lane + across < inputs - start
        w = tl.load(w_at, mask=inside, other=0)
        if gates:
            v = tl.load(w_at + outputs.to(tl.int64) * data_row, mask=inside, other=0)
        w_at += pieces * depth
        some = lane + down < inputs - start
        part = tl.load(x_at + start, mask=(token[None, None, :] < n) & some, other=0.0)
        if norms:
            part, squared = _weighed(part, norm, lane + down + start, some)
            squares += squared
        # 127 is exact in every dtype; via bfloat16, to which Triton converts four bytes at a time.
        total = tl.dot(w.to(tl.bfloat16).to(part.dtype), part, total, input_precision="ieee")
        if gates:
            other = tl.dot(v.to(tl.bfloat16).to(part.dtype), part, other, input_precision="ieee")
    made, made_other = tl.sum(total, 0) * factor[:, None], tl.sum(other, 0) * other_factor[:, None]
    if norms:
        steady = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / inputs + eps)
        made, made_other = made * steady[None, :], made_other * steady[None, :]
    if gates:
        made = made * tl.sigmoid(made) * made_other
    if adds:
        made += base
    to = out + token[None, :] * outputs + output[:, None]
    tl.store(to, made.to(out.dtype.element_ty), mask=valid)
