"""Which attention kernels a model's forwards run on a GPU: for a prefill, and for few tokens over a long cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.cache.view import KVView

TRITON, FLASH_ATTN, SDPA = "triton", "flash-attn", "sdpa"
EXTRA = "flash-attn"  # of this package, which installs it
LARGEST_HEAD, HEAD_STEP = 256, 8  # head dimensions that flash-attn has kernels for

# Attention of the last n tokens of a view: query [1, Hq, n, D], the view, the scale -> [1, Hq, n, D]
OverView = Callable[[Tensor, KVView, float], Tensor]
# ``kernels.decode_attention``: q [n, Hq, D], keys and values [Hkv, S, D], at [1], the scale, the most slots
Decode = Callable[[Tensor, Tensor, Tensor, Tensor, float, int], Tensor]


class AttentionBackend(NamedTuple):
    """Names of the kernels that read a full cache; a CPU has its own and knows no choice.

    ``prefill``: ``SDPA``, torch's own, or ``FLASH_ATTN``. ``decoding``: ``TRITON`` or ``FLASH_ATTN`` inside of CUDA
    graphs, or ``SDPA``, for which the host must know the cache's length: then nothing is captured. Several sequences
    at once are always decoded by Triton, as no other kernel reads their common prefix once.
    """

    prefill: str = SDPA
    decoding: str = TRITON

    @property
    def captures(self) -> bool:
        """Whether forwards of few tokens may run as CUDA graphs."""
        return self.decoding != SDPA

    @property
    def many(self) -> OverView | None:
        """Attention of many tokens; None: torch's own."""
        return flash_prefill if self.prefill == FLASH_ATTN else None

    @property
    def decode(self) -> Decode:
        """Attention inside of CUDA graphs."""
        from triforce_chat.engine import kernels

        return flash_decode if self.decoding == FLASH_ATTN else kernels.decode_attention


USUAL = AttentionBackend()
NAMED = {
    TRITON: USUAL,
    FLASH_ATTN: AttentionBackend(FLASH_ATTN, FLASH_ATTN),
    SDPA: AttentionBackend(SDPA, SDPA),
}


def flash_prefill(query: Tensor, view: KVView, scale: float) -> Tensor:
    """Causal attention of the last n tokens of a view by flash-attn: query [1, Hq, n, D] -> [1, Hq, n, D]."""
    from flash_attn import flash_attn_func

    keys, values = view.all_heads(query.dtype)
    q, k, v = (each.transpose(1, 2) for each in (query, keys, values))
    out: Tensor = flash_attn_func(q, k, v, softmax_scale=scale, causal=True)
    return out.transpose(1, 2)


def flash_decode(q: Tensor, keys: Tensor, values: Tensor, at: Tensor, scale: float, most: int) -> Tensor:  # noqa: ARG001
    """``kernels.decode_attention`` by flash-attn, which reads the length on the device, too."""
    from flash_attn import flash_attn_with_kvcache

    caches = (part.transpose(0, 1)[None] for part in (keys, values))
    lengths = (at + len(q)).int()
    out: Tensor = flash_attn_with_kvcache(
        q[None], *caches, cache_seqlens=lengths, softmax_scale=scale, causal=True
    )
    return out[0]


def flash_lacks(device: torch.device, dtype: torch.dtype, dim: int) -> str:
    """Why flash-attn cannot serve heads of that dimension on a GPU; empty if it can."""
    if problem := flash_problem():
        return problem
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "flash-attn needs a GPU of the Ampere generation or later"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attn computes in 16 bits, not in {str(dtype).removeprefix('torch.')}"
    if dim > LARGEST_HEAD or dim % HEAD_STEP:
        return f"flash-attn has no kernel for heads of {dim} dimensions"
    return ""


@cache
def flash_problem() -> str:
    """Why flash-attn cannot be imported here; empty if it can."""
    if find_spec("flash_attn") is None:
        return f"it needs flash-attn, this program's extra '{EXTRA}'; install it: pip install flash-attn"
    try:
        import_module("flash_attn")
    except Exception as error:  # built for another torch: whatever it raises, others can be used
        line, *_ = str(error).splitlines() or [type(error).__name__]
        return f"flash-attn is installed, but cannot be loaded: {line}"
    return ""
