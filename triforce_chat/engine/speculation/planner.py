"""Chooses, round by round, who drafts and how much: the cost model of TriForce over measured times.

Expected tokens of a round over its expected seconds, with times and acceptance as they were lately. A planner
is itself a drafter, so each level of a hierarchy can have one. Decisions look only at what is already revealed
(the history, past verdicts, the clock), so the output stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor

from triforce_chat.engine.cuda_graph import SIZES
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.acceptance import Survival
from triforce_chat.engine.speculation.level import Level
from triforce_chat.engine.speculation.lookup import Forecast, NgramLookup
from triforce_chat.engine.speculation.step_times import FIRST, Average, Clock, HostClock, StepTimes

ROWS = SIZES[
    :-1
]  # of a verification: few, for each is captured once; some tokens more may come than were asked for
GAIN = 1.03  # speculation must promise this much over plain decoding
HABIT = 1.05  # and another choice this much over the last one
TRY_AFTER = 3  # rounds before an unmeasured drafter gets its first trial
TRIALS = (1, 2)  # tokens of the first trials; the very first may have to prepare its sizes
TRY_AGAIN = 16  # rounds after which a drafter that was not far off is tried again, doubled each time in vain
NOT_FAR_OFF = 0.8
FAR_OFF = 4  # times as long a wait for the others: what they were tried in may have changed
PREPARED = 3.0  # times as dear as now: then something was prepared
MOST_AHEAD = 128  # tokens made ahead of the host until there is a round again
FIRST_AHEAD = 8  # the same before one has told how long the host is waited for
PAUSE = 3.0  # steps; what takes longer between two rounds is none of their costs
FORGET = 0.9  # weight of the past in costs and gaps
FORGET_RECORD = 0.98  # weight of the past in the lookup's record
FORGET_UNUSED = 0.997  # the same at a round without lookup
CANDID = 6.0  # tokens of lookup for which its forecasts are believed as they are


@dataclass(slots=True)
class Arm:
    """A drafting level with its running cost and acceptance."""

    level: Level
    worth_above: int = 0  # shortest history for which it can pay at all
    cost: Average = field(default_factory=lambda: Average(FORGET))  # seconds per drafted token
    beyond: Average = field(default_factory=lambda: Average(FORGET))  # tokens made above those asked for
    survival: Survival = field(default_factory=Survival)
    trials: int = 0  # the first ones
    asked: bool = False  # ever
    measured_at: int = 0  # round of the last measurement
    patience: int = TRY_AGAIN  # rounds until the next trial

    @property
    def measured(self) -> bool:
        return self.cost.weight > 0

    def learn_cost(self, seconds: float, asked: int, made: int, now: int) -> None:
        """What it took to make ``made`` tokens in round ``now``."""
        if seconds / made < self.cost.mean / PREPARED:
            self.cost = Average(FORGET)
        self.cost.add(seconds / made, 1.0 if self.measured else FIRST)
        self.beyond.add(made - asked)
        self.measured_at = now

    def tried(self) -> None:
        """One more trial is under way."""
        if self.trials < len(TRIALS):
            self.trials += 1
        else:
            self.patience *= 2

    def makes(self, n: int) -> int:
        """Tokens to expect where n are asked for."""
        return max(1, round(n + self.beyond.mean))


@dataclass(frozen=True, slots=True)
class Choice:
    """What one round does: ``n`` tokens from ``arm``, or from the lookup where it is None."""

    rate: float  # expected tokens per second; 0: not planned
    n: int
    arm: Arm | None = None

    @property
    def plain(self) -> bool:
        """No draft."""
        return self.arm is None and self.n == 0

    @property
    def trial(self) -> bool:
        return self.arm is not None and self.n > 0 and self.rate == 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A choice for the round behind ``length`` tokens, of at most ``most`` drafted ones."""

    length: int
    most: int
    choice: Choice
    forecast: Forecast


class Expected(NamedTuple):
    """What a planner expected of all rounds so far, its trials included."""

    seconds: float
    tokens: float

    def since(self, before: Expected) -> float | None:
        """Milliseconds per token of the rounds after those; None where there were none."""
        tokens = self.tokens - before.tokens
        return 1000 * (self.seconds - before.seconds) / tokens if tokens > 0 else None


class Planner:
    """A drafter that is the best of plain decoding, lookup, and its arms.

    ``least`` is 1 where the arms have to draft in any case, and only how much is open.
    """

    def __init__(
        self,
        times: StepTimes,
        lookup: NgramLookup,
        arms: Sequence[Arm],
        group: RankGroup = SINGLE,
        clock: Clock | None = None,
        least: int = 0,
    ) -> None:
        self.times, self.lookup, self.arms, self.group = times, lookup, arms, group
        self.clock, self.least = clock or HostClock(), least
        self.rounds = 0
        self.choice = self.habit = Choice(0.0, 0)  # of this round, and what is usual now
        self.pending: Plan | None = None  # of a round that nobody has asked a draft for yet
        self.undrafted = Average(FORGET)  # seconds of a token that is made without a draft, ahead of the host
        self.wait = Average(FORGET)  # seconds that a round without a draft takes beyond that
        self.run = 0  # tokens made ahead since the last round
        self.forecast: list[float] = []
        self.drafting: tuple[Any, Any] = (0.0, 0.0)  # marks around the draft
        self.began = 0.0
        self.ended: float | None = None  # the last round; None: something else came since
        self.gap = Average(FORGET)  # seconds from one round to the next
        self.hoped = self.came = CANDID  # tokens of lookup that should have been accepted, and that were
        self.expected = Expected(0.0, 0.0)

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:
        self.choice = self.plan(tokens, n)
        assert self.pending
        forecast, self.pending = self.pending.forecast, None
        self.forecast = forecast.survival
        arm, n = self.choice.arm, self.choice.n
        if arm and self.choice.trial:
            arm.tried()
        before = self.clock.mark()
        draft = arm.level.propose(tokens, n, sampler) if arm else self.lookup.draft(forecast.tokens[:n])
        self.drafting = before, self.clock.mark()
        return draft

    def plan(self, tokens: Tensor, n: int) -> Choice:
        """What a round behind ``tokens`` [m] is to do that may draft n; it may be asked for its draft then."""
        plan = self.pending
        if plan is None or (plan.length, plan.most) != (len(tokens), n):
            self._begin()
            forecast = self.lookup.forecast(tokens, n)
            choice = self._agreed(self._choose(forecast, len(tokens), n))
            plan = self.pending = Plan(len(tokens), n, choice, forecast)
        return plan.choice

    @property
    def runs(self) -> bool:
        """Whether running ahead may go on: now and then a round has to tell what one costs."""
        return self.times.known and self.run < (MOST_AHEAD if self.wait.weight else FIRST_AHEAD)

    def ran(self, seconds: float) -> None:
        """A token was made without a draft, ahead of the host."""
        seconds = max(seconds, 1e-6)  # a coarse clock must not promise infinite speed
        if self.undrafted.weight:
            seconds = min(seconds, PAUSE * self.undrafted.mean)
        self.undrafted.add(seconds)
        self.times.add(1, seconds + self.wait.mean)
        self._remember(0, 0)
        self.expected = Expected(self.expected.seconds + self.undrafted.mean, self.expected.tokens + 1)
        self.run, self.ended = self.run + 1, None

    def _begin(self) -> None:
        self.began = self.clock.now()
        if self.ended is not None:
            self.gap.add(min(self.began - self.ended, PAUSE * self.times(1)))
        self.ended = None
        self.rounds += 1

    def _agreed(self, own: Choice) -> Choice:
        """Rank 0's choice: every rank has a clock of its own."""
        places = [None, *self.arms]
        n, place = self.group.broadcast_ints((own.n, places.index(own.arm)))
        return Choice(own.rate, n, places[place])

    def _choose(self, forecast: Forecast, length: int, n: int) -> Choice:
        if n == 0:
            return Choice(0.0, 0, self.arms[0] if self.least else None)
        able = [arm for arm in self.arms if length >= arm.worth_above]
        options = [self._drafted(arm, n) for arm in able if arm.measured]
        if self.times.known:
            options += [] if self.least else [Choice(1 / self._plain, 0), self._looked_up(forecast)]
        best = max(options, key=self._appeal, default=Choice(0.0, 0))
        trial = self._trial(able, best.rate, n)
        if trial:
            return trial
        if best.arm:
            best.arm.patience = TRY_AGAIN
        if best.arm or best.n == 0:  # a lookup comes and goes
            self.habit = best
        return best

    def _trial(self, able: Sequence[Arm], best: float, most: int) -> Choice | None:
        """One of the arms that nothing, or nothing any more, is known about."""
        for arm in able:
            if arm.trials < len(TRIALS) and (self.least or self.rounds > TRY_AFTER):
                return Choice(0.0, min(TRIALS[arm.trials], most), arm)
            waited = self.rounds - arm.measured_at
            if waited > arm.patience:
                again = self._drafted(arm, most) if arm.measured else Choice(best, min(TRIALS[0], most), arm)
                if again.rate > NOT_FAR_OFF * best or waited > FAR_OFF * arm.patience:
                    return Choice(0.0, again.n, arm)
        return None

    @property
    def _rounds(self) -> tuple[float, float]:
        """Seconds of a round without any draft, and of each drafted token in it without its drafting."""
        first, more = self.times.line
        return first + self.gap.mean, more

    @property
    def _plain(self) -> float:
        """Seconds of a token without a draft."""
        return self.undrafted.mean if self.undrafted.weight else self._rounds[0]

    # The device waits for these two: hence their plain numbers.

    def _looked_up(self, forecast: Forecast) -> Choice:
        record, hopes = self._record, [0.0, *accumulate(forecast.survival)]
        first, more = self._rounds
        rates = {n: (1 + record * hopes[n]) / (first + more * n) for n in sizes(0, len(forecast.survival))}
        n = max(rates, key=rates.__getitem__)
        return Choice(rates[n], n)

    def _drafted(self, arm: Arm, most: int) -> Choice:
        hopes = [0.0, *accumulate(arm.survival.chances(arm.makes(most)))]
        (first, more), each = self._rounds, arm.cost.mean
        made = {n: arm.makes(n) for n in sizes(1, most)}
        rates = {n: (1 + hopes[m]) / (first + (more + each) * m) for n, m in made.items()}
        n = max(rates, key=lambda n: rates[n] * self._habit(arm, n))
        return Choice(rates[n], n, arm)

    def _appeal(self, choice: Choice) -> float:
        """The rate, and more for what needs no change: promises have errors, and the best of many has most."""
        if choice.n == 0:
            return choice.rate * GAIN * (HABIT if self.habit.arm else 1.0)
        return choice.rate * self._habit(choice.arm, choice.n)

    def _habit(self, arm: Arm | None, n: int) -> float:
        """How much more a draft appeals for being the usual one."""
        return HABIT if arm is not None and arm is self.habit.arm and n == self.habit.n else 1.0

    def rollback(self, length: int) -> None:
        self.ended = self.pending = None
        self.lookup.rollback(length)
        for arm in self.arms:
            arm.level.rollback(length)

    def hear(self, length: int, ids: Sequence[int]) -> None:
        self.lookup.hear(length, ids)
        for arm in self.arms:
            arm.level.hear(length, ids)

    def judged(self, proposed: int, accepted: int) -> None:
        drafting = self.clock.between(*self.drafting)
        self.ended = self.clock.now()
        verifying = self.ended - self.began - drafting
        self._expect(proposed, accepted, drafting, verifying)
        self.times.add(1 + proposed, verifying)
        arm, self.run = self.choice.arm, 0
        if self.choice.plain and self.undrafted.weight:
            self.wait.add(max(0.0, verifying - self.undrafted.mean))
        self._remember(proposed if arm is None else 0, accepted)
        if arm is None:
            return
        if proposed:
            arm.learn_cost(drafting, self.choice.n, proposed, self.rounds)
        elif self.choice.n and not arm.asked:
            # What it drafts out of had to be built first: that was no trial.
            arm.trials = max(0, arm.trials - 1)
        arm.asked = arm.asked or self.choice.n > 0
        arm.survival.learn(proposed, accepted)
        arm.level.judged(proposed, accepted)

    def _remember(self, looked_up: int, accepted: int) -> None:
        """The lookup's record: what of its forecasts came true, forgotten while it is not used."""
        forget = FORGET_RECORD if looked_up else FORGET_UNUSED
        hoped, came = (1 - forget) * CANDID, (1 - forget) * CANDID
        if looked_up:
            hoped, came = sum(self.forecast[:looked_up]), accepted
        self.hoped, self.came = forget * self.hoped + hoped, forget * self.came + came

    @property
    def _record(self) -> float:
        return self.came / self.hoped

    def _expect(self, proposed: int, accepted: int, drafting: float, verifying: float) -> None:
        """Keep what the round was expected to bring and to take; what it did, where nothing was known."""
        arm = self.choice.arm
        known = self.times.known and (arm is None or arm.measured)
        chances = arm.survival.chances(proposed) if arm else self.forecast[:proposed]
        record = 1.0 if arm else self._record
        tokens = 1 + (record * sum(chances) if known else accepted)
        (first, more), each = self._rounds, arm.cost.mean if arm else 0.0
        seconds = first + (more + each) * proposed if known else drafting + verifying
        self.expected = Expected(self.expected.seconds + seconds, self.expected.tokens + tokens)


def sizes(least: int, most: int) -> list[int]:
    """Numbers of drafted tokens that make verifications of the usual sizes."""
    return [rows - 1 for rows in ROWS if least < rows <= most + 1]
