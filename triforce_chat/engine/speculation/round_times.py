"""What the rounds of one level take: a verification, what is between two, and a token without a draft."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from triforce_chat.engine.speculation.calibration import FORGET, LevelTimes
from triforce_chat.engine.speculation.cost_model import (
    DISTURBED,
    FIRST,
    FORGET_TIME,
    Average,
    StepShape,
    StepTimes,
)

# After so many rounds, what a waited round takes is no longer known, but taken to be at most so many times what a token
# takes that is decoded ahead of the host.
WAIT_AGAIN, AT_MOST = 64, 1.5
PAUSE = 3.0  # steps; a longer pause between two rounds is not part of their cost


class RoundTimes:
    """What a level's rounds take, as they were measured; ``row``: see ``StepTimes``."""

    def __init__(self, row: float) -> None:
        self.row = row
        self.steps = StepTimes(row)  # of verifications
        self.gap = Average(FORGET)  # seconds from one round to the next
        # Seconds per token decoded without drafts, with overlapping forwards.
        self.undrafted = Average(FORGET)
        # Tokens decoded without drafts up to now, each launched before the host had read the one before it.
        self.in_a_row = 0
        self.waited_at = 0  # the latest round that was waited for
        # Whether a round that waits was much faster than tokens decoded ahead of the host had been; more than once,
        # that is no sign of a disturbed start.
        self.disproved = False

    def use(self, known: LevelTimes) -> None:
        """Go on from times that were measured before."""
        self.steps, self.gap, self.undrafted = known.steps, known.gap, known.undrafted
        if not self.steps.known:
            self.steps.shape = StepShape(self.row)
        self.in_a_row = 0

    # What is expected of round ``now``

    def round(self, now: int) -> tuple[float, float]:
        """Seconds of a round that drafts, beside its drafted tokens, and of verifying each of these."""
        return self._limited(now, *self.steps.line)

    def waiting(self, now: int) -> float:
        """Seconds of a round without a draft that is waited for."""
        return self._limited(now, self.steps(1), 0.0)[0]

    def _limited(self, now: int, first: float, more: float) -> tuple[float, float]:
        """What a waited round takes, as far as it is known: ``first`` and ``more`` were measured of verifications."""
        if not self.steps.known:
            return self.undrafted.mean, self.row * self.undrafted.mean
        if self.undrafted.weight >= 1 and not self._waited_lately(now):
            usual = AT_MOST * self.undrafted.mean
            return min(first + self.gap.mean, usual), min(more, self.row * usual)
        return first + self.gap.mean, more

    def _waited_lately(self, now: int) -> bool:
        """Whether what a waited round takes was measured by more than the first one, and not long ago.

        Otherwise, where tokens are decoded ahead of the host, a single round in which something was prepared, or the
        host was busy, would keep drafts from ever being made again.
        """
        return self.steps.level.weight >= 1 and now - self.waited_at <= WAIT_AGAIN

    def step(self, now: int) -> tuple[float, float]:
        """As ``round``; shares of a step until something was measured."""
        first, more = self.round(now)
        return (first, more) if first else (1.0, self.row)

    def interruption(self, now: int) -> float:
        """Seconds that a round with a draft costs the token after it, which is not launched ahead of the host then."""
        waits = self.in_a_row and self.steps.known
        return max(0.0, self.waiting(now) - self.undrafted.mean) if waits else 0.0

    @property
    def plain_seconds(self) -> float:
        """Seconds per token without drafts; 0 before the first measurement."""
        if self.undrafted.weight or not self.steps.known:
            return self.undrafted.mean
        return self._one_waited

    @property
    def _one_waited(self) -> float:
        """Seconds of a token without a draft that is waited for."""
        return self.steps.one_row + self.gap.mean

    # What was measured

    def add_step(self, rows: int, seconds: float) -> None:
        """A verification of so many rows took so many seconds; none makes a token faster than one decoded ahead is."""
        self.steps.add(rows, seconds)
        if self.disproved or self.steps.level.weight < 1:
            return
        if self._one_waited < self.undrafted.mean / DISTURBED:
            self.disproved = True
            self.undrafted.clear()
            self.undrafted.add(self._one_waited, FIRST)

    def waited(self, now: int) -> None:
        """Round ``now`` is waited for."""
        if now - self.waited_at > WAIT_AGAIN:
            self.steps.level.fade()
        self.waited_at = now

    def add_plain(self, seconds: float, stale: bool) -> None:
        """A token was decoded without a draft while the host read the previous one.

        ``stale``: the last ones are long ago.
        """
        seconds = max(seconds, 1e-6)  # a coarse clock must not promise infinite speed
        if self.undrafted.weight:
            seconds = min(seconds, PAUSE * self.undrafted.mean)
        # The first of several waits for its launch.
        if seconds < self.undrafted.mean / DISTURBED:
            self.undrafted.clear()
        elif self.in_a_row and stale:
            self.undrafted.fade()
        self.undrafted.add(seconds, 1.0 if self.in_a_row else FIRST)
        self.in_a_row += 1

    def add_gap(self, seconds: float) -> None:
        """The host was busy with other things for so long between two rounds."""
        usual = min(self.steps(1), self.undrafted.mean) if self.undrafted.weight else self.steps(1)
        self.gap.add(min(seconds, PAUSE * usual))


class CurrentPlainTime:
    """What a token without a draft takes as the machine is now, which speculation is held against in what is shown.

    Stored times may be of a busier machine, and repeatable plans go by them whatever the clock says. So they are scaled
    as verifications differ from theirs, and give way to tokens that are decoded without drafts.
    """

    def __init__(self) -> None:
        self.own = Average(FORGET_TIME)  # seconds of tokens without drafts, in this process
        self.pace = Average(FORGET_TIME)  # seconds of verifications, as multiples of the stored ones
        self.then = 0.0  # the pace at the latest token without a draft; 0: not known
        self.verification: Callable[[int], float] = lambda _: 0.0  # stored seconds, by its rows
        self.stored = 0.0  # seconds of a token without a draft

    def use(self, times: RoundTimes) -> None:
        """Go on from times that were measured before."""
        one, shape = times.steps.level.mean, copy(times.steps.shape)
        self.verification, self.stored = lambda rows: one * shape(rows), times.plain_seconds
        self.own.clear()
        self.pace.clear()

    def plain(self, seconds: float) -> None:
        """A token without a draft took so many seconds; the first may have waited for preparations."""
        if seconds < self.own.mean / DISTURBED:
            self.own.clear()
        weight = 1.0 if self.own.weight else FIRST
        self.own.add(min(seconds, PAUSE * self.own.mean or seconds), weight)
        self.then = self.pace.mean

    def verified(self, rows: int, seconds: float) -> None:
        """A verification of so many rows took so many seconds."""
        if expected := self.verification(rows):
            self.pace.add(min(PAUSE, seconds / expected))

    @property
    def measured(self) -> bool:
        """Whether tokens were decoded without drafts."""
        return self.own.weight > 0

    def seconds(self, times: RoundTimes) -> float:
        """Of a token without a draft, by ``times`` where nothing was stored or measured; 0 if nothing is known."""
        if self.measured:
            return self.own.mean * (self.pace.mean / self.then if self.then else 1.0)
        return self.stored * self.pace.mean or times.plain_seconds
