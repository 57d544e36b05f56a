"""Quantizes the group of tokens that a forward fills, on the device alone, and turns codes into numbers again."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triforce_chat.engine.kernels.quantized_decoding import Quantized

EIGHTH = tl.constexpr(1 / 127)  # of the largest number: the scale of signed codes of 8 bits
FOURTH = tl.constexpr(1 / 15)  # of the range: that of codes of 4 bits, from the smallest number on
# fp32 numbers up to 2**22 lose what is behind the point beside it, rounded to even.
WHOLE = tl.constexpr(12_582_912.0)


def quantize_full(keys: Tensor, values: Tensor, before: Quantized, at: Tensor, n: int) -> None:
    """Write the codes and scales of the group that n tokens fill, if they fill one; they are fewer than a group's.

    keys and values [P, Hkv, group, D] are those of the newest groups, group g in place g % P, the new tokens' among
    them; the last dimension is contiguous. ``at`` is a device tensor with one integer, the tokens before the new ones.
    """
    places, heads, width, dim = keys.shape
    _quantize_full[(heads, 2)](
        keys,
        values,
        *before,
        at,
        n,
        *keys.stride()[:3],
        *values.stride()[:3],
        *(part.stride(0) for part in before),
        places=places,
        width=width,
        dim=dim,
        bits=8 if before[0].dtype == torch.int8 else 4,
        num_warps=4,
    )


def dequantized(before: Quantized, tokens: int, dtype: torch.dtype, room: int = 0) -> tuple[Tensor, Tensor]:
    """The numbers that the codes of the first ``tokens`` stand for, rounded once, then ``room`` for more tokens.

    Returns keys and values [Hkv, tokens + room, D].
    """
    heads, slots, _ = before[3].shape
    width, dim = slots // before[2].shape[1], before[0].shape[2]
    keys, values = (
        torch.empty((heads, tokens + room, dim), dtype=dtype, device=before[0].device) for _ in range(2)
    )
    if tokens:
        _dequantize[(triton.cdiv(tokens, width), heads)](
            *before,
            keys,
            values,
            tokens,
            *(part.stride(0) for part in (*before, keys, values)),
            width=width,
            dim=dim,
            bits=8 if before[0].dtype == torch.int8 else 4,
            num_warps=4,
        )
    return keys, values


@triton.jit(do_not_specialize=["tokens"])
def _dequantize(
    key_codes,
    value_codes,
    key_scales,
    value_scales,
    keys,
    values,
    tokens,
    key_codes_head,
    value_codes_head,
    key_scales_head,
    value_scales_head,
    keys_head,
    values_head,
    width: tl.constexpr,
    dim: tl.constexpr,
    bits: tl.constexpr,
):
    group, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    numbers: tl.constexpr = 1 if bits == 8 else 2
    lane, column = tl.arange(0, width), tl.arange(0, dim)
    there = (group * width + lane < tokens)[:, None]
    # In 4 bits a byte has an even token and the next one.
    key_code = (group * width + lane)[:, None] * bits // 8 * dim + column[None, :]
    stored: tl.constexpr = width * bits // 8
    value_code = group * stored * dim + (lane * bits // 8)[:, None] + column[None, :] * stored
    shift = (lane % 2 * 4)[:, None]
    to = (group * width + lane)[:, None] * dim + column[None, :]

    scale_at = key_scales + head * key_scales_head + group * numbers * dim + column[None, :]
    x = tl.load(key_codes + head * key_codes_head + key_code, mask=there, other=0).to(tl.int32)
    x = x if bits == 8 else (x >> shift) & 15
    x = x.to(tl.float32) * tl.load(scale_at).to(tl.float32)
    x = x if bits == 8 else x + tl.load(scale_at + dim).to(tl.float32)
    tl.store(keys + head * keys_head + to, x.to(keys.dtype.element_ty), mask=there)

    scale_at = value_scales + head * value_scales_head + (group * width + lane)[:, None] * numbers
    x = tl.load(value_codes + head * value_codes_head + value_code, mask=there, other=0).to(tl.int32)
    x = x if bits == 8 else (x >> shift) & 15
    x = x.to(tl.float32) * tl.load(scale_at, mask=there, other=0.0).to(tl.float32)
    x = x if bits == 8 else x + tl.load(scale_at + 1, mask=there, other=0.0).to(tl.float32)
    tl.store(values + head * values_head + to, x.to(values.dtype.element_ty), mask=there)


@triton.jit
def _quantize_full(
    keys,
    values,
    key_codes,
    value_codes,
    key_scales,
    value_scales,
    at,
    n,
    keys_place,
    keys_head,
    keys_slot,
    values_place,
    values_head,
    values_slot,
    key_codes_head,
    value_codes_head,
    key_scales_head,
    value_scales_head,
    places: tl.constexpr,
    width: tl.constexpr,
    dim: tl.constexpr,
    bits: tl.constexpr,
):
    head, of_values = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(at).to(tl.int32)
    group = start // width
    if (start + n) // width == group:
        return
    stored: tl.constexpr = width * bits // 8
    place, group = group % places, group.to(tl.int64)
    if of_values == 0:
        keys += place * keys_place + head * keys_head
        key_codes += head * key_codes_head + group * stored * dim
        quantize_keys(
            keys, key_codes, key_scales + head * key_scales_head, group, keys_slot, width, dim, bits
        )
    else:
        values += place * values_place + head * values_head
        value_codes += head * value_codes_head + group * stored * dim
        value_scales += head * value_scales_head
        quantize_values(values, value_codes, value_scales, group, values_slot, width, dim, bits)


@triton.jit
def quantize_keys(
    keys, codes, scales, group, slot, width: tl.constexpr, dim: tl.constexpr, bits: tl.constexpr
):
    """One head's keys of a group, with a scale for each channel."""
    pair, column = tl.arange(0, width // 2), tl.arange(0, dim)
    even_at = keys + 2 * pair[:, None] * slot + column[None, :]
    even, odd = tl.load(even_at).to(tl.float32), tl.load(even_at + slot).to(tl.float32)
    low = tl.minimum(tl.min(even, 0), tl.min(odd, 0))
    scale, low = scale_of(low, tl.maximum(tl.max(even, 0), tl.max(odd, 0)), bits)
    numbers: tl.constexpr = 1 if bits == 8 else 2
    to = scales + group * numbers * dim + column
    tl.store(to, scale)
    if bits == 4:
        tl.store(to + dim, low)
    even, odd = (
        coded(even, scale[None, :], low[None, :], bits),
        coded(odd, scale[None, :], low[None, :], bits),
    )
    if bits == 8:
        at = codes + 2 * pair[:, None] * dim + column[None, :]
        tl.store(at, even.to(tl.int8))
        tl.store(at + dim, odd.to(tl.int8))
    else:
        tl.store(codes + pair[:, None] * dim + column[None, :], both(even, odd))


@triton.jit
def quantize_values(
    values, codes, scales, group, slot, width: tl.constexpr, dim: tl.constexpr, bits: tl.constexpr
):
    """One head's values of a group, with a scale for each token."""
    pair, column = tl.arange(0, width // 2), tl.arange(0, dim)
    even_at = values + 2 * pair[:, None] * slot + column[None, :]
    even, odd = tl.load(even_at).to(tl.float32), tl.load(even_at + slot).to(tl.float32)
    scale, low = scale_of(tl.min(even, 1), tl.max(even, 1), bits)
    odd_scale, odd_low = scale_of(tl.min(odd, 1), tl.max(odd, 1), bits)
    numbers: tl.constexpr = 1 if bits == 8 else 2
    to = scales + group * numbers * width + 2 * numbers * pair
    tl.store(to, scale)
    tl.store(to + numbers, odd_scale)
    if bits == 4:
        tl.store(to + 1, low)
        tl.store(to + 3, odd_low)
    even = coded(even, scale[:, None], low[:, None], bits)
    odd = coded(odd, odd_scale[:, None], odd_low[:, None], bits)
    stored: tl.constexpr = width * bits // 8  # side by side
    if bits == 8:
        at = codes + 2 * pair[:, None] + column[None, :] * stored
        tl.store(at, even.to(tl.int8))
        tl.store(at + 1, odd.to(tl.int8))
    else:
        tl.store(codes + pair[:, None] + column[None, :] * stored, both(even, odd))


@triton.jit
def scale_of(low, high, bits: tl.constexpr):
    """The scale of numbers from ``low`` to ``high``, and the smallest one, both in fp16."""
    span = tl.maximum(-low, high) * EIGHTH if bits == 8 else (high - low) * FOURTH
    return span.to(tl.float16), low.to(tl.float16)


@triton.jit
def coded(x, scale, low, bits: tl.constexpr):
    """fp32 x as whole numbers, still in fp32."""
    divisor = tl.where(scale == 0, 1.0, scale.to(tl.float32))
    x = x if bits == 8 else x - low.to(tl.float32)
    x = tl.div_rn(x, tl.broadcast_to(divisor, x.shape)) + WHOLE - WHOLE
    least: tl.constexpr = -127.0 if bits == 8 else 0.0
    most: tl.constexpr = 127.0 if bits == 8 else 15.0
    return tl.minimum(tl.maximum(x, least), most)


@triton.jit
def both(even, odd):
    """The codes of two tokens in one byte."""
    return (even.to(tl.int32) | (odd.to(tl.int32) << 4)).to(tl.uint8)
