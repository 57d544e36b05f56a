"""Linear layers with 8-bit weights for a few tokens, where reading the weights takes all the time."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.decoding import PROCESSORS

LARGEST = 127  # magnitude of a symmetric 8-bit integer
MEMORY = 232_448  # bytes of shared memory of one multiprocessor
RESERVED = 1_024  # bytes of it that the system reserves per program
MOST_SUMS = {2: 2048, 4: 512}  # accumulators of a tile that fit the registers, by bytes per element
TILES, MOST_TILES = 2, 3  # in flight per program, wanted and at most
LINE = 128  # bytes of a cache line
PIECES = (LINE, 64, 32, 16)  # candidates for the inputs of a tile that one warp reads


class Int8Weight(NamedTuple):
    """A weight [O, I] as 8-bit integers with one scale per output: ``data`` [O, I], ``scale`` fp32 [O]."""

    data: Tensor
    scale: Tensor


def quantize(weight: Tensor) -> Int8Weight:
    """Round a weight [O, I] to 8 bits, each row scaled by its largest magnitude."""
    scale = weight.abs().amax(1).float() / LARGEST
    divisor = torch.where(scale > 0, scale, 1.0)
    return Int8Weight((weight / divisor[:, None]).round().to(torch.int8), scale)


class Blocking(NamedTuple):
    """Compile-time parameters: outputs of a tile, inputs that each warp reads of it, pipeline stages, warps."""

    outputs: int
    inputs: int
    stages: int
    warps: int = 4


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
    return shape.warps * shape.inputs * each


def padded(n: int) -> int:
    """Columns of the tile that holds n tokens."""
    columns: int = max(8, triton.next_power_of_2(n))
    return columns


class Norm(NamedTuple):
    """Parameters of an RMS norm of the input: ``weight`` [I], and ``eps`` against division by zero."""

    weight: Tensor
    eps: float


def int8_linear(
    x: Tensor,
    weight: Int8Weight,
    add: Tensor | None = None,
    norm: Norm | None = None,
    gated: bool = False,
    shape: Blocking | None = None,
) -> Tensor:
    """Norm x [n, I] (optional), multiply by the transposed weight and add ``add`` [n, O] (optional): [n, O].

    ``add`` is a residual or an expanded bias. ``gated``: the weight's rows are gates [M, I] followed by as many others,
    and the result is silu(gates) * others [n, M], for which there is no ``add``. The last dimension of each tensor must
    be contiguous. ``shape`` overrides the tiling.
    """
    n, inputs = x.shape
    outputs = weight.data.shape[0] // (2 if gated else 1)
    shape = shape or blocking(n, outputs, x.dtype, gated)
    out = x.new_empty(n, outputs)
    _multiply[(triton.cdiv(outputs, shape.outputs),)](
        x,
        weight.data,
        weight.scale,
        x if norm is None else norm.weight,
        out if add is None else add,
        out,
        n,
        outputs,
        inputs,
        0.0 if norm is None else norm.eps,
        x.stride(0),
        weight.data.stride(0),
        0 if add is None else add.stride(0),
        adds=add is not None,
        norms=norm is not None,
        gates=gated,
        tokens=padded(n),
        height=shape.outputs,
        pieces=shape.warps,
        depth=shape.inputs,
        num_stages=shape.stages,
        num_warps=shape.warps,
    )
    return out


@triton.jit
def _add_product(total, weights, mask, part):
    """Add the product of a block of 8-bit weights with a block of inputs."""
    # 127 is exact in every dtype; via bfloat16, to which Triton converts four bytes at a time.
    w = tl.load(weights, mask=mask, other=0).to(tl.bfloat16).to(part.dtype)
    return tl.dot(w, part, total, input_precision="ieee")


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
    add_row,
    adds: tl.constexpr,
    norms: tl.constexpr,
    gates: tl.constexpr,
    tokens: tl.constexpr,
    height: tl.constexpr,
    pieces: tl.constexpr,
    depth: tl.constexpr,
):
    output = tl.program_id(0) * height + tl.arange(0, height)
    token = tl.arange(0, tokens)
    row = tl.minimum(output, outputs - 1)
    valid = (output[:, None] < outputs) & (token[None, :] < n)
    # Load early what is needed at the end.
    factor = tl.load(scale + row)
    other_factor = tl.load(scale + outputs + row) if gates else factor
    if adds:
        base = tl.load(add + token[None, :] * add_row + output[:, None], mask=valid, other=0.0).to(tl.float32)

    # Each warp reads its own part of the inputs, so no element is loaded twice.
    lane = tl.arange(0, pieces)[:, None, None] * depth
    across, down = lane + tl.arange(0, depth)[None, None, :], lane + tl.arange(0, depth)[None, :, None]
    w_at = data + row.to(tl.int64)[None, :, None] * data_row + across
    x_at = x + token[None, None, :] * x_row + down
    total = tl.zeros((pieces, height, tokens), tl.float32)
    other = tl.zeros((pieces, height, tokens), tl.float32)
    squares = tl.zeros((pieces, tokens), tl.float32)
    for start in range(0, inputs, pieces * depth):
        part = tl.load(x_at + start, mask=(token[None, None, :] < n) & (down < inputs - start), other=0.0)
        if norms:
            squares += tl.sum(part.to(tl.float32) * part.to(tl.float32), 1)
            weigh = tl.load(norm + start + down, mask=down < inputs - start, other=0.0)
            part = (part.to(tl.float32) * weigh.to(tl.float32)).to(part.dtype)
        inside = across < inputs - start
        total = _add_product(total, w_at + start, inside, part)
        if gates:
            other = _add_product(other, w_at + outputs.to(tl.int64) * data_row + start, inside, part)
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
