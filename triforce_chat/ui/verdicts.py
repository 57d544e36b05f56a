"""The self-test's results, one line a stack."""

from __future__ import annotations

from typing import Protocol

from triforce_chat.ui.terminal import Screen


class Outcome(Protocol):
    """What a tested stack showed; ``verification.Outcome`` provides it."""

    @property
    def stack(self) -> str: ...
    @property
    def greedy_tokens(self) -> int: ...
    @property
    def ties(self) -> int: ...
    @property
    def mismatches(self) -> int: ...
    @property
    def sampled_tokens(self) -> int: ...
    @property
    def p_value(self) -> float: ...
    @property
    def passed(self) -> bool: ...


def show_outcome(outcome: Outcome, screen: Screen) -> None:
    """Print one verdict on stdout."""
    greedy = f"{outcome.greedy_tokens} greedy tokens, {outcome.mismatches} differ"
    if outcome.ties:
        greedy += f", {outcome.ties} near ties"
    screen.out.print(
        f"{'exact ' if outcome.passed else 'FAILED'} {outcome.stack:<15} {greedy}; "
        f"{outcome.sampled_tokens} sampled tokens, p = {outcome.p_value:.3f}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
