"""The lines of the self-test."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console
from support.consoles import written

from triforce_chat.chat.events import Outcome
from triforce_chat.ui.self_test import show_outcome
from triforce_chat.ui.terminal import Screen

EXACT = Outcome("triforce", 512, True, 0, 0, 512, 0, 0.25)


def shown(outcome: Outcome) -> str:
    console = Console(file=io.StringIO(), width=60)
    show_outcome(outcome, Screen(console, console, "bare"))
    return written(console)


def test_a_line_for_each_stack() -> None:
    told = "512 greedy tokens, 0 differ; 512 sampled tokens, p = 0.250"
    assert shown(EXACT) == f"exact  triforce        {told}\n"
    assert shown(replace(EXACT, p_value=1e-5)).startswith("FAILED triforce ")
    assert shown(replace(EXACT, mismatches=1)).startswith("FAILED triforce ")


def test_ties_are_shown_beside_what_they_were_found_in() -> None:
    told = "512 greedy tokens, 0 differ, 2 near ties; 509 sampled tokens, p = 0.250, 3 near ties"
    tied = replace(EXACT, identical=False, ties=2, sampled_tokens=509, sampled_ties=3)
    assert shown(tied) == f"exact  triforce        {told}\n"
