"""Which chunks of the context deserve a place in the retrieval cache: two policies, one interface."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


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

    def summarize(self, keys: Tensor) -> Tensor:
        return keys.new_zeros(*keys.shape[:2], 1)

    def bound(self, queries: Tensor, summary: Tensor) -> Tensor:
        chunks = summary.shape[1]
        rising = torch.arange(chunks, dtype=summary.dtype, device=summary.device)
        return rising.expand(*queries.shape[:2], chunks)


def select(policy: Policy, queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """The ``count`` best chunks of one layer for every KV head, in reading order: [Hkv, count].

    queries: [Hq, m, D]; keys: [Hkv, C, chunk, D]. Each query spreads one unit of attention over the chunks
    (softmax of the estimated logits), and a KV head adds up what its group's queries gave, so that no loud head
    decides alone.
    """
    kv_heads = keys.shape[0]
    grouped = queries.unflatten(0, (kv_heads, -1)).flatten(1, 2)  # [Hkv, G*m, D]
    if grouped.shape[1] == 0:
        grouped = queries.new_zeros(kv_heads, 1, queries.shape[-1])
    logits = policy.bound(grouped * queries.shape[-1] ** -0.5, policy.summarize(keys))
    mass = torch.softmax(logits.float(), -1).sum(1)  # [Hkv, C]
    return mass.topk(count, -1).indices.sort(-1).values
