"""Linear layers with 8-bit weights for a few tokens, where time is the time to read the weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.decoding import PROCESSORS

LARGEST = 127  # of a symmetric 8-bit number
X_NUMBERS, WEIGHT_NUMBERS = 8192, 16384  # in one tile
NARROW = 64  # inputs of a tile in fp32, whose products are made without tensor cores, in registers
ROOM = 98304  # bytes of tiles in flight: two programs fit a processor


class Int8Weight(NamedTuple):
    """A weight [O, I] as 8-bit numbers with one scale for each output: ``data`` [O, I], ``scale`` fp32 [O]."""

    data: Tensor
    scale: Tensor


def quantize(weight: Tensor) -> Int8Weight:
    """The nearest 8-bit numbers to a weight [O, I], each row by its largest magnitude."""
    scale = weight.abs().amax(1).float() / LARGEST
    divisor = torch.where(scale > 0, scale, 1.0)
    return Int8Weight((weight / divisor[:, None]).round().to(torch.int8), scale)


class Blocking(NamedTuple):
    """How the kernel is built: outputs and inputs of a tile, stages of its pipeline, warps of a program."""

    outputs: int
    inputs: int
    stages: int
    warps: int


def blocking(n: int, outputs: int, dtype: torch.dtype) -> Blocking:
    """Tall tiles where there are outputs enough for every processor, so that x is read less often."""
    height = next((tall for tall in (64, 32) if outputs >= (tall - 8) * PROCESSORS), 16)
    depth = min(512, WEIGHT_NUMBERS // height, X_NUMBERS // padded(n))
    if dtype == torch.float32:
        depth = NARROW
    stages = ROOM // (depth * (height + dtype.itemsize * padded(n))) + 1
    return Blocking(height, depth, min(5, stages), 2 if height == 16 else 4)


def padded(n: int) -> int:
    """Rows of the tile that holds n tokens."""
    rows: int = max(16, triton.next_power_of_2(n))
    return rows


def int8_linear(
    x: Tensor, weight: Int8Weight, add: Tensor | None = None, shape: Blocking | None = None
) -> Tensor:
    """x [n, I] times the weight transposed, plus ``add`` [n, O] (a residual or an expanded bias): [n, O].

    The last dimension of each must be contiguous. ``shape`` overrides the tiles.
    """
    n, inputs = x.shape
    outputs = weight.data.shape[0]
    shape = shape or blocking(n, outputs, x.dtype)
    out = x.new_empty(n, outputs)
    _multiply[(triton.cdiv(outputs, shape.outputs),)](
        x,
        weight.data,
        weight.scale,
        out if add is None else add,
        out,
        n,
        outputs,
        inputs,
        x.stride(0),
        weight.data.stride(0),
        0 if add is None else add.stride(0),
        adds=add is not None,
        tokens=padded(n),
        height=shape.outputs,
        depth=shape.inputs,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )
    return out


@triton.jit
def _multiply(
    x,
    data,
    scale,
    add,
    out,
    n,
    outputs,
    inputs,
    x_row,
    data_row,
    add_row,
    adds: tl.constexpr,
    tokens: tl.constexpr,
    height: tl.constexpr,
    depth: tl.constexpr,
):
    output = tl.program_id(0) * height + tl.arange(0, height)
    token, lane = tl.arange(0, tokens), tl.arange(0, depth)
    w_at = data + tl.minimum(output, outputs - 1).to(tl.int64)[None, :] * data_row + lane[:, None]
    x_at = x + token[:, None] * x_row + lane[None, :]
    total = tl.zeros((tokens, height), tl.float32)
    for start in range(0, inputs, depth):
        left = lane < inputs - start
        w = tl.load(w_at + start, mask=left[:, None], other=0)
        part = tl.load(x_at + start, mask=(token[:, None] < n) & left[None, :], other=0.0)
        # 127 is exact in every dtype; bfloat16 first, for which Triton converts four bytes at a time.
        w = w.to(tl.bfloat16).to(part.dtype)
        total = tl.dot(part, w, total, input_precision="ieee")
    total *= tl.load(scale + output, mask=output < outputs, other=0.0)[None, :]
    valid = (token[:, None] < n) & (output[None, :] < outputs)
    if adds:
        at = add + token[:, None] * add_row + output[None, :]
        total += tl.load(at, mask=valid, other=0.0).to(tl.float32)
    to = out + token[:, None] * outputs + output[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=valid)
