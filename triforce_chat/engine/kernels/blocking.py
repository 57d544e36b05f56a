"""Tiles of products with quantized weights: as many bytes in flight as two programs per multiprocessor can have."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from triforce_chat.engine.kernels.decoding import PROCESSORS
from triforce_chat.engine.kernels.quantized_weight import RUN, QuantizedWeight

MEMORY = 232_448  # bytes of shared memory of one multiprocessor
RESERVED = 1_024  # bytes of it that the system reserves per program
MOST_SUMS = {2: 2048, 4: 512}  # accumulators of a tile that fit the registers, by bytes per element
TILES, MOST_TILES = 2, 3  # in flight per program, wanted and at most
LINE = 128  # bytes of a cache line
PIECES = (LINE, 64, 32, 16)  # candidates for the inputs of a tile that one warp reads
MOST_GROUPED = 16  # tokens up to which a warp takes four runs of a grouped weight at once
SHARED = 4  # bytes that a group shares
WARP = 32  # threads


class FewBlocking(NamedTuple):
    """Compile-time parameters without tensor cores: rows (or pairs) of a program, its warps, pipeline stages."""

    rows: int
    warps: int
    stages: int = 1


class FewCase(NamedTuple):
    """What a tiling is for: tokens, rounded up to a power of two; gated or not; at least so many outputs and inputs."""

    tokens: int
    gated: bool
    outputs: int
    inputs: int
    shape: FewBlocking


# Tilings of grouped weights for a few tokens; the first that applies counts. What is missing is left to tensor cores.
FEW = (
    FewCase(1, False, 16_384, 0, FewBlocking(8, 1)),
    FewCase(1, False, 6000, 0, FewBlocking(8, 2)),
    FewCase(1, False, 0, 0, FewBlocking(4, 2)),
    FewCase(1, True, 0, 0, FewBlocking(4, 1)),
    FewCase(2, False, 0, 0, FewBlocking(8, 2)),
    FewCase(2, True, 0, 0, FewBlocking(4, 2)),
    FewCase(4, False, 0, 0, FewBlocking(4, 2)),
    FewCase(4, True, 0, 0, FewBlocking(4, 2)),
    FewCase(8, False, 0, 0, FewBlocking(4, 2)),
)


class Blocking(NamedTuple):
    """Compile-time parameters: outputs of a tile, bytes that a piece has of each, pipeline stages, warps, pieces.

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


def few_blocking(n: int, outputs: int, inputs: int, gated: bool) -> FewBlocking | None:
    """The tiling of a grouped weight for a few tokens without tensor cores; None where these are quicker."""
    wanted = triton.next_power_of_2(n), gated
    cases = (each for each in FEW if (each.tokens, each.gated) == wanted)
    return next((each.shape for each in cases if outputs >= each.outputs and inputs >= each.inputs), None)


def grouped_blocking(
    n: int, weight: QuantizedWeight, outputs: int, dtype: torch.dtype, gated: bool
) -> Blocking:
    """The tiling of a weight whose groups are scaled one by one: a piece is a run, so that only their number varies."""
    parts, deep = weight.codes.parts, padded(n) <= MOST_GROUPED and not gated
    pieces = 16 if deep else 8
    height = 32 if deep and outputs >= 32 * 2 * PROCESSORS else 16
    wide = height * (2 if gated else 1)
    each = wide * (RUN + SHARED) + RUN * parts * dtype.itemsize * (padded(n) + 1)
    stages = min(MOST_TILES, max(1, (MEMORY // 2 - RESERVED) // (pieces * each))) + 1
    return Blocking(height, RUN, stages, 8 if deep else 4, pieces)


def padded(n: int) -> int:
    """Columns of the tile that holds n tokens."""
    columns: int = max(8, triton.next_power_of_2(n))
    return columns
