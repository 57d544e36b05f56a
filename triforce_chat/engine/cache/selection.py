"""Which chunks of the context deserve a place in the retrieval cache: two policies, one interface."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

LARGEST_SCORED, SMALLEST_SCORED = 64, 16  # tokens of a chunk, numbers of a head: what the kernel takes


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
    if isinstance(policy, MeanKey) and scorable(keys.device, chunk, dim):
        from triforce_chat.engine.kernels import chunk_scores

        logits = chunk_scores(grouped, keys.flatten(1, 2), chunk)
    else:
        logits = policy.bound(grouped * dim**-0.5, policy.summarize(keys))
    return torch.softmax(logits.float(), -1).sum(1)


def best(worth: Tensor, count: int) -> Tensor:
    """The ``count`` chunks that are worth most, in reading order: [..., C] -> [..., count]."""
    return worth.topk(count, -1).indices.sort(-1).values


def scorable(device: torch.device, chunk: int, dim: int) -> bool:
    """Whether the kernel for the logits of mean keys runs there and takes such chunks."""
    fits = chunk.bit_count() == dim.bit_count() == 1 and chunk <= LARGEST_SCORED and dim >= SMALLEST_SCORED
    return fits and device.type == "cuda" and find_spec("triton") is not None
