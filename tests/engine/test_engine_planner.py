"""The planner in worlds with a clock of their own, where the best plan can be computed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import ToyCache

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.level import Autoregressive, Level, Silent, Speculative
from triforce_chat.engine.lookup import NgramLookup, NoLookup
from triforce_chat.engine.planner import Arm, Planner, sizes
from triforce_chat.engine.sampling import Sampler, Sampling
from triforce_chat.engine.survival import Survival
from triforce_chat.engine.timing import Average, HostClock, StepTimes

CPU = torch.device("cpu")
WARM = Sampling(temperature=1.0, seed=0)


class FakeClock(HostClock):
    """Stands still but for what is done."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


@dataclass
class Costly:
    """A model over two tokens that is right (token 0) with a certain chance, and takes its time."""

    clock: FakeClock
    one: float  # seconds of a step of one row
    row: float = 0.0  # of every further row
    right: float = 1.0
    noise: float = 0.0
    vocabulary: int = 2
    device: torch.device = CPU
    luck: random.Random = field(default_factory=lambda: random.Random(0))

    def seconds(self, rows: int) -> float:
        return self.one + self.row * (rows - 1)

    def __call__(self, ids: Tensor, cache: ToyCache, rows: int) -> Tensor:
        cache.fed = [0] * len(ids)
        cache.advance(len(ids))
        self.clock.seconds += self.seconds(rows) * (1 + self.noise * self.luck.uniform(-1, 1))
        return torch.tensor([self.right, 1 - self.right]).log().expand(rows, -1)


class Tiring:
    """A drafter whose tokens are right less often the further it runs ahead."""

    def __init__(self, model: Costly, rights: Sequence[float]) -> None:
        self.model, self.rights = model, rights

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        self.model.clock.seconds += n * self.model.one
        rights = torch.tensor([self.rights[min(i, len(self.rights) - 1)] for i in range(n)])
        chosen = torch.tensor([int(self.model.luck.random() > right) for right in rights.tolist()])
        return Draft(chosen.long(), torch.stack([rights, 1 - rights], -1).view(n, 2))

    def rollback(self, length: int) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


@dataclass
class World:
    """A target with a planner below it, and what is between two rounds."""

    target: Costly
    arms: Sequence[Level]
    gap: float = 0.0
    least: int = 0
    gamma: int = 16
    made: list[tuple[Level | None, int, int]] = field(default_factory=list)  # (arm, proposed, kept) of rounds

    def __post_init__(self) -> None:
        self.clock = self.target.clock
        self.planner = Planner(
            StepTimes(), NoLookup(2), [Arm(arm) for arm in self.arms], clock=self.clock, least=self.least
        )
        self.top = Speculative("target", self.target, ToyCache(), self.planner, self.gamma, lambda _: None)
        self.tokens = torch.tensor([1])
        self.sampler = Sampler(WARM)

    def run(self, tokens: int) -> float:
        """Seconds per token."""
        began, before = self.clock.seconds, len(self.tokens)
        while len(self.tokens) < before + tokens:
            left = before + tokens - len(self.tokens)
            kept = self.top.step(self.tokens, self.sampler, left - 1).tokens
            self.tokens = torch.cat([self.tokens, kept])
            arm = self.planner.choice.arm
            self.made.append((arm and arm.level, self.planner.choice.n, len(kept)))
            self.clock.seconds += self.gap
        self.top.rollback(len(self.tokens) - 1)
        return (self.clock.seconds - began) / tokens

    @property
    def plain(self) -> float:
        return self.target.seconds(1) + self.gap

    def best(self, cost: float, chances: Sequence[float]) -> float:
        """Seconds per token of the best number of tokens to draft, or of none."""
        found = [self.plain] if not self.least else []
        for n in sizes(1, self.gamma):
            passing = itertools.accumulate(chances[:n], lambda a, b: a * b)
            found.append((n * cost + self.target.seconds(n + 1) + self.gap) / (1 + sum(passing)))
        return min(found)


def world(right: float, cost: float, row: float = 0.04, gap: float = 0.002, **options: Any) -> World:
    """A target of 0.1 s a step, over a draft that costs and knows so much."""
    clock = FakeClock()
    target = Costly(clock, 0.1, 0.1 * row, noise=0.05)
    draft = Autoregressive(Costly(clock, cost, right=right), ToyCache())
    return World(target, [draft], gap, **options)


RATES = [0.0, 0.3, 0.6, 0.8, 0.9, 0.97]
COSTS = [0.001, 0.01, 0.03, 0.09]


@pytest.mark.parametrize("row", [0.0, 0.04, 0.3])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("right", RATES)
def test_it_finds_the_best_number_of_tokens(right: float, cost: float, row: float) -> None:
    here = world(right, cost, row)
    best = here.best(cost, [right] * 16)
    here.run(200)
    assert here.run(1000) < best / 0.95 * 1.02  # two per cent for luck
