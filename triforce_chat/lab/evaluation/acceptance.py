"""How often each level's tokens would be accepted, as an expectation (TriForce's alpha and beta).

Expected acceptance is computed, not counted: a token drawn from q passes under p with probability sum(min(p, q)). So
the target writes texts, and at each of their positions the distributions of all levels are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.in_place import InPlaceCache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.selection import Recent
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.events import Event
from triforce_chat.engine.sampling.branching import distinct
from triforce_chat.engine.sampling.ops import residual
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.lookup import ORDERS
from triforce_chat.engine.speculation.stacks import HEAVY, retrieval_cache
from triforce_chat.engine.speculation.tree_rates import PRIOR
from triforce_chat.engine.speculation.tree_shapes import Rates
from triforce_chat.errors import UsageError
from triforce_chat.lab.evaluation.continuations import ContinuationRequest, continuations
from triforce_chat.lab.evaluation.forced import Lookups, drafted, forced, looked_up
from triforce_chat.lab.evaluation.means import Mean, Sum, mean
from triforce_chat.lab.evaluation.places import Prompt

WINDOW = "streaming"  # in place of a policy: sinks and the latest tokens (StreamingLLM)
SURE = 3  # tokens of a match from which lookup goes before the draft model
DIMENSIONS = ("context", "kind", "temperature", "policy")
MEASURES = {
    "alpha": "middle level under the target",
    "beta": "draft under the middle level",
    "lookup": "lookup under the middle level, where it proposes",
    "both": f"lookup on a match of {SURE} tokens or more, else the draft, under the middle level",
    "proposes": "how often lookup proposes",
    "direct": "draft straight under the target",
    "lookup_direct": "lookup straight under the target, where it proposes",
}
RANKS = len(PRIOR)  # children of a token, as many as a tree's planner tells apart
DIGITS = 4  # of a rate that is kept
CHILDREN = {f"rank_{n}": n for n in range(1, RANKS + 1)}  # of the draft's, which one the target goes on with
MATCHES = {f"match_{n}": n for n in range(1, ORDERS + 1)}  # lookup straight under the target, by its match


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure; sizes in tokens."""

    temperatures: Sequence[float]
    policies: Sequence[str]
    budget: Budget
    tokens: int
    samples: int
    seed: int
    verify: int | None = (
        None  # tokens between two verifications; None: a text is one, and nothing is selected in it
    )
    ranks: bool = False  # tell apart which child of a token passes in a tree


def ignore(_event: Event) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One text under one policy."""

    context: int
    kind: str
    temperature: float
    policy: str
    place: int
    sums: Mapping[str, Sum]


class Acceptance:
    """Measures on one engine, whose draft may be missing.

    By default the middle level reads a text in one forward, by its own keys and values. In use those of verified tokens
    replace them every round, and what it reads is selected again: ``Plan.verify`` has it so. Raises UsageError for a
    draft that reads its target's states: such a text in one forward has none for it.
    """

    def __init__(self, engine: Engine, sampling: Sampling, plan: Plan) -> None:
        if engine.draft is not None and engine.draft.reader is not None:
            raise UsageError(
                "the draft reads its target's states, which this evaluation has not: use 'bench'"
            )
        self.engine, self.sampling, self.plan = engine, sampling, plan
        self.seeds = count(plan.seed)

    def measure(self, prompt: Prompt) -> Iterator[Scored]:
        """Every temperature, sample and policy after one prompt."""
        middles = self._middles()
        if not middles.keys().isdisjoint(HEAVY):
            self.engine.prefix.rollback(0)  # its selection goes by the attention of the whole prompt
        self._prefill(prompt)
        self._build(middles, self._tensor(prompt.ids))
        samplings = list(self._samplings())
        asked = [ContinuationRequest(prompt.ids[-1:], sampling) for sampling in samplings]
        texts = continuations(self.engine, prompt.ids[:-1], asked, self.plan.tokens, prompt.stop)
        self._prefill(prompt)  # back to where the middle levels were built
        for sampling, made in zip(samplings, texts, strict=True):
            history = self._tensor([*prompt.ids, *made])
            sampler = Sampler(sampling, len(prompt.ids))
            for policy, sums in self._compare(history, len(made), sampler, middles):
                yield Scored(len(prompt.ids), prompt.kind, sampling.temperature, policy, prompt.place, sums)

    def _samplings(self) -> Iterator[Sampling]:
        """One for each text to make; greedily there is one text only."""
        for temperature in self.plan.temperatures:
            for _ in range(self.plan.samples if temperature else 1):
                yield replace(self.sampling, temperature=temperature, seed=next(self.seeds))

    def _prefill(self, prompt: Prompt) -> None:
        for _ in self.engine.prefill(prompt.ids[:-1]):
            pass

    def _middles(self) -> dict[str, RetrievalCache | InPlaceCache]:
        """Roomy enough to stand from where the prompt ends until the text does."""
        stride = self.plan.budget.stride
        frozen = self.plan.verify is None
        budget = replace(self.plan.budget, stride=max(stride, self.plan.tokens) if frozen else stride)
        target, full = self.engine.target, self.engine.full
        return {
            policy: RetrievalCache(full, budget, Recent(), ignore)
            if policy == WINDOW
            else retrieval_cache(target, full, budget, policy, ignore)
            for policy in self.plan.policies
        }

    def _build(self, middles: Mapping[str, RetrievalCache | InPlaceCache], prompt: Tensor) -> None:
        """Have every middle level select where the prompt ends, and then keep that until ``ready`` is called again."""
        target, full = self.engine.target, self.engine.full
        if self.plan.verify:
            # A prefill leaves no queries, by which some select: the last tokens are read again, as before any answer.
            full.truncate(max(1, len(prompt) - 1 - self.plan.budget.queries))
            target(full.pending(prompt[:-1])[None], full, 1)
        for policy, cache in middles.items():
            if policy not in HEAVY:
                cache.restart()
            cache.ready(0)
        forced(target, full, torch.cat([prompt, prompt[-1:]]), 1)
        for cache in middles.values():
            cache.ready(0)
            cache.requested = False

    def _compare(
        self,
        history: Tensor,
        n: int,
        sampler: Sampler,
        middles: Mapping[str, RetrievalCache | InPlaceCache],
    ) -> Iterator[tuple[str, dict[str, Sum]]]:
        """The last n tokens of a history under every policy."""
        draft = self.engine.draft

        def distribution(logits: Tensor) -> Tensor:
            return sampler.probs(logits, history[:-1])  # [n, V]

        full, middle = self._logits(history, n, middles)
        p = distribution(full)
        d, ranked = None, dict[str, Tensor]()
        if draft is not None:
            logits = drafted(draft, StreamingCache(draft.shape), history, n)
            d = distribution(logits)
            ranked = by_rank(p, d, sampler.scores(logits, history[:-1])) if self.plan.ranks else {}
        lookups = looked_up(history, n)
        for policy, logits in middle.items():
            yield policy, scores(p, distribution(logits), d, lookups, ranked)

    def _logits(
        self, history: Tensor, n: int, middles: Mapping[str, RetrievalCache | InPlaceCache]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits [n, V] of the last n tokens, by the target and by every middle level.

        They are read piece by piece: first by the middle levels, then by the target, which verifies the piece.
        """
        target, full, before = self.engine.target, self.engine.full, len(history) - n
        step = self.plan.verify or n
        if self.plan.verify:
            self._build(middles, history[:before])
        whole, found = [], {policy: list[Tensor]() for policy in middles}
        for at in range(before, len(history), step):
            piece = history[: at + step]
            rows = len(piece) - at
            for policy, cache in middles.items():
                cache.truncate(at - 1)
                if self.plan.verify and not cache.ready(rows):
                    raise ValueError(f"no room for {rows} tokens in the retrieval cache")
                found[policy].append(forced(target, cache, piece, rows))
            whole.append(target(full.pending(piece[:-1])[None], full, rows)[0].clone())
        full.truncate(before - 1)
        return torch.cat(whole), {policy: torch.cat(parts) for policy, parts in found.items()}

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.engine.target.device)


def scores(
    p: Tensor, m: Tensor, d: Tensor | None, lookups: Lookups, ranked: Mapping[str, Tensor]
) -> dict[str, Sum]:
    """Expected acceptance, summed over positions.

    p, m, d: [n, V], the distributions of target, middle level and draft model; without a draft its measures have no
    positions. ``ranked``: see ``by_rank``.
    """
    under_target, under_middle = (probs.gather(-1, lookups.tokens[:, None])[:, 0] for probs in (p, m))
    found = {
        "alpha": overlap(p, m),
        "lookup": under_middle[lookups.proposed],
        "proposes": lookups.proposed,
        "lookup_direct": under_target[lookups.proposed],
        **{name: under_target[lookups.match == n] for name, n in MATCHES.items()},
        **ranked,
    }
    if d is not None:
        beta = overlap(m, d)
        found |= {
            "beta": beta,
            "both": torch.where(lookups.match >= SURE, under_middle, beta),
            "direct": overlap(p, d),
        }
    return {name: Sum(each.sum(dtype=torch.float64).item(), len(each)) for name, each in found.items()}


def by_rank(p: Tensor, d: Tensor, ranking: Tensor) -> dict[str, Tensor]:
    """The chance that each child of a token is the one that passes, at n positions: [n] each.

    p, d: [n, V], the distributions of target and draft model; ``ranking`` [n, V] orders what the draft never draws.
    Children are drawn once at each position, without replacement; given them the chances are exact (see
    ``verify_tree``).
    """
    first = torch.distributions.Exponential(torch.ones_like(d)).sample()
    later = ranking - ranking.amax(-1, keepdim=True) - 1
    children = torch.where(d > 0, d / first, later).topk(RANKS, -1).indices
    reached, left, rest = torch.ones_like(p[:, 0]), p, d.clone()
    found = {}
    for name, child in zip(CHILDREN, children.split(1, -1), strict=True):
        drawn_from = distinct(rest, torch.zeros_like(d).scatter_(1, child, 1.0))
        chance = (left.gather(1, child) / drawn_from.gather(1, child)).clamp_max(1)[:, 0]
        found[name], reached = reached * chance, reached * (1 - chance)
        left = residual(left, drawn_from)
        left = left / left.sum(-1, keepdim=True)
        rest = rest.scatter(1, child, 0)
    return found


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """The chance that a token of q passes under p: [n, V] twice -> [n]."""
    return torch.minimum(p, q).sum(-1)


@dataclass(frozen=True, slots=True)
class Row:
    """Means over all texts that agree in some dimensions."""

    group: dict[str, Any]
    means: dict[str, Mean | None]

    def record(self) -> dict[str, Any]:
        return {**self.group, **{name: each and asdict(each) for name, each in self.means.items()}}


def rows(scored: Sequence[Scored], dimensions: Sequence[str] = DIMENSIONS) -> list[Row]:
    """One row for each combination of values in these dimensions."""
    groups: dict[tuple[Any, ...], list[Scored]] = {}
    for each in scored:
        groups.setdefault(tuple(getattr(each, name) for name in dimensions), []).append(each)
    return [Row(dict(zip(dimensions, key, strict=True)), means_of(groups[key])) for key in sorted(groups)]


def means_of(group: Sequence[Scored], names: Iterable[str] = MEASURES) -> dict[str, Mean | None]:
    nothing = Sum(0.0, 0)
    return {name: mean([each.sums.get(name, nothing) for each in group]) for name in names}


def rates_by_rank(scored: Sequence[Scored]) -> Rates:
    """How often each child of a token is the one that passes, over all texts: what trees begin to be planned by."""
    found = means_of([each for each in scored if each.policy == scored[0].policy], CHILDREN)
    return tuple(round(each.value, DIGITS) for each in found.values() if each is not None)


def matches(scored: Sequence[Scored], names: Iterable[str] = MATCHES) -> list[Row]:
    """How often what lookup proposes passes, by temperature and the length of its match; or other ``names``."""
    one = [each for each in scored if each.policy == scored[0].policy]  # the target is the same under all
    found = []
    for temperature in sorted({each.temperature for each in one}):
        means = means_of([each for each in one if each.temperature == temperature], names)
        found.append(Row({"temperature": temperature}, means))
    return found
