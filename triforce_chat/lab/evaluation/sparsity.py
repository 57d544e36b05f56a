"""How much of the target's attention a small part of its context holds, and for how long (TriForce, section 3).

A text is read up to a place where the queries of its last tokens select chunks, as a retrieval cache does. Then come
more of its tokens, and each of their queries shows how much of its attention falls on what was selected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.chunk_mass import chunk_mass
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.selection import best
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.speculation.stacks import POLICIES
from triforce_chat.errors import DoesNotFit, UsageError

ORACLES = {
    "best": "the chunks with the most attention of each token, selected again for each one: no selection holds more",
    "exact": "the chunks with the most attention of the selecting tokens",
}
SLICE = 8192  # tokens per forward
LOGITS_BYTES = 256 << 20  # of the attention weights that exist at once


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure; sizes in tokens."""

    budgets: Sequence[int]
    policies: Sequence[str]
    budget: Budget  # chunk, sinks, tail and number of selecting queries
    after: int = 256  # tokens after the selection
    step: int = 16  # of these that are taken together

    def __post_init__(self) -> None:
        """Raises UsageError for a budget that leaves no room for a chunk."""
        least = self.budget.sinks + self.budget.tail + self.budget.chunk
        if min(self.budgets) < least:
            raise UsageError(
                f"a budget of {min(self.budgets)} tokens is less than one chunk; the minimum is {least}"
            )

    @property
    def names(self) -> list[str]:
        """Ways to select, oracles first."""
        return [*ORACLES, *self.policies]

    def layout(self, budget: int, total: int) -> Layout:
        """What a retrieval cache of that many tokens keeps of the first ``total``."""
        sizes = self.budget
        return Layout.of(total, Budget(budget, sizes.chunk, sizes.sinks, sizes.tail))


@dataclass(frozen=True, slots=True)
class Recovered:
    """Shares of the attention at one place, means over query heads: [layers, names, budgets, steps]."""

    context: int
    place: int
    shares: Tensor


def measure(runner: Runner, ids: Sequence[int], context: int, place: int, plan: Plan) -> Recovered:
    """Select after the first ``context`` ids, and look at the attention of the ``plan.after`` ids after them."""
    total = context + plan.after
    cache = FullCache(runner.shape, total, plan.budget.queries + plan.after)
    for part in torch.tensor(ids[:total], dtype=torch.long, device=runner.device).split(SLICE):
        runner.prefill(part, cache)
    shares = [layer_shares(cache, layer, context, plan) for layer in range(runner.shape.layers)]
    return Recovered(context, place, torch.stack(shares).cpu())


def layer_shares(cache: FullCache, layer: int, context: int, plan: Plan) -> Tensor:
    """``Recovered.shares`` of one layer: [names, budgets, steps]."""
    total = context + plan.after
    queries = cache.queries.latest(layer, total, cache.queries.size).flip(1)  # [Hq, m, D], in reading order
    asking, later = queries.split([queries.shape[1] - plan.after, plan.after], 1)
    keys = cache.storage.view(layer, total).whole[0][0]  # [Hkv, total, D]
    layouts = [plan.layout(budget, context) for budget in plan.budgets]
    widest = next((each for each in layouts if each.chunks), None)
    if widest is None:
        return torch.ones(len(plan.names), len(layouts), plan.after // plan.step)
    first, last = widest.sinks // widest.chunk, widest.tail // widest.chunk
    exact = summed(chunk_mass(asking, keys[:, :context], widest.chunk)[..., first:last])
    scores = {"exact": exact}
    for name in plan.policies:
        scores[name] = POLICIES[name]().scores(asking, widest.candidates(keys[:, :context]))
    found = []
    for at in range(0, plan.after, rows_at_once(later, total)):
        some = later[:, at : at + rows_at_once(later, total)]
        mass = chunk_mass(some, keys[:, : context + at + some.shape[1]], widest.chunk)[..., first:last]
        found.append(torch.stack([shares_of(mass, scores, layout) for layout in layouts], 1))
    steps: Tensor = torch.cat(found, -1).unflatten(-1, (-1, plan.step))
    return steps.mean(-1)


def shares_of(mass: Tensor, scores: dict[str, Tensor], layout: Layout) -> Tensor:
    """The mean share that each way to select holds of each query's attention: [names, n].

    mass: [Hkv, G, n, C], of the candidate chunks; scores: [Hkv, C]. What is no candidate is always held.
    """
    if not layout.chunks:
        return mass.new_ones(1 + len(scores), mass.shape[2])
    outside = 1 - mass.sum(-1)
    together = mass.sum(1, keepdim=True)  # a KV head has one selection for its query heads
    picks = [best(together, layout.chunks).expand(-1, mass.shape[1], -1, -1)]
    for score in scores.values():
        pick = best(score, layout.chunks)
        picks.append(pick[:, None, None].expand(*mass.shape[:3], -1))
    return torch.stack([(outside + mass.gather(-1, pick).sum(-1)).mean((0, 1)) for pick in picks])


def summed(mass: Tensor) -> Tensor:
    """The attention of all queries of a KV head: [Hkv, G, n, C] -> [Hkv, C]."""
    return mass.sum((1, 2))


def rows_at_once(queries: Tensor, length: int) -> int:
    """How many of the queries [Hq, n, D] to weigh ``length`` keys with at a time."""
    return max(1, LOGITS_BYTES // (4 * len(queries) * length))


def pieces(
    ids: Sequence[int], contexts: Sequence[int], places: int, after: int
) -> Iterator[tuple[int, int, Sequence[int]]]:
    """(context, place, ids) of pieces spread over a text. Raises DoesNotFit where it is too short for one."""
    for context in contexts:
        longest = context + after
        if len(ids) < longest:
            raise DoesNotFit(
                f"the documents have {len(ids):,} tokens; a context of {context:,} and the {after} tokens after it "
                f"need {longest:,}: add documents"
            )
        for place in range(places):
            start = place * (len(ids) - longest) // max(1, places - 1)
            yield context, place, ids[start : start + longest]


def layer_rows(found: Sequence[Recovered], plan: Plan) -> list[dict[str, Any]]:
    """By layer: shares of the first step after the selection, means over places."""
    return [
        {
            "context": context,
            "layer": layer,
            "policy": name,
            "budget": budget,
            "recovered": value(shares[layer, i, j, 0]),
        }
        for context, shares in means(found)
        for layer in range(len(shares))
        for i, name in enumerate(plan.names)
        for j, budget in enumerate(plan.budgets)
    ]


def decay_rows(found: Sequence[Recovered], plan: Plan) -> list[dict[str, Any]]:
    """By distance from the selection: means over layers and places; ``after`` is the last token of a step."""
    return [
        {
            "context": context,
            "policy": name,
            "budget": budget,
            "after": plan.step * (step + 1),
            "recovered": value(shares[:, i, j, step].mean()),
        }
        for context, shares in means(found)
        for i, name in enumerate(plan.names)
        for j, budget in enumerate(plan.budgets)
        for step in range(shares.shape[-1])
    ]


def means(found: Sequence[Recovered]) -> Iterator[tuple[int, Tensor]]:
    """The mean shares over the places of each context."""
    for context in sorted({each.context for each in found}):
        yield context, torch.stack([each.shares for each in found if each.context == context]).mean(0)


def value(share: Tensor) -> float:
    return round(share.item(), 6)


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and least share of all layers, from ``layer_rows``."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault((row["context"], row["policy"], row["budget"]), []).append(row["recovered"])
    return [
        dict(zip(("context", "policy", "budget"), key, strict=True), mean=fmean(shares), least=min(shares))
        for key, shares in groups.items()
    ]
