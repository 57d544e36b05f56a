"""Limits the time spent on capturing CUDA graphs during answers to what drafts can win back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from triforce_chat.engine.cuda_graph import Captures

# Share of the time of plain decoding that captures may take: about half of what drafts save.
INVESTED = 0.25
SURE = 32  # tokens; an answer without an end in sight is expected to grow by as many, or by as many as it has
# (arm, drafted tokens) -> number of graphs that are to be captured before a round of that kind
Lacking = Callable[[Any, int], int]


def nothing_lacking(arm: Any, n: int) -> int:  # noqa: ARG001
    """Where nothing is captured."""
    return 0


class Investment:
    """The allowance for captures; the levels of a stack share it, and the top level renews it before each round.

    The captures of a plan must not take longer than what the plan saves in the expected rest of the answer. All
    captures together must not take more than a share (``INVESTED``) of the time of all answers, including that rest, at
    their pace; what one answer does not use is left for later ones. Most answers end long before their limit: the rest
    is expected to be as long as what is there (at least ``SURE``). ``earned``: seconds that were not used so far.
    ``quoted``: seconds that tokens took after lookup's longest matches, since the latest capture. ``unlimited``: plans
    must not depend on what happens to be captured.
    """

    def __init__(self, captures: Captures, unlimited: bool = False) -> None:
        self.captures, self.unlimited = captures, unlimited
        self.earned = self.quoted = 0.0
        self.lacking: dict[Hashable, int] = {}  # captures that plans lack, since the latest capture or answer
        self.rest, self.made = 0, 0  # tokens of the answer: to come at most, and made
        self.expected_rest = SURE  # tokens
        self.rest_seconds = 0.0  # that the expected rest takes
        self.counted = 0  # captures that were paid for, or made outside of answers

    def begin(self, rest: int) -> None:
        """An answer of up to ``rest`` tokens begins."""
        self.rest, self.made, self.counted = rest, 0, self.captures.count
        self.expected_rest, self.rest_seconds = min(rest, SURE), 0.0
        self.lacking.clear()

    def renew(self, rest: int, pace: float) -> None:
        """Up to ``rest`` tokens are still to come, each of which takes ``pace`` seconds as things are."""
        spent = (self.captures.count - self.counted) * self.captures.mean
        if spent:
            self.lacking.clear()
            self.quoted = 0.0
        self.earned += INVESTED * pace * (self.rest - rest) - spent
        self.made += self.rest - rest
        self.rest, self.counted = rest, self.captures.count
        self.expected_rest = min(rest, max(SURE, self.made))
        self.rest_seconds = self.expected_rest * pace

    def allows(self, captures: int, won: float) -> bool:
        """Whether so many captures may be made now for ``won`` seconds; none always may."""
        most = min(won, self.rest_seconds, self.earned + INVESTED * self.rest_seconds)
        return captures == 0 or self.seconds(captures) <= most

    def won(self, saved: float) -> float:
        """Seconds that a plan wins in the expected rest of the answer if it saves ``saved`` of each token."""
        return self.expected_rest * saved

    def seconds(self, captures: int) -> float:
        """What so many captures take."""
        return captures * self.captures.mean
