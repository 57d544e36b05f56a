"""Constrained answers of models that think: the form is prescribed for the answer, not for the thought before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from triforce_chat.engine.detokenizer import Thinking
from triforce_chat.engine.sampling.constraint import Constraint


class AfterThought:
    """Implements ``engine.sampling.constraint.Constraint``: whatever is thought, the answer keeps to another one."""

    def __init__(self, inner: Constraint, thinking: Thinking, ends: Collection[int]) -> None:
        """``ends``: tokens that end an answer, which none may do before it has begun."""
        self._inner, self._thinking = inner, thinking
        self._ends = [number for number in ends if number >= 0]
        self._open, self._over = thinking.opened, False

    def allowed(self, drafted: Sequence[int], vocabulary: int) -> Tensor:
        first = 0 if self._open else 1  # rows before the thought
        if self._over or (first and [*drafted[:1]] != [self._thinking.begin]):
            rows = self._inner.allowed(drafted, vocabulary)
            rows[0, self._thinking.begin] |= not self._over
            return rows
        rows = torch.ones(len(drafted) + 1, vocabulary, dtype=torch.bool)
        rows[first:, self._ends] = False
        if first:
            rows[:1] = self._inner.allowed([], vocabulary)
            rows[0, self._thinking.begin] = True
        if self._thinking.end in drafted:
            after = drafted.index(self._thinking.end) + 1
            rows[after:] = self._inner.allowed(drafted[after:], vocabulary)
        return rows

    def forced(self, most: int) -> Sequence[int]:
        return self._inner.forced(most) if self._over else []

    def advance(self, ids: Sequence[int]) -> None:
        for at, token in enumerate(ids):
            if self._over or not (self._open or token == self._thinking.begin):
                self._over = True
                return self._inner.advance(ids[at:])
            self._open, self._over = True, token == self._thinking.end
        return None
