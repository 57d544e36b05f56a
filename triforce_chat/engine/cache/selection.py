"""Which chunks of the context deserve a place in the retrieval cache: two policies, one interface."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from triforce_chat.engine.kernels_available import kernels_run

LARGEST_SCORED, SMALLEST_SCORED = 64, 16  # tokens of a chunk, numbers of a head: what the kernel takes
LOGITS = 64 << 20  # bytes of the logits that are made at once; their softmax takes as much again


class Policy(Protocol):
    """Scores one layer's chunks of keys against recent queries, by a summary of each chunk."""

    def summarize(self, keys: Tensor) -> Tensor:
        """keys [Hkv, C, chunk, D] -> summary [Hkv, C, R] for some R."""
        ...

    def bound(self, queries: Tensor, summary: Tensor) -> Tensor:
        """Estimated logits: queries [Hkv, Q, D], summary [Hkv, C, R] -> [Hkv, Q, C]."""
        ...


class MeanKey:
    """The mean of a chunk's keys stands for the chunk (TriForce, section 4.1)."""

    def summarize(self, keys: Tensor) -> Tensor:
        return keys.mean(2)

    def bound(self, queries: Tensor, summary: Tensor) -> Tensor:
        return queries @ summary.transpose(-1, -2)


class MinMaxKey:
    """The largest logit that any key inside the chunk's bounding box could reach (Quest, arXiv 2406.10774)."""

    def summarize(self, keys: Tensor) -> Tensor:
        return torch.cat([keys.amin(2), keys.amax(2)], -1)

    def bound(self, queries: Tensor, summary: Tensor) -> Tensor:
        low, high = summary.transpose(-1, -2).chunk(2, -2)
        return queries.clamp_min(0) @ high + queries.clamp_max(0) @ low


class Recent:
    """No retrieval: the latest chunks win, which makes the cache a StreamingLLM cache of the target."""

    def worth(self, keys: Tensor) -> Tensor:
        """keys [Hkv, C, chunk, D] -> [Hkv, C]: later is better. A softmax of ranks would make most of them zero."""
        return torch.arange(keys.shape[1], device=keys.device).expand(keys.shape[:2])


def select(policy: Policy | Recent, queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """The ``count`` best chunks of one layer for every KV head, in reading order: [Hkv, count].

    queries: [Hq, m, D]; keys: [Hkv, C, chunk, D].
    """
    return best(mass(policy, queries, keys), count)


def masses(policy: Policy | Recent, queries: Tensor, keys: Tensor) -> Tensor:
    """``mass`` of several layers: queries [layers, Hq, m, D], keys [layers, Hkv, C, chunk, D] -> [layers, Hkv, C].

    Layers are so many heads more. Where the kernel scores them, as many go together as ``LOGITS`` allows; a
    summary takes more room than logits, so other policies get one by one.
    """
    layers, heads, chunks = keys.shape[:3]
    bytes_ = 4 * chunks * queries.shape[1] * max(1, queries.shape[2])  # of one layer's logits, in fp32
    together = max(1, LOGITS // bytes_) if by_kernel(policy, keys) else 1
    groups = zip(queries.split(together), keys.split(together), strict=True)
    found = [mass(policy, asked.flatten(0, 1), held.flatten(0, 1)) for asked, held in groups]
    return torch.cat(found).view(layers, heads, chunks)


def mass(policy: Policy | Recent, queries: Tensor, keys: Tensor) -> Tensor:
    """What the chunks of one layer are worth to each KV head: [Hkv, C]; shapes as in ``select``.

    Each query spreads one unit of attention over the chunks (softmax of the estimated logits), and a KV head adds
    up what its group's queries gave, so that no loud head decides alone.
    """
    if isinstance(policy, Recent):
        return policy.worth(keys)
    kv_heads, _, chunk, dim = keys.shape
    grouped = queries.unflatten(0, (kv_heads, -1)).flatten(1, 2)  # [Hkv, G*m, D]
    if grouped.shape[1] == 0:
        grouped = queries.new_zeros(kv_heads, 1, dim)
    if by_kernel(policy, keys):
        from triforce_chat.engine.kernels import chunk_scores

        logits = chunk_scores(grouped, keys.flatten(1, 2), chunk)
    else:
        logits = policy.bound(grouped * dim**-0.5, policy.summarize(keys))
    return torch.softmax(logits.float(), -1).sum(1)


def best(worth: Tensor, count: int) -> Tensor:
    """The ``count`` chunks that are worth most, in reading order: [..., C] -> [..., count]."""
    return worth.topk(count, -1).indices.sort(-1).values


def by_kernel(policy: Policy | Recent, keys: Tensor) -> bool:
    """Whether a kernel makes the logits: it knows mean keys [..., chunk, D], and not of every size."""
    chunk, dim = keys.shape[-2:]
    fits = chunk.bit_count() == dim.bit_count() == 1 and chunk <= LARGEST_SCORED and dim >= SMALLEST_SCORED
    return isinstance(policy, MeanKey) and fits and kernels_run(keys.device)
