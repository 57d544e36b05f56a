"""What a planner decides about the next rounds of its level, and what it expects of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from triforce_chat.engine.cuda_graph import SIZES
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.lookup import ORDERS
from triforce_chat.engine.tree import Parents, depth_of

# Rows of a verification: few sizes, as each is captured once; a proposal may be some tokens longer than requested. The
# last two serve where keys and values are streamed and nothing is captured.
ROWS = (*SIZES[:-1], 48, 64)
NEVER = ORDERS + 1  # longer than any match


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of the next rounds: each drafts ``n`` tokens by ``arm``, or by lookup if that is None.

    If lookup finds a match of at least ``threshold`` tokens, its tokens replace those of the arm. With ``parents`` the
    arm drafts a tree of that shape, to which lookup adds ``branch`` tokens.
    """

    n: int
    arm: Arm | None = None
    rate: float = 0.0  # expected tokens per second; 0 for a trial, a fixed plan or if it is unknown
    rounds: int = 1
    threshold: int = NEVER
    parents: Parents = ()
    branch: int = 0
    forced: Sequence[int] = ()  # the draft itself, where the form of the answer prescribes it

    @property
    def plain(self) -> bool:
        """No draft."""
        return self.arm is None and self.n == 0

    @property
    def longest(self) -> int:
        """The most tokens that a round may commit."""
        return 1 + (depth_of(self.parents) if self.parents else self.n)

    @property
    def trial(self) -> bool:
        return self.arm is not None and self.n > 0 and self.rate == 0


class Proposals(NamedTuple):
    """How several rounds make one proposal.

    ``most``: tokens that they may make, for which the draft's window has room. ``spare``: rounds beyond those expected
    to be needed, where a drafted token costs next to nothing beside the verification that lacks it.
    """

    most: int = 64
    spare: int = 0


class Expected(NamedTuple):
    """Time and tokens that a planner expected of all rounds so far, trials included."""

    seconds: float
    tokens: float

    def since(self, before: Expected) -> float | None:
        """Expected milliseconds per token of the rounds since ``before``; None if there were none."""
        tokens = self.tokens - before.tokens
        return 1000 * (self.seconds - before.seconds) / tokens if tokens > 0 else None


def sizes(least: int, most: int) -> list[int]:
    """Numbers of drafted tokens whose verifications have one of the captured sizes."""
    return [rows - 1 for rows in ROWS if least < rows <= most + 1]
