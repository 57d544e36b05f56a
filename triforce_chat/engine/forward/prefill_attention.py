"""Attention of a whole chunk of a prefill, block of keys by block of keys.

On Hopper cuDNN's attention does twice as much in a second as torch's flash-attention, but it plans every new shape
anew and aligns its causal mask with the first key. So whatever lies far enough before the chunk is read without a
mask, in blocks of few sizes, and the rest by flash-attention with one. Log-sum-exps put the parts together, as
flash-attention does with its own tiles (arXiv 2205.14135, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 8192  # tokens of a whole chunk; smaller ones are rare, and every shape costs a plan
BLOCKS = (65536, 32768, 16384, 8192)  # keys of one block
HOPPER = (9, 0)  # compute capability
HEADS = (64, 128)  # numbers of a head for which the kernel is good


def serves(query: Tensor, length: int) -> bool:
    """Whether queries [1, Hq, n, D] that end a context of ``length`` tokens are better read like this."""
    whole = query.is_cuda and query.shape[2] == CHUNK and length >= CHUNK + BLOCKS[-1]
    sixteen = query.dtype in (torch.bfloat16, torch.float16) and query.shape[3] in HEADS
    return whole and sixteen and torch.cuda.get_device_capability(query.device) == HOPPER


def attention(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of the last n tokens: query [1, Hq, n, D], keys and values [1, Hkv, S, D]."""
    blocks = list(spans(keys.shape[2] - query.shape[2]))
    near = blocks[-1][1] if blocks else 0
    mixed, summed = masked(query, keys[:, :, near:], values[:, :, near:], scale)
    mixed = mixed.float()  # a new rounding for every block would add up
    for start, end in blocks:
        mixed, summed = joined(
            mixed, summed, *unmasked(query, keys[:, :, start:end], values[:, :, start:end], scale)
        )
    return mixed.to(query.dtype)


def spans(length: int) -> Iterator[tuple[int, int]]:
    """(start, end) of blocks of the usual sizes that cover the first ``length`` tokens as far as that goes."""
    start = 0
    for size in BLOCKS:
        while length - start >= size:
            yield start, start + size
            start += size


def unmasked(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention over all of the keys [1, Hq, n, D], and its log-sum-exps [1, Hq, n]."""
    out, summed, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, keys, values, None, True, scale=scale
    )
    return out, summed.reshape(query.shape[:3])


def masked(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same where the last keys are those of the queries themselves."""
    out, summed, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        query, keys, values, is_causal=True, scale=scale
    )
    return out, summed[:, :, : query.shape[2]]


def joined(mixed: Tensor, summed: Tensor, out: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two parts of the keys out of each part's own; ``mixed`` in fp32 is overwritten.

    mixed and out: [1, Hq, n, D]; summed and sums: [1, Hq, n], their log-sum-exps.
    """
    both = torch.logaddexp(summed, sums)
    mixed.mul_((summed - both).exp()[..., None]).addcmul_(out, (sums - both).exp()[..., None])
    return mixed, both
