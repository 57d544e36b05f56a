"""What captures in the midst of an answer may cost: they have to win it back before its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triforce_chat.engine.cuda_graph import Captures

# Share of the time of the rest of an answer, decoded plainly, that captures may take: about half of what drafts save.
INVESTED = 0.25
# (arm, drafted tokens) -> number of graphs that are to be captured before a round of that kind
Lacking = Callable[[Any, int], int]


def nothing_lacking(arm: Any, n: int) -> int:  # noqa: ARG001
    """Where nothing is captured."""
    return 0


class Investment:
    """The allowance of one answer; the levels of a stack share it, and the top level renews it before each round."""

    def __init__(self, captures: Captures) -> None:
        self.captures = captures
        self.before = 0.0  # seconds of all captures until the present answer began
        self.seconds = 0.0  # that captures may take now

    def begin(self) -> None:
        """An answer begins."""
        self.before, self.seconds = self.captures.seconds, 0.0

    def renew(self, rest: float) -> None:
        """Plain decoding of the rest of the answer would take ``rest`` seconds."""
        self.seconds = INVESTED * rest - (self.captures.seconds - self.before)

    def allows(self, captures: int) -> bool:
        """Whether so many captures may be made now; none are always allowed."""
        return captures == 0 or captures * self.captures.mean <= self.seconds
