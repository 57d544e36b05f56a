"""Which chunks of the context a retrieval cache keeps: the policies that score them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from triforce_chat.engine.cache.quantization import FP8
from triforce_chat.engine.kernels_available import kernels_run

LARGEST_CHUNK, SMALLEST_HEAD = 64, 16  # tokens and dimensions that the scoring kernel is limited to
LOGITS_BYTES = 64 << 20  # of the logits that exist at once; their softmax takes as much again


class Policy(Protocol):
    """Scores the chunks of a layer's keys; several layers are scored as one layer with more heads."""

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """What each chunk is worth to each KV head: queries [Hq, m, D], keys [Hkv, C, chunk, D] -> [Hkv, C]."""
        ...

    def layers_at_once(self, queries: Tensor, keys: Tensor) -> int:
        """How many layers to score in one call: queries [layers, Hq, m, D], keys [layers, Hkv, C, chunk, D]."""
        ...


class SummaryPolicy(ABC):
    """Scores chunks by the attention that recent queries would pay to a summary of each chunk's keys.

    Each query spreads one unit of attention over the chunks (softmax of the estimated logits), and a KV head sums
    over the queries of its group. So every query has the same influence, however large its logits are.
    """

    @abstractmethod
    def summarize(self, keys: Tensor) -> Tensor:
        """keys [Hkv, C, chunk, D] -> summary [Hkv, C, R] for some R."""

    @abstractmethod
    def bound(self, queries: Tensor, summary: Tensor) -> Tensor:
        """Estimated logits: queries [Hkv, Q, D], summary [Hkv, C, R] -> [Hkv, Q, C]."""

    def logits(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Estimated scaled logits: queries [Hkv, Q, D], keys [Hkv, C, chunk, D] -> [Hkv, Q, C]."""
        wide = keys.to(queries.dtype) if keys.dtype == FP8 else keys  # which torch does not compute with
        return self.bound(queries * keys.shape[-1] ** -0.5, self.summarize(wide).to(queries.dtype))

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """See ``Policy``; without queries (m = 0) a zero query stands in, so all chunks are equal."""
        kv_heads, dim = keys.shape[0], keys.shape[-1]
        grouped = queries.unflatten(0, (kv_heads, -1)).flatten(1, 2)  # [Hkv, G*m, D]
        if grouped.shape[1] == 0:
            grouped = queries.new_zeros(kv_heads, 1, dim)
        return torch.softmax(self.logits(grouped, keys).float(), -1).sum(1)

    def layers_at_once(self, queries: Tensor, keys: Tensor) -> int:  # noqa: ARG002
        """One: a summary takes more memory than the logits."""
        return 1


class MeanKey(SummaryPolicy):
    """The mean of a chunk's keys stands for the chunk (TriForce, section 4.1)."""

    def summarize(self, keys: Tensor) -> Tensor:
        return keys.mean(2)

    def bound(self, queries: Tensor, summary: Tensor) -> Tensor:
        return queries @ summary.transpose(-1, -2)

    def logits(self, queries: Tensor, keys: Tensor) -> Tensor:
        if not kernel_fits(keys):
            return super().logits(queries, keys)
        from triforce_chat.engine.kernels import chunk_scores

        return chunk_scores(queries, keys.flatten(1, 2), keys.shape[2])

    def layers_at_once(self, queries: Tensor, keys: Tensor) -> int:
        """As many as ``LOGITS_BYTES`` allows where the kernel runs, which stores no summary."""
        bytes_ = 4 * keys.shape[2] * queries.shape[1] * max(1, queries.shape[2])  # of one layer's fp32 logits
        return max(1, LOGITS_BYTES // bytes_) if kernel_fits(keys) else 1


class MinMaxKey(SummaryPolicy):
    """The largest logit that any key inside the chunk's bounding box could reach (Quest, arXiv 2406.10774)."""

    def summarize(self, keys: Tensor) -> Tensor:
        return torch.cat([keys.amin(2), keys.amax(2)], -1)

    def bound(self, queries: Tensor, summary: Tensor) -> Tensor:
        low, high = summary.transpose(-1, -2).chunk(2, -2)
        return queries.clamp_min(0) @ high + queries.clamp_max(0) @ low


class AttentionMass:
    """The attention that recent queries pay to all keys of a chunk, exactly.

    An ``InPlaceCache`` gets it as a by-product of every verification; other caches compute it when they are built.
    """

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """See ``Policy``; without queries (m = 0) a zero query stands in, so all chunks are equal."""
        heads, chunks, chunk, dim = keys.shape
        rows = queries.unflatten(0, (heads, -1)).flatten(1, 2) * dim**-0.5  # [Hkv, G*m, D]
        if rows.shape[1] == 0:
            rows = queries.new_zeros(heads, 1, dim)
        bytes_ = 4 * rows.shape[1] * chunks * chunk  # of one head's fp32 weights
        some = max(1, LOGITS_BYTES // bytes_)  # heads at once
        pairs = zip(rows.split(some), keys.flatten(1, 2).split(some), strict=True)
        mass = [_mass(asked, held.to(rows.dtype)) for asked, held in pairs]
        by_chunk: Tensor = torch.cat(mass).unflatten(-1, (chunks, chunk))
        return by_chunk.sum(-1)

    def layers_at_once(self, queries: Tensor, keys: Tensor) -> int:  # noqa: ARG002
        """One: the weights of all keys take much memory."""
        return 1


def _mass(rows: Tensor, keys: Tensor) -> Tensor:
    """The attention that rows [H, R, D] pay to each of keys [H, S, D]: [H, S]."""
    return torch.softmax((rows @ keys.transpose(1, 2)).float(), -1).sum(1)


class Recent:
    """No retrieval: the latest chunks win, which makes the cache a StreamingLLM cache of the target."""

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:  # noqa: ARG002
        """The rank of each chunk, exactly; as summands of a softmax most of them would vanish."""
        return torch.arange(keys.shape[1], device=keys.device).expand(keys.shape[:2])

    def layers_at_once(self, queries: Tensor, keys: Tensor) -> int:  # noqa: ARG002
        return 1


def select(policy: Policy, queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """The ``count`` best chunks of each layer and KV head, in reading order: [layers, Hkv, count].

    queries: [layers, Hq, m, D]; keys: [layers, Hkv, C, chunk, D].
    """
    return best(layer_scores(policy, queries, keys), count)


def layer_scores(policy: Policy, queries: Tensor, keys: Tensor) -> Tensor:
    """The scores of several layers' chunks: [layers, Hkv, C]; shapes as in ``select``."""
    layers, heads, chunks = keys.shape[:3]
    together = policy.layers_at_once(queries, keys)
    groups = zip(queries.split(together), keys.split(together), strict=True)
    found = [policy.scores(asked.flatten(0, 1), held.flatten(0, 1)) for asked, held in groups]
    return torch.cat(found).view(layers, heads, chunks)


def best(scores: Tensor, count: int) -> Tensor:
    """The ``count`` chunks with the highest scores, in reading order: [..., C] -> [..., count]."""
    return scores.topk(count, -1).indices.sort(-1).values


def kernel_fits(keys: Tensor) -> bool:
    """Whether the scoring kernel runs on this device and takes chunks of keys [..., chunk, D] of this size."""
    chunk, dim = keys.shape[-2:]
    fits = chunk.bit_count() == dim.bit_count() == 1 and chunk <= LARGEST_CHUNK and dim >= SMALLEST_HEAD
    return fits and kernels_run(keys.device)
