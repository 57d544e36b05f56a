"""Means over the positions of several samples, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Sum(NamedTuple):
    """What one sample adds to a mean."""

    total: float
    positions: int


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over positions; the standard error takes samples, not positions, for independent."""

    value: float
    error: float | None  # None: a single sample tells nothing of its spread
    positions: int
    samples: int

    def __str__(self) -> str:
        return f"{self.value:.3f}" + (f" ±{self.error:.3f}" if self.error is not None else "")


def mean(sums: Sequence[Sum]) -> Mean | None:
    """Pooled over all positions, long samples counting for more; None where there is no position."""
    counted = [each for each in sums if each.positions]
    positions = sum(each.positions for each in counted)
    if not positions:
        return None
    value = sum(each.total for each in counted) / positions
    k = len(counted)
    if k == 1:
        return Mean(value, None, positions, k)
    spread = sum((each.total - each.positions * value) ** 2 for each in counted)
    return Mean(value, math.sqrt(spread * k / (k - 1)) / positions, positions, k)
