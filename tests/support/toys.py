"""Toys that make the law of an answer exactly computable.

Models are tables from the whole context to a distribution, caches remember the very ids they were fed, and the
sampler walks through every outcome of every random choice. So a wrong acceptance rule, a vector that is not the
law of its token, or a cache that was cut at the wrong place each change the law of the output.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.executor import Chances, Drawn
from triforce_chat.engine.sampling.sampler import Rule, Sampler, Sampling
from triforce_chat.engine.speculation import level as level_module
from triforce_chat.engine.speculation.level import Autoregressive, Level, Speculative
from triforce_chat.engine.speculation.relay import Relay
from triforce_chat.engine.speculation.step_times import HostClock

Context = tuple[int, ...]
Law = dict[Context, float]
PROMPT: Context = (0, 1)


class ToyCache:
    """Holds ids where a real cache holds keys and values."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.fed: list[int] = []
        self.beyond: list[int] = []  # what was fed behind them without being counted
        self.verdicts: list[tuple[int, int]] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    @length.setter
    def length(self, _: int) -> None:
        raise AssertionError("only advance and truncate change a cache")

    @property
    def position(self) -> int:
        return len(self.ids)

    def ready(self, _: int) -> bool:
        return True

    def pending(self, tokens: Tensor, _: int = 0) -> Tensor:
        return tokens[len(self.ids) :]

    def put(self, fed: list[int], beyond: int) -> Context:
        """All that stands up to the end of what is fed so many places behind what counts."""
        held = [*self.ids, *self.beyond]
        start = len(self.ids) + beyond
        assert 0 <= start <= len(held), "a hole in the cache"
        assert held[start : len(self.ids)] == fed[: max(0, -beyond)], "what counts was overwritten"
        held = [*held[:start], *fed]
        self.beyond = held[len(self.ids) :]
        return tuple(held)

    def update(self, *_: Any) -> Any:
        raise AssertionError("toys have no attention")

    def advance(self, n: int) -> None:
        self.ids += self.fed[:n]
        self.beyond = []

    def truncate(self, length: int) -> None:
        del self.ids[length:]
        self.beyond = []

    def judged(self, proposed: int, accepted: int) -> None:
        self.verdicts.append((proposed, accepted))


@dataclass
class ToyModel:
    """A table over contexts: ``law(context)`` [V] is drawn once per context and kept."""

    vocabulary: int
    law: Callable[[Context], Tensor]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    known: dict[Context, Tensor] = field(default_factory=dict)

    def logits(self, context: Context) -> Tensor:
        if context not in self.known:
            self.known[context] = self.law(context).double().log()
        return self.known[context]

    def __call__(self, ids: Tensor, cache: ToyCache, rows: int, beyond: Tensor | None = None) -> Tensor:
        fed = ids.tolist()
        assert fed, "an empty forward"
        if beyond is None:
            cache.fed = fed
            seen = (*cache.ids, *fed)
            cache.advance(len(fed))
        else:
            seen = cache.put(fed, int(beyond))
        return torch.stack([self.logits(seen[: len(seen) - rows + i + 1]) for i in range(rows)])

    def feeder(self, cache: ToyCache) -> Feeding:
        return Feeding(self, cache)


@dataclass
class Feeding:
    """Feeds a toy where it is told to."""

    model: ToyModel
    cache: ToyCache

    def aim(self) -> None:
        pass

    def __call__(self, ids: Tensor, beyond: Tensor) -> Tensor:
        return self.model(ids, self.cache, 1, beyond)


def random_law(vocabulary: int, seed: int, sharpness: float = 1.0) -> Callable[[Context], Tensor]:
    def law(context: Context) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *context)) % 2**31)
        return torch.softmax(sharpness * torch.randn(vocabulary, generator=generator, dtype=torch.float64), 0)

    return law


def support_law(vocabulary: int, seed: int, allowed: Sequence[int]) -> Callable[[Context], Tensor]:
    """Like ``random_law``, with all mass on some tokens."""
    base = random_law(vocabulary, seed)

    def law(context: Context) -> Tensor:
        mask = torch.zeros(vocabulary, dtype=torch.float64)
        mask[list(allowed)] = 1
        kept = base(context) * mask
        return kept / kept.sum()

    return law


def fixed_law(*chances: float) -> Callable[[Context], Tensor]:
    """The same distribution whatever came before."""
    return lambda _: torch.tensor(chances, dtype=torch.float64)


class Echo:
    """A lookup-like drafter: one-hot proposals from a rule on the history, sometimes none at all."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        ids = tokens.tolist()
        said = [(sum(ids) + i) % self.vocabulary for i in range(min(n, sum(ids) % 4))]
        chosen = torch.tensor(said, dtype=torch.long)
        return Draft(chosen, torch.eye(self.vocabulary)[chosen])

    def rollback(self, length: int) -> None:
        pass

    def hear(self, length: int, ids: Sequence[int]) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


class Branching(Sampler):
    """Walks all outcomes: replays a script of choices, then takes the first of each new choice.

    ``horizon`` is the history length whose law is wanted: what a token behind it is, or whether it passes,
    cannot matter, so one outcome stands for all.
    """

    def __init__(self, sampling: Sampling, answer_start: int, horizon: float = math.inf) -> None:
        super().__init__(sampling, answer_start)
        self.horizon = horizon
        self.begin([])

    def begin(self, script: list[int]) -> None:
        self.script, self.taken, self.open = script, 0, []  # type: ignore[var-annotated]
        self.chance = 1.0
        self.at = 0  # history length in front of the next drawn token
        self.count: int | None = None  # drafted tokens that count; None: all

    def _made(self, *given: Any) -> Drawn:
        *_, draft, tokens, spare = given
        self.count = len(draft) if draft.count is None else int(draft.count)
        self.at = len(tokens) - int(spare or 0) - self.count
        return super()._made(*given)

    def choose(self, chances: list[float]) -> int:
        """Take one outcome with positive probability and remember the others."""
        if self.taken < len(self.script):
            choice = self.script[self.taken]
        else:
            possible = [i for i, chance in enumerate(chances) if chance > 0]
            choice = possible[0]
            self.open += [(self.script[: self.taken], other) for other in possible[1:]]
            self.script = [*self.script[: self.taken], choice]
        self.taken += 1
        self.chance *= chances[choice]
        return choice

    def leading(self, p: Tensor, q: Tensor, _: Chances) -> Tensor:
        p, q = p[: self.count], q[: self.count]
        tested = max(0, min(len(p), int(min(self.horizon, 1e9)) - self.at))
        passing, chances = 1.0, []
        for w, v in zip(p.double().tolist()[:tested], q.double().tolist()[:tested], strict=True):
            rate = min(1.0, w / v)
            chances.append(passing * (1 - rate))
            passing *= rate
        k = self.choose([*chances, passing])
        k = len(p) if k == tested else k
        self.at += k
        return torch.tensor(k)

    def draw(self, weights: Tensor, _: Chances) -> Tensor:
        total = float(weights.double().sum())
        assert total > 0, "drawing from nothing"
        if self.at >= self.horizon:
            return weights.argmax()
        return torch.tensor(self.choose([w / total for w in weights.double().tolist()]))


@dataclass
class Stack:
    """A top level together with everything in it that changes between rounds."""

    top: Speculative
    parts: list[Any]

    def save(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(vars(part)) for part in self.parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        for part, values in zip(self.parts, state, strict=True):
            vars(part).update(copy.deepcopy(values))


def print_of(state: list[dict[str, Any]]) -> str:
    """Two states with the same print behave alike: counters for statistics are left out."""
    skip = ("fed", "verdicts", "beyond")
    return repr([{k: v for k, v in values.items() if k not in skip} for values in state])


def rounds(
    stack: Stack, sampler: Branching, tokens: Context, most: int
) -> Iterator[tuple[Context, float, Any]]:
    """Every outcome of one round from the state that the stack is in."""
    start = stack.save()
    scripts: list[list[int]] = [[]]
    while scripts:
        stack.load(start)
        sampler.begin(scripts.pop())
        made = stack.top.step(torch.tensor(tokens), sampler, most).tokens.tolist()
        assert len(made) >= 1
        scripts += [[*prefix, other] for prefix, other in sampler.open]
        yield (*tokens, *made), sampler.chance, stack.save()


def law_of(stack: Stack, sampling: Sampling, n: int, lump: bool = True) -> Law:
    """The exact law of the first ``n`` tokens that the stack emits behind PROMPT."""
    horizon = len(PROMPT) + n
    sampler = Branching(sampling, len(PROMPT), horizon if lump else math.inf)
    law: Law = {}
    waiting: dict[tuple[Context, str], tuple[float, Any]] = {(PROMPT, ""): (1.0, stack.save())}
    while waiting:
        (tokens, _), (mass, state) = waiting.popitem()
        stack.load(state)
        for after, chance, left in rounds(stack, sampler, tokens, horizon - len(tokens) - 1):
            if len(after) >= horizon:
                said = after[len(PROMPT) : horizon]
                law[said] = law.get(said, 0.0) + mass * chance
            else:
                key = (after, print_of(left))
                before = waiting[key][0] if key in waiting else 0.0
                waiting[key] = (before + mass * chance, left)
    return law


def exact_law(model: ToyModel, sampling: Sampling, n: int) -> Law:
    """The product of the target's conditionals, straight from the definition."""
    sampler = Sampler(sampling, len(PROMPT))
    law: Law = {(): 1.0}
    for _ in range(n):
        longer: Law = {}
        for said, mass in law.items():
            context = (*PROMPT, *said)
            probs = sampler.probs(model.logits(context)[None], torch.tensor(context))[0]
            for token, chance in enumerate(probs.tolist()):
                if chance > 0:
                    longer[(*said, token)] = mass * chance
        law = longer
    return law


def variation(a: Law, b: Law) -> float:
    """Total variation distance."""
    return sum(abs(a.get(said, 0.0) - b.get(said, 0.0)) for said in a.keys() | b.keys()) / 2


def ruled(level: Speculative, rule: Rule) -> Speculative:
    """The same level, its real ``_judge`` with another acceptance rule in it."""
    judge = FunctionType(Speculative._judge.__code__, {**vars(level_module), "verify": rule})
    level._judge = judge.__get__(level)  # type: ignore[method-assign]
    return level


def nothing(_: Any) -> None:
    """Events nobody wants."""


def two_levels(target: ToyModel, draft: ToyModel | Level, gamma: int) -> Stack:
    cache = ToyCache()
    parts: list[Any] = [cache]
    return Stack(Speculative("target", target, cache, _drafter(draft, parts), gamma, nothing), parts)


def three_levels(
    target: ToyModel,
    middle: ToyModel,
    draft: ToyModel | Level,
    gammas: tuple[int, int],
    rule: Rule | None = None,
) -> Stack:
    """gammas: (asked of the drafter, asked of the middle); ``rule`` replaces the middle's acceptance rule."""
    full, cache = ToyCache(), ToyCache()
    parts: list[Any] = [full, cache]
    level = Speculative("retrieval", middle, cache, _drafter(draft, parts), gammas[0], nothing)
    if rule is not None:
        ruled(level, rule)
    return Stack(Speculative("target", target, full, level, gammas[1], nothing), parts)


def relayed(
    target: ToyModel,
    middle: ToyModel,
    draft: ToyModel | None,
    gammas: tuple[int, int],
    lookup: bool = False,
    least: int | None = None,
) -> Stack:
    """Three levels of which the middle one is not waited for; ``least`` fixes from which match on lookup speaks."""
    full, cache = ToyCache(), ToyCache()
    parts: list[Any] = [full, cache]
    below = None
    if draft is not None:
        parts.append(ToyCache())
        below = draft, parts[-1]
    relay = Relay(
        "retrieval",
        middle,
        cache,  # type: ignore[arg-type]
        below,
        gammas[0],
        nothing,
        HostClock(),
        lookup=lookup,
        planned=False,
    )
    if least is not None:
        relay._least = lambda _: least  # type: ignore[method-assign]
    return Stack(Speculative("target", target, full, relay, gammas[1], nothing), parts)


def _drafter(draft: ToyModel | Level, parts: list[Any]) -> Level:
    if not isinstance(draft, ToyModel):
        if not isinstance(draft, Echo):
            parts.append(draft)
        return draft
    parts.append(ToyCache())
    return Autoregressive(draft, parts[-1])
