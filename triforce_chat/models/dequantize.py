"""GGUF's quantized blocks as fp32 numbers, by vectorized torch code; equal to gguf's own numpy code bit by bit.

A block is a row of bytes with the quantized values of 32 or 256 weights and their scales. The products are computed in
the order of gguf's code, which makes the results the same.
"""

from __future__ import annotations

from collections.abc import Callable
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
        target.copy_(BLOCKS[kind](rows).view(-1, weights))
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


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles_of_32(blocks, 2).float() - 8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles_of_32(blocks, 4).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor) -> Tensor:
    numbers = _nibbles_of_32(blocks, 6) | _fifth_bits(blocks, 2)
    return (numbers.float() - 16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    numbers = _nibbles_of_32(blocks, 8) | _fifth_bits(blocks, 4)
    return numbers.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return _view(blocks[:, 2:], torch.int8).float().mul_(_half(blocks, 0))


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and the minimum [n, 8, 1] of each 32 weights: 6-bit numbers in 12 bytes, times an fp16 number each."""
    low, high, rest = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scales = torch.cat((low & 63, (rest & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((high & 63, (rest >> 4) | ((high >> 2) & 48)), dim=1)
    return (_half(blocks, 0) * scales)[:, :, None], (_half(blocks, 2) * minima)[:, :, None]


def _q4_k(blocks: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(blocks)
    numbers = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return numbers.float().mul_(scales).sub_(minima)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(blocks)
    low = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    numbers = low | (_bits(blocks[:, 16:48], 1, dim=1) << 4)
    return numbers.float().mul_(scales).sub_(minima)


def _q6_k(blocks: Tensor) -> Tensor:
    scales = _half(blocks, 208) * _view(blocks[:, 192:208], torch.int8)
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 8, 32)
    high = _bits(blocks[:, 128:192].view(-1, 2, 32), 2, dim=2).view(-1, 8, 32)
    numbers = (low | (high << 4)).float() - 32
    return numbers.view(-1, 16, 16).mul_(scales[:, :, None])


BLOCKS: dict[Kind, Callable[[Tensor], Tensor]] = {
    Kind.Q4_0: _q4_0,
    Kind.Q4_1: _q4_1,
    Kind.Q5_0: _q5_0,
    Kind.Q5_1: _q5_1,
    Kind.Q8_0: _q8_0,
    Kind.Q4_K: _q4_k,
    Kind.Q5_K: _q5_k,
    Kind.Q6_K: _q6_k,
}
