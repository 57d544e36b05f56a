"""The attention that queries pay to chunks of the context, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

LARGEST_CHUNK = 16  # tokens that captured forwards weigh together: no tile of their attention has fewer


class ChunkMass(NamedTuple):
    """Where attention adds what all of its queries pay to each chunk: chunk c begins at token c * ``chunk``."""

    total: Tensor  # [Hkv, C], fp32
    chunk: int  # tokens

    def add(self, weights: Tensor, head: int | slice = slice(None)) -> None:
        """Add the weights [Hkv, S] of the first S tokens, or [S] of one KV head."""
        sums = summed_by_chunk(weights.float(), self.chunk)
        self.total[head, ..., : sums.shape[-1]] += sums


@dataclass(frozen=True, eq=False)
class FadingMass:
    """Where captured forwards add what their tokens pay to each chunk, as long as this object is referenced."""

    total: Tensor  # [layers, Hkv, C], fp32
    chunk: int  # tokens
    half_life: float  # tokens after which what was paid counts half


def weighable(chunk: int) -> bool:
    """Whether captured forwards can weigh chunks of so many tokens, which must divide every tile of theirs."""
    return chunk <= LARGEST_CHUNK and chunk.bit_count() == 1


def chunk_mass(queries: Tensor, keys: Tensor, chunk: int, scale: float | None = None) -> Tensor:
    """The attention of the last n of some tokens to each chunk of them, exactly: fp32 [Hkv, G, n, C].

    queries: [Hq, n, D]; keys [Hkv, S, D] end with the queries' own; chunk c begins at key c * chunk, and the last
    one may be shorter. ``scale`` of the logits is D**-0.5 unless given.
    """
    heads, (n, dim), length = keys.shape[0], queries.shape[1:], keys.shape[1]
    rows = queries.unflatten(0, (heads, -1))  # [Hkv, G, n, D]
    logits = (rows.flatten(1, 2) * (dim**-0.5 if scale is None else scale)) @ keys.transpose(1, 2)
    logits = logits.float().unflatten(1, (-1, n))
    hidden = torch.ones(n, n, dtype=torch.bool, device=keys.device).triu(1)
    logits[..., length - n :].masked_fill_(hidden, float("-inf"))
    return summed_by_chunk(torch.softmax(logits, -1), chunk)


def summed_by_chunk(weights: Tensor, chunk: int) -> Tensor:
    """[..., S] -> [..., C]; the last chunk may be shorter."""
    chunks: Tensor = pad(weights, (0, -weights.shape[-1] % chunk)).unflatten(-1, (-1, chunk))
    return chunks.sum(-1)
