"""The results of the self-test, one line per stack."""

from __future__ import annotations

from triforce_chat.chat.events import Outcome
from triforce_chat.ui.terminal import Screen


def show_outcome(outcome: Outcome, screen: Screen) -> None:
    """Print the result of one stack on stdout."""
    greedy = f"{outcome.greedy_tokens} greedy tokens, {outcome.mismatches} differ"
    if outcome.ties:
        greedy += f", {outcome.ties} near ties"
    sampled = f"{outcome.sampled_tokens} sampled tokens, p = {outcome.p_value:.3f}"
    if outcome.sampled_ties:
        sampled += f", {outcome.sampled_ties} near ties"
    screen.out.print(
        f"{'exact ' if outcome.passed else 'FAILED'} {outcome.stack:<15} {greedy}; {sampled}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
