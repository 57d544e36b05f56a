"""How well a model predicts a long text, by how much of it came before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.forward.runner import Runner

K = 1024
EDGES = (0, 4 * K, 8 * K, 16 * K, 32 * K, 64 * K)  # bands begin here; the last one ends with the text
NEAR = 8 * K  # a reference model is measured up to here
WINDOW = 8 * K  # the short memory that a long one is compared with
SLICE = 1024  # tokens per forward: 1024 rows of logits over 49,152 tokens take 200 MB in fp32


@dataclass(frozen=True, slots=True)
class Band:
    """Tokens at positions ``start`` .. ``end - 1``; a text's first token follows nothing and is not scored."""

    start: int
    end: int
    tokens: int
    perplexity: float
    reference: float | None = None
    ratio: float | None = None  # how many times the reference's perplexity this is


@dataclass(frozen=True, slots=True)
class Window:
    """The farthest band's tokens again, each with between ``least`` and ``most`` tokens of context."""

    least: int
    most: int
    tokens: int
    perplexity: float
    ratio: float  # perplexity with everything before, as a share of this one: below 1 the far text helps


def losses(runner: Runner, ids: Sequence[int], cache: FullCache, first: int = 1) -> Tensor:
    """Cross entropy in nats of ids[first:], each given all ids before it: [len(ids) - first].

    One pass over an emptied cache; positions begin at 0 with ids[0]. What is not scored takes one forward.
    """
    cache.truncate(0)
    tokens = torch.tensor(ids, dtype=torch.long, device=runner.device)
    if first > 1:
        runner.prefill(tokens[: first - 1], cache)
    found = []
    for at in range(first - 1, len(tokens) - 1, SLICE):
        fed = tokens[at : min(at + SLICE, len(tokens) - 1)]
        logits = runner(fed[None], cache, len(fed))[0].float()
        found.append(cross_entropy(logits, tokens[at + 1 : at + 1 + len(fed)], reduction="none"))
    return torch.cat(found).cpu() if found else torch.empty(0)


def perplexity(nats: Tensor) -> float:
    """The perplexity of a text with these losses."""
    return math.exp(nats.double().mean().item())


def edges(length: int) -> list[int]:
    """Where the bands of a text of that length begin, and its end."""
    return [edge for edge in EDGES if edge + 1 < length] + [length]


def bands(nats: Tensor, reference: Tensor) -> Iterator[Band]:
    """Perplexity by position: nats[i] belongs to the token at position i + 1; the reference's may be fewer."""
    limits = edges(len(nats) + 1)
    for start, end in pairwise(limits):
        mine, other = (each[max(start, 1) - 1 : end - 1] for each in (nats, reference))
        band = Band(start, end, len(mine), perplexity(mine))
        known = perplexity(other) if len(other) == len(mine) else None
        yield replace(band, reference=known, ratio=band.perplexity / known) if known else band


def windows(
    runner: Runner, ids: Sequence[int], nats: Tensor, strides: Sequence[int], size: int = WINDOW
) -> Iterator[Window]:
    """The farthest band with a short memory; nothing where the band begins before a window's length.

    Windows of ``size`` tokens, ``stride`` apart; of each the last ``stride`` tokens are scored, so that
    every token sees size - stride .. size - 1 tokens of the same text, at positions that begin at 0.
    """
    start = edges(len(ids))[-2]
    if start < size:
        return
    cache = FullCache(runner.shape, size)
    far = perplexity(nats[start - 1 :])
    for stride in strides:
        parts = [
            losses(runner, ids[at - (size - stride) : at + stride], cache, size - stride)
            for at in range(start, len(ids), stride)
        ]
        scored = torch.cat(parts)
        short = perplexity(scored)
        yield Window(size - stride, size - 1, len(scored), short, far / short)
