"""Attention of a full prefill chunk over a long context, in blocks of keys.

On Hopper, cuDNN's attention has twice the throughput of torch's flash-attention, but it makes a plan for every new
shape and aligns its causal mask with the first key. So keys far enough before the chunk are read by cuDNN without a
mask, in blocks of a few sizes, and the rest by flash-attention with a mask. The partial results are merged by their
log-sum-exps, as flash-attention merges its tiles (arXiv 2205.14135, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine.cache.quantization import GROUP
from triforce_chat.engine.cache.view import KVView

CHUNK = 8192  # tokens of a full chunk; shorter ones are rare, and every shape costs a plan
BLOCKS = (65536, 32768, 16384, 8192)  # keys per block
AMPERE, HOPPER = (8, 0), (9, 0)  # compute capabilities; the first one with flash-attention
LARGEST_HEAD = 256  # dimensions that flash-attention has kernels for, in steps of 8
HEADS = (64, 128)  # head dimensions for which the kernel is fast


def serves(query: Tensor, length: int) -> bool:
    """Whether this is the faster way for queries [1, Hq, n, D] at the end of a context of ``length`` tokens."""
    whole = query.is_cuda and query.shape[2] == CHUNK and length >= CHUNK + BLOCKS[-1]
    sixteen = query.dtype in (torch.bfloat16, torch.float16) and query.shape[3] in HEADS
    return whole and sixteen and torch.cuda.get_device_capability(query.device) == HOPPER


def attention(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of the last n tokens: query [1, Hq, n, D], keys and values [1, Hkv, S, D] -> [1, Hq, n, D]."""
    blocks = list(spans(keys.shape[2] - query.shape[2]))
    near = blocks[-1][1] if blocks else 0
    mixed, summed = masked(query, keys[:, :, near:], values[:, :, near:], scale)
    mixed = mixed.float()  # rounding after every block would accumulate
    for start, end in blocks:
        mixed, summed = merged(
            mixed, summed, *unmasked(query, keys[:, :, start:end], values[:, :, start:end], scale)
        )
    return mixed.to(query.dtype)


def spans(length: int) -> Iterator[tuple[int, int]]:
    """(start, end) of consecutive blocks of sizes in BLOCKS, the largest first, within the first ``length`` tokens."""
    start = 0
    for size in BLOCKS:
        while length - start >= size:
            yield start, start + size
            start += size


def unmasked(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention to all keys without a mask: the result [1, Hq, n, D] and its log-sum-exps [1, Hq, n]."""
    out, summed, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, keys, values, None, True, scale=scale
    )
    return out, summed.reshape(query.shape[:3])


def after_prefix(
    query: Tensor, prefix: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], scale: float
) -> Tensor:
    """``attention`` over the keys and values of a prefix and those that follow it elsewhere, none of them copied.

    Prompts are rarely of equal length, so both parts are read by flash-attention, which needs no plans.
    """
    before, after = flash(query, *prefix, False, scale), flash(query, *own, True, scale)
    return merged(before[0].float(), before[1], *after)[0].to(query.dtype)


def over_groups(query: Tensor, view: KVView, scale: float) -> Tensor:
    """Attention of n tokens that fill groups, to their own group as it is and to all earlier ones quantized."""
    before = view.before
    assert before is not None
    keys, values = (part[None] for part in before.all_heads(query.dtype))
    first = before.tokens - view.repeated  # tokens of the groups that all rows see
    newest = view.keys[:, :, : view.length], view.values[:, :, : view.length]
    mixed, summed = within_groups(query, newest, (keys[:, :, first:], values[:, :, first:]), scale)
    for part in unmasked_parts(query, keys[:, :, :first], values[:, :, :first], scale):
        mixed, summed = merged(mixed, summed, *part)
    return mixed.to(query.dtype)


def within_groups(
    query: Tensor, newest: tuple[Tensor, Tensor], quantized: tuple[Tensor, Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    """The share of the groups that the tokens are in: fp32 [1, Hq, n, D], and its log-sum-exps.

    ``newest`` are the keys and values of these groups as they are, which end with the tokens' own, and ``quantized``
    those of the full ones. No mask is needed: the groups come in pairs, of which the second reads the first, then in
    pairs of pairs, and so on. So every token reads every earlier group once.
    """
    n, length = query.shape[2], newest[0].shape[2]
    size = GROUP << (-(-length // GROUP) - 1).bit_length()
    rows = pad(query, (0, 0, length - n, size - length))
    own_keys, own_values = (in_blocks(pad(part, (0, 0, 0, size - length)), GROUP) for part in newest)
    parts = [pad(part, (0, 0, 0, size - part.shape[2])) for part in quantized]
    out, sums = flash(in_blocks(rows, GROUP), own_keys, own_values, True, scale)
    mixed, summed = (each.transpose(0, 1).flatten(1, 2)[None].float() for each in (out, sums))
    width = GROUP
    while width < length:
        pairs = -(-(length - width) // (2 * width))
        later = in_blocks(rows, width)[1::2][:pairs]
        keys, values = (in_blocks(part, width)[::2][:pairs] for part in parts)
        out, sums = (each.transpose(0, 1) for each in flash(later, keys, values, False, scale))
        mine, known = (each[0].unflatten(1, (-1, width))[:, 1::2][:, :pairs] for each in (mixed, summed))
        known.copy_(merged(mine, known, out, sums)[1])
        width *= 2
    return mixed[:, :, length - n : length], summed[:, :, length - n : length]


def in_blocks(part: Tensor, width: int) -> Tensor:
    """Consecutive tokens as the sequences of a batch: [1, H, S, D] -> [S / width, H, width, D]."""
    blocks: Tensor = part[0].unflatten(1, (-1, width))
    return blocks.transpose(0, 1)


def unmasked_parts(
    query: Tensor, keys: Tensor, values: Tensor, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """``unmasked`` over parts of the keys that are together all of them."""
    length, near = keys.shape[2], 0
    for start, near in spans(length) if serves(query, length + query.shape[2]) else ():
        yield unmasked(query, keys[:, :, start:near], values[:, :, start:near], scale)
    if near < length:
        yield flash(query, keys[:, :, near:], values[:, :, near:], False, scale)


def joins(query: Tensor) -> bool:
    """Whether ``after_prefix`` takes queries [1, Hq, n, D]."""
    return query.is_cuda and flash_takes(query.dtype, query.shape[3])


def flash_takes(dtype: torch.dtype, dim: int) -> bool:
    """Whether flash-attention has a kernel for heads of that size; it reads heads that share keys without copies."""
    return dtype in (torch.bfloat16, torch.float16) and dim % 8 == 0 and dim <= LARGEST_HEAD


def flash_runs(query: Tensor) -> bool:
    """Whether ``masked`` takes queries [1, Hq, n, D] on their GPU."""
    return joins(query) and torch.cuda.get_device_capability(query.device) >= AMPERE


def masked(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """``unmasked`` with a causal mask: the last n keys are the queries' own."""
    return flash(query, keys, values, True, scale)


def flash(query: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """``masked``, or ``unmasked``, by torch's flash-attention."""
    out, summed, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        query, keys, values, is_causal=causal, scale=scale
    )
    return out, summed[:, :, : query.shape[2]]


def merged(mixed: Tensor, summed: Tensor, out: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two parts of the keys from the results of each part; ``mixed`` (fp32) is overwritten.

    mixed and out: [1, Hq, n, D]; summed and sums: [1, Hq, n], their log-sum-exps. Returns both for all keys.
    """
    both = torch.logaddexp(summed, sums)
    mixed.mul_((summed - both).exp()[..., None]).addcmul_(out, (sums - both).exp()[..., None])
    return mixed, both
