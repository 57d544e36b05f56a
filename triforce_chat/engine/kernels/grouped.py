"""Products of grouped weights with several tokens, on tensor cores.

A program multiplies a block of rows with all tokens, over a share of the inputs; sums of shares are added afterwards,
because a matrix has too few blocks of rows for a whole GPU. A number is its integer times its group's scale, plus the
minimum: fp32, of which tensor cores take a rounded half and then the half that was lost, each in x's dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.blocking import GroupedBlocking, padded
from triforce_chat.engine.kernels.expanding import scale_and_low
from triforce_chat.engine.kernels.quantized_weight import RUN, QuantizedWeight
from triforce_chat.engine.kernels.rows import Norm

COLUMNS = 512  # of a program that adds shares


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
    rows, words = weight.data.shape
    tiles = triton.cdiv(words, shape.bytes)
    share = triton.cdiv(tiles, shape.shares)
    shares = triton.cdiv(tiles, share)
    sums = x.new_empty(shares, n, rows, dtype=torch.float32)
    _multiply_grouped[triton.cdiv(rows, shape.rows), shares](
        x,
        weight.data,
        weight.scale,
        x if norm is None else norm.weight,
        sums,
        n,
        rows,
        words,
        share * shape.bytes,
        x.stride(0),
        weight.data.stride(0),
        weight.scale.stride(0),
        group=weight.group,
        zero=weight.codes.zero,
        norms=norm is not None,
        tokens=max(16, padded(n)),
        height=shape.rows,
        depth=shape.bytes,
        run=RUN,
        stages=shape.stages,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )
    _add_shares[n, triton.cdiv(out.shape[1], COLUMNS)](
        sums,
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
        columns=COLUMNS,
        span=triton.next_power_of_2(inputs),
    )


@triton.jit
def _multiply_grouped(
    x,
    data,
    scale,
    norm,
    sums,
    n,
    rows,
    words,
    share,
    x_row,
    data_row,
    scale_row,
    group: tl.constexpr,
    zero: tl.constexpr,
    norms: tl.constexpr,
    tokens: tl.constexpr,
    height: tl.constexpr,
    depth: tl.constexpr,
    run: tl.constexpr,
    stages: tl.constexpr,
):
    paired: tl.constexpr = data.dtype.element_ty == tl.uint8
    parts: tl.constexpr = 2 if paired else 1
    sided: tl.constexpr = scale.dtype.element_ty == tl.int32
    kind: tl.constexpr = x.dtype.element_ty
    runs: tl.constexpr = depth // run
    output = tl.program_id(0) * height + tl.arange(0, height)
    row = tl.minimum(output, rows - 1).to(tl.int64)
    token, lane, lap = tl.arange(0, tokens), tl.arange(0, depth), tl.arange(0, runs)
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, words)
    w_at = data + row[:, None] * data_row + lane[None, :]
    shared_at = scale + row[:, None] * scale_row
    # Where the inputs of the first integers of the bytes lie.
    places = lane // run * (run * parts) + lane % run
    x_at = x + token[:, None] * x_row + places[None, :]
    known = (token < n)[:, None]
    total = tl.zeros((height, tokens), tl.float32)
    for start in tl.range(first, last, depth, num_stages=stages):
        inside = (lane < last - start)[None, :]
        w = tl.load(w_at + start, mask=inside, other=0)
        group_at = (start // run + lap) * (run * parts) // group
        shared = tl.load(shared_at + group_at[None, :], mask=(lap * run < last - start)[None, :], other=0)
        if sided:
            factor, least = scale_and_low(shared)
        else:
            factor = shared
            least = -zero * shared
        for half in tl.static_range(parts):
            at = start * parts + half * run
            part = tl.load(x_at + at, mask=known & inside, other=0.0)
            if norms:
                weigh = tl.load(norm + places + at, mask=lane < last - start, other=0.0)
                part = (part.to(tl.float32) * weigh.to(tl.float32)[None, :]).to(kind)
            codes = (((w >> (4 * half)) & 15) if paired else w).to(tl.float32).reshape(height, runs, run)
            number = (codes * factor[:, :, None] + least[:, :, None]).reshape(height, depth)
            rounded = number.to(kind)
            total = tl.dot(rounded, tl.trans(part), total, input_precision="ieee")
            if kind != tl.float32:
                lost = (number - rounded.to(tl.float32)).to(kind)
                total = tl.dot(lost, tl.trans(part), total)
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
    columns: tl.constexpr,
    span: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = output < outputs
    made = tl.zeros((columns,), tl.float32)
    other = made
    for share in range(shares):
        at = sums + (share * n + token) * rows + output
        made += tl.load(at, mask=inside, other=0.0)
        if gates:
            other += tl.load(at + outputs, mask=inside, other=0.0)
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
