"""Keys and values in 8 or 4 bits: how groups of tokens become codes and scales, and numbers again.

Keys have a scale for each channel of a group, as some channels are always large; values one for each token (KIVI, arXiv
2402.02750). In 8 bits a code is a signed multiple of its scale; in 4 bits it counts steps from the smallest number.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine.kernels_available import kernels_run

INT8, INT4 = torch.int8, torch.int4  # type: ignore[attr-defined]  # dtypes that stand for the formats
BITS: dict[torch.dtype, int] = {INT8: 8, INT4: 4}
FP8 = torch.float8_e4m3fn  # four bits of exponent and three of mantissa; nothing larger than LARGEST_FP8
LARGEST_FP8 = 448.0
GROUP = 64  # tokens that are quantized together, from a position that is a multiple of it
LARGEST, STEPS = 127, 15  # code of 8 bits, and of 4
SCALE = torch.float16


def format_name(kv: torch.dtype) -> str:
    """A format of keys and values as the settings name it."""
    return "fp8" if kv == FP8 else str(kv).removeprefix("torch.")


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as slots of that dtype can take it: in 8 bits, larger numbers become the largest one, and not NaN."""
    return x.clamp(-LARGEST_FP8, LARGEST_FP8).to(dtype) if dtype == FP8 and x.dtype != FP8 else x


def group_start(position: int) -> int:
    """The first position of the group of ``position``."""
    return position // GROUP * GROUP


def bytes_of(tokens: int, dim: int, bits: int) -> int:
    """Bytes of the keys and values of so many tokens in one KV head, with their share of the scales."""
    codes, scales = 2 * tokens * dim * bits // 8, (1 if bits == 8 else 2) * SCALE.itemsize
    return codes + scales * (tokens + -(-tokens * dim // GROUP))


class QuantizedTokens(NamedTuple):
    """One layer's quantized keys and values, of which the first ``tokens`` are read.

    Codes of 8 bits are int8, with a row for each token; those of 4 bits uint8, with a row for two, the even one in the
    lower half. Each code belongs to one number in 8 bits, a scale, and to two in 4: a scale and the smallest number.
    """

    keys: Tensor  # [Hkv, rows, D]
    values: Tensor  # [Hkv, S/GROUP, rows of a group, D]; on a GPU the rows lie side by side, as its kernels read them
    key_scales: Tensor  # [Hkv, S/GROUP, 1 or 2, D], fp16
    value_scales: Tensor  # [Hkv, S, 1 or 2], fp16
    tokens: int

    @property
    def bits(self) -> int:
        return 8 if self.value_scales.shape[-1] == 1 else 4

    def of_head(self, head: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and the values of one KV head: [tokens, D] each."""
        groups = -(-self.tokens // GROUP)
        rows = groups * GROUP * self.bits // 8
        keys = numbers(self.keys[head, :rows], dtype).unflatten(0, (groups, GROUP))
        values = numbers(self.values[head, :groups].flatten(0, 1), dtype)
        keys = expanded(keys, self.key_scales[head, :groups].to(dtype), 1).flatten(0, 1)
        values = expanded(values, self.value_scales[head, : len(values)].to(dtype), 1)
        return keys[: self.tokens], values[: self.tokens]

    def all_heads(self, dtype: torch.dtype, room: int = 0) -> tuple[Tensor, Tensor]:
        """The keys and the values of all KV heads, then room for more tokens: [Hkv, tokens + room, D] each."""
        if kernels_run(self.keys.device):
            from triforce_chat.engine import kernels

            found: tuple[Tensor, Tensor] = kernels.dequantized(self[:4], self.tokens, dtype, room)
            return found
        heads = [self.of_head(head, dtype) for head in range(len(self.keys))]
        keys, values = (pad(torch.stack(kind), (0, 0, 0, room)) for kind in zip(*heads, strict=True))
        return keys, values

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Quantize keys and values [Hkv, n, D] of whole groups from position ``start`` on."""
        n = keys.shape[1]
        rows = slice(start * self.bits // 8, (start + n) * self.bits // 8)
        groups = slice(start // GROUP, (start + n) // GROUP)
        codes, scales = quantized(keys.float().unflatten(1, (-1, GROUP)), self.bits, 2)
        self.keys[:, rows], self.key_scales[:, groups] = packed(codes.flatten(1, 2), self.bits), scales
        codes, scales = quantized(values.float(), self.bits, 2)
        self.values[:, groups] = packed(codes, self.bits).unflatten(1, (-1, self.values.shape[2]))
        self.value_scales[:, start : start + n] = scales


def quantized(x: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor]:
    """fp32 x as whole numbers, and their scales: in fp16, one number or two in place of all along ``dim``.

    A GPU does the same within forwards (``kernels/quantizing.py``), bit by bit: it divides by no constant.
    """
    if bits == 8:
        scale = (x.abs().amax(dim, keepdim=True) * (1 / LARGEST)).to(SCALE)
        return (x / divisor(scale)).round_().clamp_(-LARGEST, LARGEST), scale
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    low, scale = low.to(SCALE), ((high - low) * (1 / STEPS)).to(SCALE)
    codes = ((x - low.float()) / divisor(scale)).round_().clamp_(0, STEPS)
    return codes, torch.cat([scale, low], dim)


def divisor(scale: Tensor) -> Tensor:
    """fp32 scales, without the zeros of numbers that are all alike, or too small for a scale."""
    return scale.float().masked_fill_(scale == 0, 1.0)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers [Hkv, n, D] as they are kept."""
    if bits == 8:
        return codes.to(torch.int8)
    pairs = codes.to(torch.uint8).unflatten(1, (-1, 2))
    both: Tensor = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return both


def numbers(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The whole numbers of one head's codes: [n, D]."""
    if codes.dtype == torch.int8:
        return codes.to(dtype)
    return torch.stack([codes & STEPS, codes >> 4], 1).flatten(0, 1).to(dtype)


def expanded(codes: Tensor, scales: Tensor, dim: int) -> Tensor:
    """Whole numbers times their scale, in place, plus the smallest number if there is one; both lie along ``dim``."""
    codes *= scales.narrow(dim, 0, 1)
    return codes if scales.shape[dim] == 1 else codes.add_(scales.narrow(dim, 1, 1))
