"""How far logits are from those of expanded fp32 weights with keys and values in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.forward.runner import Runner


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences of logits over all positions and tokens of the vocabulary."""

    positions: int
    largest: float
    median: float  # of each position's largest one
    scale: float  # the largest absolute logit of the reference
    same_best: float  # share of the positions at which both find the same token best
    widest_swap: float  # where they do not: at most so far apart are the two tokens in the reference
    divergence: float  # Kullback-Leibler from the reference's distribution, the mean in nats

    def record(self) -> dict[str, float]:
        return asdict(self)


def difference(runner: Runner, reference: Runner, ids: Sequence[int], rows: int) -> Difference:
    """Feed both the same text, ``rows`` tokens at a time, as a verification does."""
    largest, scale, swap, divergence = torch.tensor([*compared(runner, reference, ids, rows)]).T
    return Difference(
        positions=len(largest),
        largest=float(largest.max()),
        median=float(largest.median()),
        scale=float(scale.max()),
        same_best=float((swap == 0).double().mean()),
        widest_swap=float(swap.max()),
        divergence=float(divergence.mean()),
    )


def compared(
    runner: Runner, reference: Runner, ids: Sequence[int], rows: int
) -> Iterator[tuple[float, float, float, float]]:
    """Per position: the largest difference, largest logit, distance of swapped tokens, and divergence."""
    caches = [FullCache(each.shape, len(ids)) for each in (runner, reference)]
    for fed in torch.tensor(ids).split(rows):
        found, exact = (
            each(fed[None].to(each.device), cache, len(fed))[0].float().cpu()
            for each, cache in zip((runner, reference), caches, strict=True)
        )
        yield from zip(*(part.tolist() for part in measures(found, exact)), strict=True)


def measures(found: Tensor, exact: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``compared``; logits [n, V] -> [n] each."""
    chosen = exact.gather(-1, found.argmax(-1, keepdim=True))[:, 0]
    p, q = exact.double().log_softmax(-1), found.double().log_softmax(-1)
    return (
        (found - exact).abs().amax(-1),
        exact.abs().amax(-1),
        exact.amax(-1) - chosen,
        (p.exp() * (p - q)).sum(-1),
    )
