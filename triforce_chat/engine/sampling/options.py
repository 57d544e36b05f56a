"""What a user may ask of sampling; checked here, before anything slow is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from triforce_chat.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``temperature`` 0 is greedy; 0 or 1 switch the other filters off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over the tokens of this answer, never over the document
    seed: int | None = None

    def __post_init__(self) -> None:
        checks = {
            "temperature must be 0 or more, and finite": 0 <= self.temperature < math.inf,
            "temperature must be 0, or from 1e-30 to 1e30": not self.temperature or _usable(self.temperature),
            "top-k must be 0 (off) or more": self.top_k >= 0,
            "top-p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min-p must be at least 0 and below 1": 0 <= self.min_p < 1,
            "repetition penalty must be above 0, and finite": 0 < self.repetition_penalty < math.inf,
            "repetition penalty must be from 1e-30 to 1e30": _usable(self.repetition_penalty),
            "seed must be at least 0 and below 2**63": self.seed is None or 0 <= self.seed < 2**63,
        }
        for complaint, holds in checks.items():
            if not holds:
                raise UsageError(complaint)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        """Whether unlikely tokens are left out."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def _usable(factor: float) -> bool:
    """Whether scores in fp32 can be multiplied by a factor, and divided by it, and still have a distribution."""
    return 1e-30 <= factor <= 1e30
