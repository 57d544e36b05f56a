"""Tiles of products with quantized weights: as many bytes in flight as two programs per multiprocessor can have."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton

from triforce_chat.engine.kernels import chip
from triforce_chat.engine.kernels.decoding import PROCESSORS
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight

MOST_SUMS = {2: 2048, 4: 512}  # accumulators of a tile that fit the registers, by bytes per element
TILES, MOST_TILES = 2, 3  # in flight per program, wanted and at most
LINE = 128  # bytes of a cache line
PIECES = (LINE, 64, 32, 16)  # candidates for the inputs of a tile that one warp reads
LEAST_ROWS, MOST_TOKENS = 16, 1024  # of a tile
GROUPED_ROWS = 64  # of a tile of a grouped weight: what four warps give to tensor cores at once
GROUPED_BYTES = 64  # of each row in a tile of a grouped weight
FEWER_PROGRAMS = 32  # tokens beyond which registers hold fewer than four programs' sums of a grouped weight
LEAST_TILES, MOST_SHARES = 4, 8  # of a grouped weight's inputs: tiles of a share, and shares
WARP = 32  # threads


class FewBlocking(NamedTuple):
    """Compile-time parameters without tensor cores: rows (or pairs) of a program, its warps, pipeline stages."""

    rows: int
    warps: int
    stages: int = 1


class FewCase(NamedTuple):
    """What a tiling is for: tokens, rounded up to a power of two; gated or not; at least so many outputs.

    ``most``: numbers of the weight, beyond which tensor cores are quicker.
    """

    tokens: int
    gated: bool
    outputs: int
    shape: FewBlocking
    most: float = math.inf


# Tilings of grouped weights for a few tokens; the first that applies counts. What is missing is left to tensor cores.
FEW = (
    FewCase(1, False, 16_384, FewBlocking(8, 1)),
    FewCase(1, False, 6000, FewBlocking(8, 2)),
    FewCase(1, False, 0, FewBlocking(4, 2)),
    FewCase(1, True, 0, FewBlocking(4, 1)),
    FewCase(2, False, 0, FewBlocking(8, 2)),
    FewCase(2, True, 0, FewBlocking(4, 2)),
    FewCase(4, False, 0, FewBlocking(4, 2), 2**24),
    FewCase(4, True, 0, FewBlocking(4, 2), 2**24),
)


class GroupedBlocking(NamedTuple):
    """Compile-time parameters on tensor cores: rows of a tile, stages, warps; shares of inputs."""

    rows: int
    stages: int
    warps: int
    shares: int


class Blocking(NamedTuple):
    """Compile-time parameters: outputs of a tile, bytes that a warp reads of each, pipeline stages, warps."""

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
    height = 2 * LEAST_ROWS if wanted and sums <= MOST_SUMS[dtype.itemsize] else LEAST_ROWS
    room = chip.share()
    pieces = PIECES[-1:] if dtype == torch.float32 else PIECES

    def tiles(inputs: int) -> int:
        return room // tile_bytes(n, Blocking(height, inputs, 0), dtype, gated)

    inputs = next((each for each in pieces if tiles(each) >= TILES), pieces[-1])
    return Blocking(height, inputs, min(MOST_TILES, tiles(inputs)) + 1)


def most_tokens(dtype: torch.dtype, gated: bool = False) -> int:
    """Tokens of whose inputs the chip holds a tile twice: more are multiplied one part after the other.

    As they are loaded, and again as they are multiplied; some versions of Triton need both at once.
    """
    least = Blocking(LEAST_ROWS, PIECES[-1], 1)
    counts = (MOST_TOKENS >> i for i in range(MOST_TOKENS.bit_length()))
    return next(n for n in counts if 2 * tile_bytes(n, least, dtype, gated) <= chip.shared_memory())


def tile_bytes(n: int, shape: Blocking, dtype: torch.dtype, gated: bool = False) -> int:
    """Bytes of shared memory that one pipeline stage takes: weights, x and the norm's weight."""
    heights = 2 * shape.outputs if gated else shape.outputs
    each: int = heights + dtype.itemsize * (padded(n) + 1)
    return shape.warps * shape.inputs * each


def few_blocking(n: int, outputs: int, inputs: int, gated: bool) -> FewBlocking | None:
    """The tiling of a grouped weight for a few tokens without tensor cores; None where these are quicker."""
    wanted, numbers = (triton.next_power_of_2(n), gated), outputs * inputs * (2 if gated else 1)
    cases = (each for each in FEW if (each.tokens, each.gated) == wanted)
    return next((each.shape for each in cases if outputs >= each.outputs and numbers <= each.most), None)


def grouped_blocking(n: int, weight: QuantizedWeight, dtype: torch.dtype) -> GroupedBlocking:
    """The tiling of a grouped weight on tensor cores, with shares enough for four programs per multiprocessor.

    With many tokens a program's sums are so large that fewer programs run at once; so each loads further ahead, if the
    chip has room for that. fp32 inputs are not loaded ahead where it has none.
    """
    stages = 4 if n > FEWER_PROGRAMS else 3
    if not chip.is_roomy():
        stages = 3 if dtype.itemsize == 2 else 1
    most = max(1, weight.data.shape[1] // (LEAST_TILES * GROUPED_BYTES))
    blocks = triton.cdiv(weight.outputs, GROUPED_ROWS)
    return GroupedBlocking(GROUPED_ROWS, stages, 4, min(most, MOST_SHARES, max(1, 4 * PROCESSORS // blocks)))


def padded(n: int) -> int:
    """Columns of the tile that holds n tokens."""
    columns: int = max(8, triton.next_power_of_2(n))
    return columns
