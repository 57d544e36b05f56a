"""Models that take their time on a clock of their own, so that the best plan can be computed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from support.toys import Stateless, ToyCache
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.cost_model import Clock
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.tree import Branches

CPU = torch.device("cpu")
WARM = Sampling(temperature=1.0, seed=0)


class FakeClock(Clock):
    """Stands still while nothing is done."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Jumpy(FakeClock):
    """Every look at it takes an arbitrary time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.luck = random.Random(seed)

    def now(self) -> float:
        self.seconds += 10 ** self.luck.uniform(-5, 1)
        return self.seconds


def set_clocks(engine: Engine, seed: int) -> None:
    """Give each level of the engine such a clock, so that its plans are the same on every machine."""
    level: Any = engine.top
    while isinstance(level, Speculative):
        level.clock = Jumpy(seed)
        arms = level.planner.arms
        level = arms[0].drafter if arms else None


@dataclass
class Costly(Stateless):
    """A model that is right (token 0) with a certain chance, takes all other tokens for equal, and takes its time."""

    clock: FakeClock
    one: float  # seconds of a step of one row
    row: float = 0.0  # of every further row
    right: float = 1.0
    noise: float = 0.0
    vocabulary: int = 2
    device: torch.device = CPU
    captures: bool = False
    places_on_device: bool = False
    sequences: int = 1
    luck: random.Random = field(default_factory=lambda: random.Random(0))

    def seconds(self, rows: int) -> float:
        return self.one + self.row * (rows - 1)

    def __call__(
        self,
        ids: Tensor,
        cache: ToyCache,
        rows: int,
        offset: Tensor | None = None,
        tree: Branches | None = None,  # noqa: ARG002
    ) -> Tensor:
        assert offset is None
        cache.fed = [0] * ids.shape[1]
        cache.advance(ids.shape[1])
        self.clock.seconds += self.seconds(rows) * (1 + self.noise * self.luck.uniform(-1, 1))
        wrong = self.vocabulary - 1
        return torch.tensor([self.right, *wrong * [(1 - self.right) / wrong]]).log().expand(1, rows, -1)

    def loop(self, cache: ToyCache) -> None:  # noqa: ARG002
        raise AssertionError("it captures nothing")


def clocked(name: str, model: Costly, planner: Planner, overlap: bool = False) -> Speculative:
    """A level that lives by its model's clock."""
    cache = ToyCache()
    level = Speculative(name, model, cache, planner, lambda _: None, overlap=overlap)  # type: ignore[arg-type]
    level.clock = model.clock
    return level
