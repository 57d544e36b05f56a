"""Operations on single tokens: norms, rotary embeddings and storing keys and values, the gated activation."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_FP8 = tl.constexpr(448.0)  # of e4m3
ACTIVATIONS = 1024  # elements of a gated activation computed by one program


class Norm(NamedTuple):
    """Parameters of an RMS norm of the input: ``weight`` [I], and ``eps`` against division by zero."""

    weight: Tensor
    eps: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of the rows of x [n, C] or [n, H, C] with weight [C]; returns a contiguous tensor.

    As in transformers' LlamaRMSNorm, the normalised row is rounded to x's dtype before it is multiplied by the weight.
    Only the last dimension of x must be contiguous.
    """
    width, inner = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, weight.dtype), device=x.device)
    block = triton.next_power_of_2(width)
    stride = x.stride(1) if x.dim() == 3 else 0
    _norm_row[(x.shape[0] * inner,)](
        x,
        weight,
        out,
        x.stride(0),
        stride,
        inner,
        width,
        eps,
        block=block,
        num_warps=warps(block),
    )
    return out


def warps(block: int) -> int:
    """Warps for one row of ``block`` elements: 16 bytes per thread if the row is long enough."""
    return min(16, max(1, block // 256))


@triton.jit
def _norm_row(x, weight, out, outer_stride, inner_stride, inner, width, eps, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    valid = column < width
    at = x + (row // inner) * outer_stride + (row % inner) * inner_stride
    values = tl.load(at + column, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(values * values, 0) / width
    normal = (values * (1.0 / tl.sqrt_rn(mean + eps))).to(x.dtype.element_ty)
    scaled = normal.to(tl.float32) * tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, scaled.to(out.dtype.element_ty), mask=valid)


def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    factor: float,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    places: Tensor | None = None,
) -> None:
    """Apply rotary embeddings to queries and keys in place, and store keys and values in the cache.

    q [n, Hq, D], k and v [n, Hkv, D]; ``positions`` [n] are integers, ``frequencies`` [D/2] fp32 and contiguous. As in
    transformers, cos and sin of their products are computed in fp32, multiplied by ``factor`` and rounded to q's dtype.
    keys and values [Hkv, S, D] are written in slots ``at`` .. ``at+n-1``, where ``at`` is a device tensor with one
    integer. With ``places`` [n] they are [P, Hkv, S, D], and token i goes to slot ``at[i]`` of place ``places[i]``, or
    nowhere if that slot is negative. The last dimension of each tensor must be contiguous.
    """
    n, query_heads, dim = q.shape
    kv_heads = k.shape[1]
    half = dim // 2
    strides = [stride for each in (q, k, v) for stride in each.stride()[:2]]
    strides += [stride for each in (keys, values) for stride in each.stride()[-3:-1]]
    _rotate_head[(n, query_heads + 2 * kv_heads)](
        q,
        k,
        v,
        positions,
        frequencies,
        factor,
        keys,
        values,
        at,
        at if places is None else places,
        *strides,
        keys.stride(0),
        values.stride(0),
        query_heads,
        kv_heads,
        several=places is not None,
        half=half,
        block=triton.next_power_of_2(half),
        num_warps=1,
    )


@triton.jit
def _rotate_head(
    q,
    k,
    v,
    positions,
    frequencies,
    factor,
    keys,
    values,
    at,
    places,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    keys_head,
    keys_slot,
    values_head,
    values_slot,
    keys_place,
    values_place,
    query_heads,
    kv_heads,
    several: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
):
    token, which = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    low = tl.arange(0, block)
    valid = low < half
    stored = valid
    if several:
        slot = tl.load(at + token).to(tl.int64)
        place = tl.load(places + token).to(tl.int64)
        keys += place * keys_place
        values += place * values_place
        stored = low < tl.where(slot >= 0, half, 0)
    else:
        slot = tl.load(at).to(tl.int64) + token
    if which >= query_heads + kv_heads:
        head = which - query_heads - kv_heads
        source = v + token * v_token + head * v_head + low
        target = values + head * values_head + slot * values_slot + low
        tl.store(target, kept(tl.load(source, mask=valid), values), mask=stored)
        tl.store(target + half, kept(tl.load(source + half, mask=valid), values), mask=stored)
    else:
        position = tl.load(positions + token).to(tl.float32)
        angle = position * tl.load(frequencies + low, mask=valid, other=0.0)
        cos = (tl.cos(angle) * factor).to(q.dtype.element_ty).to(tl.float32)
        sin = (tl.sin(angle) * factor).to(q.dtype.element_ty).to(tl.float32)
        if which < query_heads:
            source = q + token * q_token + which * q_head + low
        else:
            source = k + token * k_token + (which - query_heads) * k_head + low
        x = tl.load(source, mask=valid).to(tl.float32)
        y = tl.load(source + half, mask=valid).to(tl.float32)
        turned_x = (x * cos - y * sin).to(q.dtype.element_ty)
        turned_y = (y * cos + x * sin).to(q.dtype.element_ty)
        tl.store(source, turned_x, mask=valid)
        tl.store(source + half, turned_y, mask=valid)
        if which >= query_heads:
            target = keys + (which - query_heads) * keys_head + slot * keys_slot + low
            tl.store(target, kept(turned_x, keys), mask=stored)
            tl.store(target + half, kept(turned_y, keys), mask=stored)


@triton.jit
def kept(x, slots):
    """x as those slots keep it; see ``narrowed`` of the caches."""
    if slots.dtype.element_ty.primitive_bitwidth == 8:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -LARGEST_FP8), LARGEST_FP8)
    return x.to(slots.dtype.element_ty)


def silu_mul(both: Tensor) -> Tensor:
    """silu(left half) * right half of each row: both [n, 2M] -> [n, M]."""
    n, half = both.shape[0], both.shape[1] // 2
    out = both.new_empty(n, half)
    grid = (n, triton.cdiv(half, ACTIVATIONS))
    _gate[grid](both, out, both.stride(0), half, block=ACTIVATIONS, num_warps=4)
    return out


@triton.jit
def _gate(both, out, stride, half, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    valid = column < half
    at = both + row * stride + column
    gate = tl.load(at, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(at + half, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + row * half + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=valid)
