"""Chooses, round by round, who drafts and how much: the cost model of TriForce over measured times.

Expected tokens of a round over its expected seconds, with times and acceptance as they were lately. Every level that
verifies has a planner. Decisions look only at what is already revealed (the history, past verdicts, the clock), so the
output stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

from triforce_chat.engine.cuda_graph import SIZES
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.cost_model import (
    FIRST,
    ROW_PRIOR,
    AcceptanceCurve,
    Average,
    StepTimes,
)
from triforce_chat.engine.speculation.lookup import ORDERS, NgramLookup

# Rows of a verification: few, for each is captured once; some tokens more may come than were asked for.
ROWS = SIZES[:-1]
GAIN = 1.03  # speculation must promise this much over plain decoding
HABIT = 1.05  # and another choice this much over the last one
TRY_AFTER = 3  # rounds before an unmeasured drafter gets its first trial
TRIALS = (1, 2)  # tokens of the first trials; the very first may have to prepare its sizes
TRY_AGAIN = 16  # rounds after which a drafter that was not far off is tried again, doubled each time in vain
NOT_FAR_OFF = 0.8
FAR_OFF = 4  # times less often are the others tried again: what they were tried in may have changed
PREPARED = 3.0  # a draft that was as many times dearer than the next had something to prepare
OUTLIER = 3.0  # a draft that takes as many times longer than usual was interrupted
PAUSE = 3.0  # steps; what takes longer between two rounds is none of their costs
FORGET = 0.9  # weight of the past in costs and gaps
FORGET_RECORD = 0.98  # weight of the past in the record of lookup
FORGET_UNUSED = 0.997  # the same at a round without lookup
CANDID = 6.0  # tokens of lookup for which its forecasts are believed as they are
CUTOFF = 0.25  # a token of lookup that is less likely than this to be reached is not proposed where nothing is planned
MOST = 64  # tokens that the rounds of one proposal may make: the draft's window has room for them
NEVER = ORDERS + 1  # a length that no match has


class Drafter(Protocol):
    """A source of drafts: a small model, or a level that verifies another one's drafts.

    ``device_side``: it can draft behind a length that only the device knows.
    """

    device_side: bool

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """About n tokens behind ``seq``, drawn from the distributions that come with them; perhaps none at all."""
        ...

    def judged(self, proposed: int, accepted: int) -> None:
        """How the last proposal fared one level up."""
        ...

    def rollback(self, length: int) -> None:
        """Only the first ``length`` tokens of the history stand."""
        ...


@dataclass(slots=True, eq=False)
class Arm:
    """A drafter with its running cost and acceptance."""

    drafter: Drafter
    worth_above: int = 0  # shortest history for which it can pay at all
    cost: Average = field(default_factory=lambda: Average(FORGET))  # seconds per drafted token
    excess: Average = field(default_factory=lambda: Average(FORGET))  # tokens made above those asked for
    curve: AcceptanceCurve = field(default_factory=AcceptanceCurve)
    trials: int = 0  # the first ones
    asked: bool = False  # ever
    measured_at: int = 0  # round of the last measurement
    patience: int = TRY_AGAIN  # rounds until the next trial

    @property
    def measured(self) -> bool:
        return self.cost.weight > 0

    def learn_cost(self, seconds: float, asked: int, made: int, now: int) -> None:
        """What it took to make ``made`` tokens in round ``now``."""
        each, usual = seconds / made, self.cost.mean
        if each < usual / PREPARED:
            self.cost = Average(FORGET)
        elif usual:
            each = min(each, OUTLIER * usual)
        self.cost.add(each, 1.0 if usual else FIRST)
        self.excess.add(made - asked)
        self.measured_at = now

    def tried(self) -> None:
        """One more trial is under way."""
        if self.trials < len(TRIALS):
            self.trials += 1
        else:
            self.patience *= 2

    def makes(self, n: int) -> int:
        """Tokens to expect where n are asked for."""
        return max(1, round(n + self.excess.mean))


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next rounds do: each drafts ``n`` tokens by ``arm``, or by lookup where it is None.

    From a match of ``threshold`` tokens on, lookup replaces what the arm drafts.
    """

    n: int
    arm: Arm | None = None
    rate: float = 0.0  # expected tokens per second; 0: not planned
    rounds: int = 1
    threshold: int = NEVER

    @property
    def plain(self) -> bool:
        """No draft."""
        return self.arm is None and self.n == 0

    @property
    def trial(self) -> bool:
        return self.arm is not None and self.n > 0 and self.rate == 0


class Expected(NamedTuple):
    """What a planner expected of all rounds so far, its trials included."""

    seconds: float
    tokens: float

    def since(self, before: Expected) -> float | None:
        """Milliseconds per token of the rounds after those; None where there were none."""
        tokens = self.tokens - before.tokens
        return 1000 * (self.seconds - before.seconds) / tokens if tokens > 0 else None


class Planner:
    """Plans the rounds of one level.

    ``gamma``: tokens to draft in every round, or None to choose up to ``most``. ``plain``: rounds without a draft are
    allowed; else the first arm drafts in any case, and only how much is open.
    """

    def __init__(
        self,
        arms: Sequence[Arm] = (),
        lookup: NgramLookup | None = None,
        gamma: int | None = None,
        most: int = 0,
        plain: bool = True,
        group: RankGroup = SINGLE,
    ) -> None:
        self.arms, self.lookup, self.gamma, self.group = list(arms), lookup, gamma, group
        self.most = (gamma or most) if arms or lookup else 0
        self.may_be_plain = plain
        self.times = StepTimes()  # of verifications
        self.gap = Average(FORGET)  # seconds from one round to the next
        self.undrafted = Average(FORGET)  # seconds of a token made without a draft, where those overlap
        self.blend = AcceptanceCurve()  # of rounds in which an arm and lookup both had a say
        self.rounds = 0
        self.habit = Plan(0)
        self.hoped = self.came = CANDID  # tokens of lookup that should have been accepted, and that were
        self.expected = Expected(0.0, 0.0)

    @property
    def decides(self) -> bool:
        """Whether there is anything to choose."""
        return self.gamma is None and self.most > 0

    def choose(self, length: int, most: int, match: int) -> Plan:
        """A plan for the round behind ``length`` tokens, of at most ``most`` drafted ones.

        ``match`` is how many of the last tokens lookup found again. The same on all ranks, whose clocks differ.
        """
        self.rounds += 1
        if not self.decides:
            return self._fixed(most, match)
        own = self._choose(length, min(most, self.most), match)
        places = [None, *self.arms]
        n, place = self.group.broadcast_ints((own.n, places.index(own.arm)))
        return Plan(n, places[place], own.rate)

    def several(self, n: int, length: int) -> Plan:
        """A plan for several rounds that make about n tokens, none of which waits for the one before.

        The same on all ranks, whose clocks differ.
        """
        drafts = bool(self.arms) or self.lookup is not None
        drafted = min(self.most, length - 1) if drafts else 0
        if self.gamma is None and drafted:
            hopes = [0.0, *accumulate(self.blend.chances(drafted))]
            first, more = self.times.line if self.times.known else (1.0, ROW_PRIOR)
            each = more + (self.arms[0].cost.mean if self.arms else 0.0)
            drafted = max(sizes(1, drafted), key=lambda g: (1 + hopes[g]) / (first + each * g))
        # With a fixed gamma nothing depends on what was learnt: the same random numbers go into it every time.
        chances = (self.blend if self.gamma is None else AcceptanceCurve()).chances(drafted)
        rounds = min(round(n / (1 + sum(chances))) or min(n, 1), MOST // (drafted + 1))
        rounds, drafted, threshold = self.group.broadcast_ints((rounds, drafted, self._threshold(drafted)))
        return Plan(drafted, self.arms[0] if self.arms else None, rounds=rounds, threshold=threshold)

    def _fixed(self, most: int, match: int) -> Plan:
        arm, n = self.arms[0] if self.arms else None, min(most, self.most)
        if arm is None and self.lookup:
            n = sum(chance >= CUTOFF for chance in self.lookup.survival(match, n)) if match else 0
        return Plan(n, arm)

    def _threshold(self, n: int) -> int:
        """The length of a match from which on n tokens of lookup promise more than those of the arm."""
        if self.lookup is None:
            return NEVER
        if not self.arms:
            return 0
        kept = sum(self.arms[0].curve.chances(n))
        promises = (length for length in range(1, NEVER) if sum(self.lookup.survival(length, n)) > kept)
        return next(promises, NEVER)

    def _choose(self, length: int, n: int, match: int) -> Plan:
        if n == 0:
            return Plan(0, None if self.may_be_plain else self.arms[0])
        able = [arm for arm in self.arms if length >= arm.worth_above]
        options = [self._drafted(arm, n) for arm in able if arm.measured]
        if self.may_be_plain and (self.times.known or self.undrafted.weight):
            options += [Plan(0, rate=1 / self._plain), self._looked_up(n, match)]
        best = max(options, key=self._appeal, default=Plan(0))
        trial = self._trial(able, best.rate, n)
        if trial:
            return trial
        if best.arm:
            best.arm.patience = TRY_AGAIN
        if best.arm or best.n == 0:  # a lookup comes and goes
            self.habit = best
        return best

    def _trial(self, able: Sequence[Arm], best: float, most: int) -> Plan | None:
        """One of the arms that nothing, or nothing any more, is known about."""
        for arm in able:
            if arm.trials < len(TRIALS) and (not self.may_be_plain or self.rounds > TRY_AFTER):
                return Plan(min(TRIALS[arm.trials], most), arm)
            waited = self.rounds - arm.measured_at
            if waited > arm.patience:
                again = self._drafted(arm, most) if arm.measured else Plan(min(TRIALS[0], most), arm, best)
                if again.rate > NOT_FAR_OFF * best or waited > FAR_OFF * arm.patience:
                    return Plan(again.n, arm)
        return None

    @property
    def _round(self) -> tuple[float, float]:
        """Seconds of a round without any draft, and of each drafted token in it without its drafting."""
        if not self.times.known:
            return self.undrafted.mean, ROW_PRIOR * self.undrafted.mean
        first, more = self.times.line
        return first + self.gap.mean, more

    @property
    def _plain(self) -> float:
        """Seconds of a token without a draft."""
        return self.undrafted.mean if self.undrafted.weight else self._round[0]

    # The device waits for these two: hence their plain numbers.

    def _looked_up(self, most: int, match: int) -> Plan:
        if self.lookup is None or not match:
            return Plan(0, rate=1 / self._round[0])
        record, hopes = self._record, [0.0, *accumulate(self.lookup.survival(match, most))]
        first, more = self._round
        rates = {n: (1 + record * hopes[n]) / (first + more * n) for n in sizes(0, most)}
        n = max(rates, key=rates.__getitem__)
        return Plan(n, rate=rates[n])

    def _drafted(self, arm: Arm, most: int) -> Plan:
        hopes = [0.0, *accumulate(arm.curve.chances(arm.makes(most)))]
        (first, more), each = self._round, arm.cost.mean
        made = {n: arm.makes(n) for n in sizes(1, most)}
        rates = {n: (1 + hopes[m]) / (first + (more + each) * m) for n, m in made.items()}
        n = max(rates, key=lambda n: rates[n] * self._habit(arm, n))
        return Plan(n, arm, rates[n])

    def _appeal(self, plan: Plan) -> float:
        """The rate, and more for what needs no change: promises have errors, and the best of many has most."""
        if plan.n == 0:
            return plan.rate * GAIN * (HABIT if self.habit.arm else 1.0)
        return plan.rate * self._habit(plan.arm, plan.n)

    def _habit(self, arm: Arm | None, n: int) -> float:
        """How much more a draft appeals for being the usual one."""
        return HABIT if arm is not None and arm is self.habit.arm and n == self.habit.n else 1.0

    # What rounds teach

    def learn(
        self, plan: Plan, match: int, drafted: int, accepted: int, drafting: float, verifying: float
    ) -> None:
        """A round that was waited for; drafting and verifying took so many seconds."""
        self._expect(plan, match, drafted, accepted, drafting, verifying)
        self.times.add(1 + drafted, verifying)
        arm = plan.arm
        hopes = self._hopes(match, drafted) if arm is None else []
        self._remember(hopes, accepted)
        if arm is None:
            return
        if drafted:
            arm.learn_cost(drafting, plan.n, drafted, self.rounds)
        elif plan.n and not arm.asked:
            # What it drafts out of had to be built first: that was no trial.
            arm.trials = max(0, arm.trials - 1)
        arm.asked = arm.asked or plan.n > 0
        arm.curve.learn(drafted, accepted)
        arm.drafter.judged(drafted, accepted)

    def learn_plain(self, seconds: float) -> None:
        """A token was made without a draft while the host read the one before."""
        seconds = max(seconds, 1e-6)  # a coarse clock must not promise infinite speed
        if self.undrafted.weight:
            seconds = min(seconds, PAUSE * self.undrafted.mean)
        self.undrafted.add(seconds)
        self._remember([], 0)
        self.expected = Expected(self.expected.seconds + self.undrafted.mean, self.expected.tokens + 1)

    def learn_unwaited(
        self, plan: Plan, match: int, accepted: int, drafting: float, verifying: float
    ) -> None:
        """One of several rounds."""
        self.rounds += 1
        self.times.add(1 + plan.n, verifying)
        if not plan.n:
            return
        self.blend.learn(plan.n, accepted)
        if plan.arm is None:
            return
        plan.arm.learn_cost(drafting, plan.n, plan.n, self.rounds)
        if match < plan.threshold:
            plan.arm.curve.learn(plan.n, accepted)

    def learn_gap(self, seconds: float) -> None:
        """The host did something else between two rounds."""
        self.gap.add(min(seconds, PAUSE * self.times(1)))

    def _hopes(self, match: int, n: int) -> list[float]:
        return self.lookup.survival(match, n) if self.lookup and match else []

    def _remember(self, hopes: list[float], accepted: int) -> None:
        """The record of lookup: how many of its tokens came, forgotten while it is not used."""
        forget = FORGET_RECORD if hopes else FORGET_UNUSED
        hoped, came = (1 - forget) * CANDID, (1 - forget) * CANDID
        if hopes:
            hoped, came = sum(hopes), accepted
        self.hoped, self.came = forget * self.hoped + hoped, forget * self.came + came

    @property
    def _record(self) -> float:
        return self.came / self.hoped

    def _expect(
        self, plan: Plan, match: int, drafted: int, accepted: int, drafting: float, verifying: float
    ) -> None:
        """Keep what the round was expected to bring and to take; what it did, where nothing was known."""
        arm = plan.arm
        known = self.times.known and (arm is None or arm.measured)
        chances = arm.curve.chances(drafted) if arm else self._hopes(match, drafted)
        record = 1.0 if arm else self._record
        tokens = 1 + (record * sum(chances) if known else accepted)
        (first, more), each = self._round, arm.cost.mean if arm else 0.0
        seconds = first + (more + each) * drafted if known else drafting + verifying
        self.expected = Expected(self.expected.seconds + seconds, self.expected.tokens + tokens)


def sizes(least: int, most: int) -> list[int]:
    """Numbers of drafted tokens that make verifications of the usual sizes."""
    return [rows - 1 for rows in ROWS if least < rows <= most + 1]
