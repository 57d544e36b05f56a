"""GGUF's quantized blocks as integers with scales, and as fp32 numbers.

The code is vectorized by torch; its numbers are equal to those of gguf's own numpy code bit by bit. A block is a row of
bytes with the quantized values of 32 or 256 weights and their scales. The products are computed in the order of gguf's
code, which makes the results the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

CHUNK = 1 << 20  # weights that are dequantized at a time: temporary tensors stay in the processor's cache


def dequantize(data: np.ndarray[Any, Any], kind: Kind) -> np.ndarray[Any, Any]:
    """Bytes [..., bytes of a row] as fp32 [..., weights of a row].

    Raises NotImplementedError for a type of block that gguf does not know either.
    """
    if kind == Kind.BF16:
        return _view(_tensor(data), torch.bfloat16).float().numpy()
    if kind not in BLOCKS:
        numbers: np.ndarray[Any, Any] = gguf.quants.dequantize(data, kind)
        return numbers
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = _tensor(data).view(-1, size)
    made = torch.empty(len(blocks), weights)
    at_a_time = CHUNK // weights
    for rows, target in zip(blocks.split(at_a_time), made.split(at_a_time), strict=True):
        target.copy_(BLOCKS[kind](rows).values().view(-1, weights))
    return made.view(*data.shape[:-1], -1).numpy()


def _tensor(data: np.ndarray[Any, Any]) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8).view(data.shape)


def _view(columns: Tensor, dtype: torch.dtype) -> Tensor:
    return columns.contiguous().view(dtype)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The fp16 numbers [n, 1] at byte ``at`` of the blocks."""
    return _view(blocks[:, at : at + 2], torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[n, groups, bytes] -> [n, groups, 2, bytes]: the lower halves of a group's bytes, then the upper ones."""
    return torch.stack((packed & 15, packed >> 4), dim=2)


def _bits(packed: Tensor, width: int, dim: int) -> Tensor:
    """Each byte's ``width``-bit numbers, lowest first, along a new dimension ``dim``."""
    mask = (1 << width) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, width)], dim=dim)


def _nibbles_of_32(blocks: Tensor, at: int) -> Tensor:
    """The 4-bit numbers [n, 32] at byte ``at`` of the blocks."""
    return _nibbles(blocks[:, None, at : at + 16]).flatten(1)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """The fifth bits [n, 32] of 5-bit numbers, in their place, from 4 bytes at byte ``at``."""
    return _bits(blocks[:, at : at + 4], 1, dim=2).flatten(1) << 4


@dataclass(frozen=True, slots=True)
class Groups:
    """The weights of blocks, in groups that share a scale: (number - zero) * scale + minimum."""

    numbers: Tensor  # [n, groups, weights of a group], 8 bits each
    scale: Tensor  # fp32 [n, groups]
    minimum: Tensor | None = None  # fp32 [n, groups]; None for zero
    zero: int = 0

    def values(self) -> Tensor:
        """fp32 [n, groups, weights of a group]."""
        made = self.numbers.float()
        if self.zero:
            made -= self.zero
        made.mul_(self.scale[:, :, None])
        return made if self.minimum is None else made.add_(self.minimum[:, :, None])


def _one(numbers: Tensor) -> Tensor:
    """[n, 32] as a single group of each block."""
    return numbers[:, None]


def _q4_0(blocks: Tensor) -> Groups:
    return Groups(_one(_nibbles_of_32(blocks, 2)), _half(blocks, 0), zero=8)


def _q4_1(blocks: Tensor) -> Groups:
    return Groups(_one(_nibbles_of_32(blocks, 4)), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Tensor) -> Groups:
    return Groups(_one(_nibbles_of_32(blocks, 6) | _fifth_bits(blocks, 2)), _half(blocks, 0), zero=16)


def _q5_1(blocks: Tensor) -> Groups:
    return Groups(
        _one(_nibbles_of_32(blocks, 8) | _fifth_bits(blocks, 4)), _half(blocks, 0), _half(blocks, 2)
    )


def _q8_0(blocks: Tensor) -> Groups:
    return Groups(_one(_view(blocks[:, 2:], torch.int8)), _half(blocks, 0))


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and the minimum [n, 8] of each 32 weights: 6-bit numbers in 12 bytes, times an fp16 number each."""
    low, high, rest = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scales = torch.cat((low & 63, (rest & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((high & 63, (rest >> 4) | ((high >> 2) & 48)), dim=1)
    return _half(blocks, 0) * scales, -(_half(blocks, 2) * minima)


def _q4_k(blocks: Tensor) -> Groups:
    numbers = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return Groups(numbers, *_scales_and_minima(blocks))


def _q5_k(blocks: Tensor) -> Groups:
    low = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    return Groups(low | (_bits(blocks[:, 16:48], 1, dim=1) << 4), *_scales_and_minima(blocks))


def _q6_k(blocks: Tensor) -> Groups:
    scales = _half(blocks, 208) * _view(blocks[:, 192:208], torch.int8)
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 8, 32)
    high = _bits(blocks[:, 128:192].view(-1, 2, 32), 2, dim=2).view(-1, 8, 32)
    return Groups((low | (high << 4)).view(-1, 16, 16), scales, zero=32)


BLOCKS: dict[Kind, Callable[[Tensor], Groups]] = {
    Kind.Q4_0: _q4_0,
    Kind.Q4_1: _q4_1,
    Kind.Q5_0: _q5_0,
    Kind.Q5_1: _q5_1,
    Kind.Q8_0: _q8_0,
    Kind.Q4_K: _q4_k,
    Kind.Q5_K: _q5_k,
    Kind.Q6_K: _q6_k,
}
