"""The selection of chunks for a retrieval cache: scores, the choice, and the copies of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.selection import best
from triforce_chat.lab.bench.kernel_cases.case import DEVICE, DTYPE, Case, Model, noise, rounds

LAYERS = 32  # of the big models
GATHERED = 4  # layers that are gathered at once: all of a big model's would fill the device


def selected_cases(model: Model, length: int, budget: Budget) -> Iterator[Case]:
    """The choice of chunks for the lists of as many layers as a model has."""
    count = (length - budget.tail) // budget.chunk

    def made() -> Tensor:
        return torch.rand(LAYERS, model.kv_heads, count, device=DEVICE)

    shape, size = f"{model.name} {budget.tokens} of {length}", 4 * LAYERS * model.kv_heads * count
    chosen = (budget.tokens - budget.sinks - budget.tail) // budget.chunk
    yield Case("selection", shape, size, rounds(size, made), partial(best, count=chosen))


def score_cases(model: Model, length: int, n: int) -> Iterator[Case]:
    slots, size = length // 64 * 64, model.kv_heads * length * model.dim * DTYPE.itemsize
    copies = rounds(size, lambda: (noise(model.heads, n, model.dim), noise(model.kv_heads, slots, model.dim)))

    def plain(each: tuple[Tensor, Tensor]) -> Tensor:
        q, keys = each
        means = keys.unflatten(1, (-1, 8)).mean(2)
        scores: Tensor = q.unflatten(0, (len(keys), -1)).flatten(1, 2) @ means.mT * model.dim**-0.5
        return scores

    def run(each: tuple[Tensor, Tensor]) -> Tensor:
        return kernels.chunk_scores(*each, 8)

    shape = f"{model.name} {slots} m={n} chunk 8"
    yield Case("chunk_scores", shape, size, copies, run, plain)
    yield Case("chunk_scores: torch", shape, size, copies, plain)


class Gathered(NamedTuple):
    source: Tensor  # [layers, Hkv, S, D]
    chosen: Tensor  # [layers, Hkv, chunks]
    out: Tensor  # [layers, Hkv, slots, D]


def gather_cases(model: Model, length: int, budget: Budget) -> Iterator[Case]:
    """Keys of some layers, as a retrieval cache takes them: read and written."""
    layout = Layout.of(length, budget)
    bounds = layout.sinks, layout.tail, layout.total, layout.chunk

    def made() -> Gathered:
        source = noise(GATHERED, model.kv_heads, length, model.dim)
        worth = torch.rand(layout.candidates(source).shape[:3], device=DEVICE)
        out = source.new_zeros(GATHERED, model.kv_heads, layout.filled, model.dim)
        return Gathered(source, best(worth, layout.chunks), out)

    def plain(each: Gathered) -> Tensor:
        source, chosen, out = each
        layers, heads = (torch.arange(size, device=DEVICE) for size in source.shape[:2])
        end = layout.sinks + layout.selected
        out[:, :, : layout.sinks] = source[:, :, : layout.sinks]
        picked = layout.candidates(source)[layers[:, None, None], heads[:, None], chosen]
        out[:, :, layout.sinks : end] = picked.flatten(2, 3)
        out[:, :, end:] = source[:, :, layout.tail :]
        return out

    def run(each: Gathered) -> Tensor:
        kernels.gather_chunks(*each, *bounds)
        return each.out

    size = 2 * GATHERED * model.kv_heads * layout.filled * model.dim * DTYPE.itemsize
    copies, shape = rounds(size, made), f"{model.name} {layout.filled} of {length} chunk {layout.chunk}"
    yield Case("gather_chunks", shape, size, copies, run, plain)
    yield Case("gather_chunks: torch", shape, size, copies, plain)
