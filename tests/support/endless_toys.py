"""Toys of a target whose own cache forgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from support.toys import Context, Stack, ToyCache, ToyModel, toy

Forgetting = Callable[[Sequence[int]], list[int]]
KEEP, STEP = 5, 3  # tokens


def sink_and_latest(held: Sequence[int]) -> list[int]:
    """A rule like streaming's."""
    return [held[0], held[-1]]


def weightiest_and_latest(held: Sequence[int]) -> list[int]:
    """A rule like H2O's: what stays depends on the tokens."""
    weights = [(token * (at + 2)) % 4 for at, token in enumerate(held[:-1])]
    return [held[weights.index(max(weights))], held[-1]]


def seen(context: Context, rule: Forgetting) -> Context:
    """What is left of a context when its last token was fed, straight from the definition."""
    held: list[int] = []
    for at, token in enumerate(context):
        if at and at % STEP == 0 and len(held) + STEP > KEEP:
            held = rule(held)
        held.append(token)
    return tuple(held)


class ForgetfulCache(ToyCache):
    """An evicting cache of ids; ``bounded``: forwards end where it forgets."""

    def __init__(self, rule: Forgetting, bounded: bool = True) -> None:
        super().__init__()
        self.rule, self.bounded = rule, bounded
        self.settled = self.forgotten = 0

    @property
    def length(self) -> int:
        return self.forgotten + len(self.ids)

    @length.setter
    def length(self, _: int) -> None:
        raise AssertionError("only advance and truncate change a cache")

    @property
    def limit(self) -> int:  # type: ignore[override]
        return (self.length // STEP + 1) * STEP if self.bounded else ToyCache.limit

    def pending(self, tokens: Tensor, _: int = 0) -> Tensor:
        due = self.length // STEP * STEP
        if due > self.settled and (due == self.length or not self.bounded):
            if len(self.ids) + STEP > KEEP:
                kept = self.rule(self.ids)
                self.forgotten += len(self.ids) - len(kept)
                self.ids = kept
            self.settled = self.length
        return tokens[self.length :]

    def advance(self, n: int) -> None:
        assert self.length + n <= self.limit
        super().advance(n)

    def truncate(self, length: int) -> None:
        assert length >= self.settled, "cut to less than it held when it forgot"
        super().truncate(length - self.forgotten)


@dataclass
class Forgetful(ToyModel):
    """The same target by definition: its table sees what is left of the whole context."""

    rule: Forgetting = field(default=sink_and_latest)

    def logits(self, context: Context) -> Tensor:
        return super().logits(seen(context, self.rule))


def forgetting(stack: Stack, rule: Forgetting, bounded: bool = True) -> Stack:
    """The stack over a target that forgets."""
    stack.parts[0] = stack.top.cache = ForgetfulCache(rule, bounded)  # type: ignore[assignment]
    return stack


def by_definition(seed: int, rule: Forgetting) -> Forgetful:
    return Forgetful(3, toy(seed).table, rule=rule)
