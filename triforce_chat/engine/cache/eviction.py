"""What a cache forgets that may not grow: the rules by which the target's own keys and values are evicted."""

from __future__ import annotations

from dataclasses import dataclass

from triforce_chat.errors import UsageError

SINKS, WINDOW = 16, 240  # tokens that a streaming cache holds at least: attention sinks and the latest ones
STREAMING, H2O, STREAMING_H2O = EVICTIONS = ("streaming", "h2o", "streaming-h2o")
ENDLESS = 1 << 40  # tokens: the context where a cache forgets
STEPS = 8  # a cache of so many steps forgets one step at a time


@dataclass(frozen=True, slots=True)
class Eviction:
    """How a cache of at most ``keep`` tokens forgets; sizes in tokens.

    It forgets where the number of tokens so far is a multiple of ``step``, and then ``step`` of them. ``streaming``
    keeps the ``sinks`` first and the latest tokens (StreamingLLM, arXiv 2309.17453); ``h2o`` those that each head has
    paid most attention to, and as many of the latest ones (H2O, arXiv 2306.14048). Positions are counted inside the
    cache, except by ``h2o``.
    """

    policy: str  # one of EVICTIONS
    keep: int
    step: int
    sinks: int = SINKS

    @staticmethod
    def of(policy: str, keep: int) -> Eviction:
        """The rule for a cache of a user's size. Raises UsageError for one that is too small."""
        step = keep // STEPS
        needed = SINKS + WINDOW + step
        if keep < needed:
            raise UsageError(
                f"--keep {keep} is too small: {SINKS} sinks, a window of {WINDOW} and a step of {step} take {needed} "
                "tokens"
            )
        return Eviction(policy, keep, step)

    @property
    def left(self) -> int:
        """Tokens that an eviction leaves."""
        return self.keep - self.step

    @property
    def weighs(self) -> bool:
        """Whether the attention that was paid to a token decides."""
        return self.policy != STREAMING

    @property
    def renumbers(self) -> bool:
        """Whether positions are counted inside the cache."""
        return self.policy != H2O

    @property
    def recent(self) -> int:
        """The latest tokens, which an eviction keeps in any case."""
        return self.left - self.left // 2 if self.weighs else self.left - self.sinks
