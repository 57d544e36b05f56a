"""A round of a level that has been launched, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from triforce_chat.engine.draft import Draft, Verdict
from triforce_chat.engine.host_copy import HostCopy
from triforce_chat.engine.sampling.executor import NOT_FINITE
from triforce_chat.engine.speculation.lookup import LookedUp
from triforce_chat.engine.speculation.plan import Plan
from triforce_chat.errors import ModelError


@dataclass(slots=True)
class Round:
    """A draft and its verification that have been launched."""

    plan: Plan
    draft: Draft
    logits: Tensor  # [B, n+1, V]
    match: LookedUp | None  # what lookup drafts in this round, or found for it on the device
    marks: tuple[Any, Any] | None  # of the clock: before and after the draft; None without a drafter
    began: float  # seconds of the host's clock
    captures: int  # on this device until it began
    verdict: Verdict = field(init=False)
    outcome: HostCopy = field(init=False)  # the numbers of an ``Outcome`` for each sequence
    verified: Any = field(init=False)  # mark of the clock after the verification
    following: LookedUp | None = None  # found on the device for the next round
    timed: bool = True  # nothing was captured in it, so its times say something
    path: Tensor | None = None  # [m], of a tree's tokens those that passed, then any; None for a chain

    def read(self) -> Outcome:
        """Wait for the outcome of a single sequence."""
        found = 0 if self.match is None or self.following is None else self.match.tokens.shape[1]
        return Outcome.of(self.outcome.read()[0], found, self.path is not None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one round of one sequence, as the host reads it."""

    ids: list[int]  # committed: accepted, then one recovered or bonus token
    complete: bool  # no top-p nucleus was cut short
    drafted: int
    # Where lookup searched on the device: how many of the tokens that it found came true, and the length of the match
    right: int
    match: int
    finite: bool = True  # all tokens were drawn from distributions
    path: Sequence[int] = ()  # of a tree's tokens: those that passed

    def checked(self) -> Outcome:
        """This outcome. Raises ModelError if the model computed no distribution for a token."""
        if not self.finite:
            raise ModelError(
                "the model computed no finite scores for the next token: its weights are damaged, or too large for "
                "their format (--dtype float32 may help)"
            )
        return self

    @staticmethod
    def of(numbers: list[int], found: int = 0, tree: bool = False) -> Outcome:
        """An outcome from the numbers of a ``SamplerOutput``.

        If lookup searched on the device, its ``found`` tokens follow them, then the length of their match.
        """
        own = numbers[: -found - 1] if found else numbers
        *looked_up, match = numbers[len(own) :] or (0,)
        rows = own[len(own) // 2 + 2 :] if tree else []
        count, *ids, drafted, complete = own[: len(own) - len(rows)]
        same = [mine == committed for mine, committed in zip(looked_up, ids[:count], strict=False)]
        right = (*same, False).index(False)
        read = ids[:count], bool(complete), drafted, right, match, complete != NOT_FINITE
        return Outcome(*read, [row - 1 for row in rows[1:count]])

    @property
    def accepted(self) -> int:
        """Drafted tokens that passed."""
        return len(self.ids) - 1
