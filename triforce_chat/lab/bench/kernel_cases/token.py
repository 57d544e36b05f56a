"""What a decoder layer does to every token beside attention and products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from triforce_chat.engine import kernels
from triforce_chat.lab.bench.kernel_cases.case import DEVICE, DTYPE, Case, Model, noise


class Token(NamedTuple):
    x: Tensor
    weight: Tensor
    both: Tensor
    buffer: Tensor
    positions: Tensor
    frequencies: Tensor
    slab: Tensor
    at: Tensor


def token_cases(model: Model, n: int) -> Iterator[Case]:
    """What a layer does to every token; so few bytes that the launch is what counts."""
    width, heads = model.heads + 2 * model.kv_heads, (model.heads, model.kv_heads, model.kv_heads)

    def made() -> Token:
        return Token(
            noise(n, model.hidden),
            noise(model.hidden),
            noise(n, 2 * model.inner),
            noise(n, width, model.dim),
            torch.arange(n, device=DEVICE),
            torch.rand(model.dim // 2, device=DEVICE),
            noise(2, model.kv_heads, 64, model.dim),
            torch.tensor([3], device=DEVICE),
        )

    def rotated(each: Token) -> None:
        q, k, v = each.buffer.split(heads, 1)
        kernels.rotate_and_store(
            q, k, v, each.positions, each.frequencies, 1.0, each.slab[0], each.slab[1], each.at
        )

    copies = [made() for _ in range(2)]
    shape, size = f"{model.name} n={n}", DTYPE.itemsize * n
    hidden, inner = size * model.hidden, size * model.inner

    def normed(each: Token) -> Tensor:
        return kernels.rms_norm(each.x, each.weight, 1e-5)

    def plainly_normed(each: Token) -> Tensor:
        return rms_norm(each.x, (model.hidden,), each.weight, 1e-5)

    def gated(each: Token) -> Tensor:
        gate, up = each.both.chunk(2, -1)
        return silu(gate) * up

    yield Case("rms_norm", shape, 2 * hidden, copies, normed, plainly_normed)
    yield Case("rms_norm: torch", shape, 2 * hidden, copies, plainly_normed)
    yield Case("silu_mul", shape, 3 * inner, copies, lambda each: kernels.silu_mul(each.both), gated)
    yield Case("silu_mul: torch", shape, 3 * inner, copies, gated)
    yield Case("rotate_and_store", shape, 2 * size * width * model.dim, copies, rotated)
