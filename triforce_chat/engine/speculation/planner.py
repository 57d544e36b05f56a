"""Chooses, round by round, who drafts and how much: the cost model of TriForce over measured times.

Expected tokens of a round over its expected seconds, with times and acceptance as they were lately. Every level that
verifies has a planner. Decisions look only at what is already revealed (the history, past verdicts, the clock), so the
output stays exact.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from triforce_chat.engine.cuda_graph import SIZES, Captures
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.speculation.arm import TRIALS, TRY_AGAIN, Arm
from triforce_chat.engine.speculation.calibration import FORGET, LevelAcceptance, LevelTimes
from triforce_chat.engine.speculation.cost_model import (
    FIRST,
    ROW_PRIOR,
    AcceptanceCurve,
    Average,
    StepTimes,
)
from triforce_chat.engine.speculation.investment import Investment, Lacking, nothing_lacking
from triforce_chat.engine.speculation.lookup import ORDERS, NgramLookup
from triforce_chat.engine.speculation.tree_plan import TreePlan
from triforce_chat.engine.tree import Parents, levels

# Rows of a verification: few sizes, as each is captured once; a proposal may be some tokens longer than requested. The
# last two serve where keys and values are streamed and nothing is captured.
ROWS = (*SIZES[:-1], 48, 64)
GAIN = 1.03  # speculation must promise this much over plain decoding
HABIT = 1.05  # another plan must promise this much more than the last one
TRY_AFTER = 3  # rounds before an unmeasured drafter gets its first trial
NOT_FAR_OFF = 0.8  # share of the best rate
FAR_OFF = 4  # retry drafters below that this many times less often: the text may have changed
PAUSE = 3.0  # steps; a longer pause between two rounds is not part of their cost
FORGET_RECORD = 0.98  # weight of the past in the record of lookup
FORGET_UNUSED = 0.997  # weight of the past in a round without lookup
CANDID = 6.0  # looked-up tokens for which the predicted acceptance is trusted as it is
CUTOFF = 0.25  # without planning, lookup proposes tokens that are at least this likely to be accepted
MOST = 64  # tokens that the rounds of one proposal may make; the draft's window has room for as many
NEVER = ORDERS + 1  # longer than any match
# A calibration runs so many rounds without a draft, and so many drafts of as many tokens by each arm, the first of
# which still include preparations: of CUDA graphs, of caches, and of the plans of a level below.
SURVEY_PLAIN, SURVEY_DRAFTS, SURVEY_WARMUPS, SURVEY_TOKENS = 4, 4, 2, 4
EVERYTHING = 1 << 30  # rounds; more than any calibration has


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of the next rounds: each drafts ``n`` tokens by ``arm``, or by lookup if that is None.

    If lookup finds a match of at least ``threshold`` tokens, its tokens replace those of the arm. With ``parents`` the
    arm drafts a tree of that shape, to which lookup adds ``branch`` tokens.
    """

    n: int
    arm: Arm | None = None
    rate: float = 0.0  # expected tokens per second; 0 for a trial or a fixed plan
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
        return 1 + (levels(self.parents) if self.parents else self.n)

    @property
    def trial(self) -> bool:
        return self.arm is not None and self.n > 0 and self.rate == 0


class Expected(NamedTuple):
    """Time and tokens that a planner expected of all rounds so far, trials included."""

    seconds: float
    tokens: float

    def since(self, before: Expected) -> float | None:
        """Expected milliseconds per token of the rounds since ``before``; None if there were none."""
        tokens = self.tokens - before.tokens
        return 1000 * (self.seconds - before.seconds) / tokens if tokens > 0 else None


class Planner:
    """Plans the rounds of one level.

    ``gamma`` fixes the tokens to draft in each round; None chooses up to ``most``. ``plain`` allows rounds without a
    draft; otherwise the first arm always drafts, and only the number of tokens is chosen. ``investment`` limits what
    graphs may be captured for the sake of a plan. ``row``: see ``StepTimes``. With ``trees`` the first arm drafts trees
    of at most ``gamma`` tokens.

    ``sequences`` counts those whose forwards run together, this one included. Then rates are those of all of them: a
    looked-up token costs all of them a row of the verification and gains one of them something, as the others have no
    match just then; the drafts of an arm are made at the same time, and all gain, in verifications whose measured times
    are those of as many rows of each.
    """

    def __init__(
        self,
        arms: Sequence[Arm] = (),
        lookup: NgramLookup | None = None,
        gamma: int | None = None,
        most: int = 0,
        plain: bool = True,
        group: RankGroup = SINGLE,
        investment: Investment | None = None,
        row: float = ROW_PRIOR,
        trees: TreePlan | None = None,
    ) -> None:
        self.arms, self.lookup, self.gamma, self.group = list(arms), lookup, gamma, group
        self.trees = trees
        self.investment = investment or Investment(Captures())
        self.lacking: Lacking = nothing_lacking
        self.most = (gamma or most) if arms or lookup else 0
        self.may_be_plain, self.row = plain, row
        self.sequences = 1
        self.expected = Expected(0.0, 0.0)
        self._begin()

    def _begin(self) -> None:
        self.times = StepTimes(self.row)  # of verifications
        self.gap = Average(FORGET)  # seconds from one round to the next
        # Seconds per token decoded without drafts, with overlapping forwards.
        self.undrafted = Average(FORGET)
        self.blend = AcceptanceCurve()  # of rounds in which either the arm or lookup drafts
        self.rounds = 0
        self.habit = Plan(0)
        self.hoped = self.came = CANDID  # looked-up tokens: expected to be accepted, and accepted
        self.agenda: deque[Plan] = deque()  # rounds that a calibration prescribes
        self.has_overlapped = False  # a token was decoded without drafts since the times were set

    # Figures that outlive this planner

    def restart(self) -> None:
        """Forget everything that was learnt; what was expected so far still counts."""
        self._begin()
        for arm in self.arms:
            arm.restart()
        if self.lookup is not None:
            self.lookup.restart()
        if self.trees is not None:
            self.trees.restart()

    @property
    def known_times(self) -> LevelTimes:
        """A copy of the times as they are now."""
        costs, excess = tuple(arm.cost for arm in self.arms), tuple(arm.excess for arm in self.arms)
        return LevelTimes(self.times, self.gap, self.undrafted, costs, excess).copy()

    @property
    def known_acceptance(self) -> LevelAcceptance:
        """A copy of the acceptance as it is now."""
        rates = tuple(self.lookup.rates) if self.lookup else ()
        curves = tuple(arm.curve for arm in self.arms)
        return LevelAcceptance(self.blend, curves, (self.hoped, self.came), rates).copy()

    def use_times(self, known: LevelTimes) -> None:
        """Go on from times that were measured before, and change them unless they are fixed."""
        self.times, self.gap, self.undrafted = known.steps, known.gap, known.undrafted
        self.times.row, self.has_overlapped = self.row, False
        for arm, cost, excess in zip(self.arms, known.costs, known.excess, strict=False):
            arm.use_costs(cost, excess, self.rounds)

    def use_acceptance(self, known: LevelAcceptance) -> None:
        """Go on from acceptance that was learnt before."""
        own = known.copy()
        self.blend, (self.hoped, self.came) = own.blend, own.record
        for arm, curve in zip(self.arms, own.curves, strict=False):
            arm.curve = curve
        if self.lookup is not None and own.rates:
            self.lookup.rates = list(own.rates)

    @property
    def outlook(self) -> tuple[float, float]:
        """Expected seconds per token without drafts, and in the plan that promises most; lookup is left out."""
        drafted = [1 / self._drafted(arm, self.most).rate for arm in self.arms if arm.measured]
        return self.plain_seconds, min([self.plain_seconds, *drafted])

    def survey(self, longest: int, left: int = EVERYTHING) -> None:
        """Prescribe rounds that measure plain decoding and every arm usable up to ``longest`` tokens.

        ``left``: only so many of the last ones, where others were run by an earlier process.
        """
        plain = [Plan(0)] * (SURVEY_PLAIN if self.may_be_plain else 0)
        able = [arm for arm in self.arms if longest >= arm.worth_above]
        self.agenda.extend(
            [*plain, *(Plan(SURVEY_TOKENS, arm) for arm in able for _ in range(SURVEY_DRAFTS))]
        )
        while len(self.agenda) > left:
            self.agenda.popleft()
        for arm in able:
            drafts = sum(plan.arm is arm for plan in self.agenda)
            arm.warmups = min(SURVEY_WARMUPS, max(0, drafts - 1))  # the last one counts in any case

    def _surveyed(self, drafted: int) -> None:
        """A round is done; it was the next one on the agenda unless its arm could not draft yet."""
        if self.agenda and (drafted > 0) == (self.agenda[0].n > 0):
            self.agenda.popleft()

    # Planning

    @property
    def decides(self) -> bool:
        """Whether there is anything to choose."""
        return self.gamma is None and self.most > 0

    def renew(self, rest: int) -> None:
        """The answer may grow by ``rest`` tokens, for which captures may still pay."""
        rate = self.habit.rate
        self.investment.renew(rest, min(self.plain_seconds, 1 / rate) if rate else self.plain_seconds)

    def expected_rounds(self, length: int, most: int) -> list[tuple[Arm | None, int]]:
        """Rounds after ``length`` tokens, by arm and number of drafted tokens, in the order of their first use.

        Where there is something to choose they draft at most ``most``.
        """
        if not self.decides and self.arms:
            return [(self.arms[0], self.most)]
        able = [arm for arm in self.arms if length >= arm.worth_above]
        plain: list[tuple[Arm | None, int]] = [(None, 0)]
        trials = [(arm, n) for arm in able for n in TRIALS] if self.decides else []
        drafters = [*able, *([None] if self.lookup or not able else [])]
        # The largest first: its scratch memory is large enough for the others.
        others = [(arm, n) for n in reversed(sizes(1, most)) for arm in drafters]
        return [*plain, *trials, *others] if self.may_be_plain else [*trials, *others, *plain]

    def choose(self, length: int, most: int, match: int) -> Plan:
        """Plan the round after ``length`` tokens, with at most ``most`` drafted ones.

        ``match`` is the length of the match that lookup found. All ranks take rank 0's plan, as their clocks differ.
        """
        self.rounds += 1
        if not self.decides:
            return self._fixed(most, match)
        own = self._choose(length, min(most, self.most), match)
        places = [None, *self.arms]
        n, place = self.group.broadcast_ints((own.n, places.index(own.arm)))
        return Plan(n, places[place], own.rate)

    @property
    def plans_together(self) -> bool:
        """Whether its rounds may depend on other sequences: not where a seed is to give the same tokens every time."""
        return self.gamma is None and not self.investment.unlimited and self.trees is None

    def several(self, n: int, length: int) -> Plan:
        """Plan several rounds that make about n tokens and do not wait for one another.

        All ranks take rank 0's plan, as their clocks differ.
        """
        plan = self.intended(n, length)
        if plan.parents:  # of one rank
            return plan
        own = plan.rounds, plan.n, self._threshold(plan.n)
        rounds, drafted, threshold = self.group.broadcast_ints(own)
        return Plan(drafted, plan.arm, rounds=rounds, threshold=threshold)

    def intended(self, n: int, length: int) -> Plan:
        """This rank's plan of several rounds, without lookup."""
        tree = self._trees_instead(n, length)
        if tree is not None:
            return tree
        ((drafted, rounds),) = rounds_together([Wish(self, n, length)])
        return Plan(drafted, self._first, rounds=rounds)

    def _trees_instead(self, n: int, length: int) -> Plan | None:
        """Rounds that each draft a tree; None if they draft chains."""
        arm = self._first
        if arm is None or self.trees is None:
            return None
        tree = self._tree(arm, self.trees, self.most, 0)
        if length < tree.longest:  # the draft feeds as many tokens again
            tree = Plan(0, arm)
        each = 1 + self.trees.expected(tree.parents)
        return replace(tree, rounds=min(round(n / each) or min(n, 1), MOST // tree.longest))

    def agreed(self, drafted: int, rounds: int) -> Plan:
        """The plan of as many rounds as ``rounds_together`` found."""
        return Plan(drafted, self._first, rounds=rounds, threshold=self._threshold(drafted))

    @property
    def _first(self) -> Arm | None:
        return self.arms[0] if self.arms else None

    def _longest(self, length: int) -> int:
        """Tokens that one of several rounds may draft."""
        return min(self.most, max(0, length - 1)) if self.arms or self.lookup is not None else 0

    @property
    def _blend(self) -> AcceptanceCurve:
        """By which several rounds are planned.

        With a fixed gamma nothing may depend on what was learnt, so that a seed gives the same tokens every time.
        """
        return self.blend if self.gamma is None else AcceptanceCurve()

    @property
    def _line(self) -> tuple[float, float]:
        """Seconds of one of several rounds without a draft, and of each drafted token."""
        first, more = self.times.line if self.times.known else (1.0, self.row)
        return first, more + (self._first.cost.mean if self._first else 0.0)

    def _best(self, arm: Arm | None, rates: dict[int, float]) -> int:
        """The number of drafted tokens with the highest rate for which nothing too costly is to be captured; else 0."""
        slowest: float | None = None  # looked for where it matters, as that takes the host a while
        for n in sorted(rates, key=rates.__getitem__, reverse=True):
            if self.investment.unlimited or not self._lacked(arm, n):
                return n
            slowest = self._slowest(arm, rates) if slowest is None else slowest
            if self._affordable(arm, n, slowest - 1 / rates[n]):
                return n
        return 0

    def _slowest(self, arm: Arm | None, rates: dict[int, float]) -> float:
        """Seconds per token of the best plan that needs no captures, as far as it is known."""
        ready = [rate for n, rate in rates.items() if not self._lacked(arm, n)]
        if self.may_be_plain and self.undrafted.weight:
            ready.append(1 / self.undrafted.mean)
        if not self._lacked(self.habit.arm, self.habit.n):
            ready.append(self.habit.rate)
        best = max(ready, default=0)
        return 1 / best if best else math.inf

    def _affordable(self, arm: Arm | None, n: int, saved: float) -> bool:
        """Whether what ``arm`` lacks for n tokens may be captured, if that saves ``saved`` seconds a token."""
        return self.investment.unlimited or self.investment.allows(self._lacked(arm, n), saved)

    def _lacked(self, arm: Arm | None, n: int) -> int:
        # Looking takes the host a while. By number: references would keep a replaced stack alive.
        known, plan = self.investment.lacking, (id(self), id(arm), n)
        if plan not in known:
            known[plan] = self.lacking(arm, n)
        return known[plan]

    def _least_lacking(self, arm: Arm | None, rates: dict[int, float]) -> int:
        """Where a draft must be made: the best of those for which least is to be captured."""
        return min(rates, key=lambda n: (self.lacking(arm, n), -rates[n]))

    def _fixed(self, most: int, match: int) -> Plan:
        arm, n = self._first, min(most, self.most)
        if arm is not None and self.trees is not None and n > 0:
            return self._tree(arm, self.trees, n, match)
        if arm is None and self.lookup:
            n = sum(chance >= CUTOFF for chance in self.lookup.survival(match, n)) if match else 0
        return Plan(n, arm)

    def _tree(self, arm: Arm, trees: TreePlan, n: int, match: int) -> Plan:
        """A tree of at most n tokens, up to half of which are looked up."""
        branch = sum(chance >= CUTOFF for chance in self._hopes(match, n // 2))
        parents = trees.shape(n - branch, *self._round)
        return Plan(len(parents), arm, parents=parents, branch=branch)

    @property
    def next_tree(self) -> Parents:
        """The shape that the next round drafts, without looked-up tokens."""
        assert self.trees is not None
        return self._tree(self.arms[0], self.trees, self.most, 0).parents

    def _threshold(self, n: int) -> int:
        """The shortest match for which n looked-up tokens promise more accepted ones than the arm's."""
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
        if self.agenda:
            return replace(self.agenda[0], n=min(n, self.agenda[0].n))
        able = [arm for arm in self.arms if length >= arm.worth_above]
        options = [self._drafted(arm, n) for arm in able if arm.measured]
        if self.may_be_plain and (self.times.known or self.undrafted.weight):
            options += [Plan(0, rate=self.sequences / self.plain_seconds), self._looked_up(n, match)]
        best = max(options, key=self._appeal, default=Plan(0))
        trial = self._trial(able, best.rate, n)
        if trial:
            return trial
        if best.arm:
            best.arm.patience = TRY_AGAIN
        if best.arm or best.n == 0:  # lookup is no habit: matches come and go
            self.habit = best
        return best

    def _trial(self, able: Sequence[Arm], best: float, most: int) -> Plan | None:
        """A trial of an arm that was never measured, or not recently; None if none is due."""
        for arm in able:
            if arm.trials < len(TRIALS) and (not self.may_be_plain or self.rounds > TRY_AFTER):
                n = min(TRIALS[arm.trials], most)
                if not self.may_be_plain or self._affordable(arm, n, self.plain_seconds):
                    return Plan(n, arm)
                continue
            waited = self.rounds - arm.measured_at
            if waited > arm.patience and (
                not self.may_be_plain or self._affordable(arm, min(TRIALS[0], most), self.plain_seconds)
            ):
                again = self._drafted(arm, most) if arm.measured else Plan(min(TRIALS[0], most), arm, best)
                if again.rate > NOT_FAR_OFF * best or waited > FAR_OFF * arm.patience:
                    return Plan(again.n, arm)
        return None

    @property
    def _round(self) -> tuple[float, float]:
        """Seconds of a round without a draft, and of verifying each drafted token."""
        if not self.times.known:
            return self.undrafted.mean, self.row * self.undrafted.mean
        first, more = self.times.line
        return first + self.gap.mean, more

    @property
    def plain_is_measured(self) -> bool:
        """True if tokens were decoded without drafts; else their time follows from that of verifications."""
        return self.undrafted.weight > 0

    @property
    def plain_seconds(self) -> float:
        """Seconds per token without drafts; 0 before the first measurement."""
        return self.undrafted.mean if self.undrafted.weight else self._round[0]

    # The device idles during these two, so they avoid tensors.

    def _looked_up(self, most: int, match: int) -> Plan:
        if self.lookup is None or not match:
            return Plan(0, rate=self.sequences / self._round[0])
        record, hopes = self._record, [0.0, *accumulate(self.lookup.survival(match, most))]
        first, more = self._round
        rates = {n: (self.sequences + record * hopes[n]) / (first + more * n) for n in sizes(0, most)}
        n = self._best(None, rates)
        return Plan(n, rate=rates[n])

    def _drafted(self, arm: Arm, most: int) -> Plan:
        hopes = [0.0, *accumulate(arm.curve.chances(arm.makes(most)))]
        (first, more), each, all_ = self._round, arm.cost.mean, self.sequences
        made = {n: arm.makes(n) for n in sizes(1, most)}
        rates = {n: all_ * (1 + hopes[m]) / (first + (more + each) * m) for n, m in made.items()}
        appeal = {n: rate * self._habit(arm, n) for n, rate in rates.items()}
        n = self._best(arm, appeal)
        if not n and self.may_be_plain:
            return Plan(0)
        n = n or self._least_lacking(arm, appeal)
        return Plan(n, arm, rates[n])

    def _appeal(self, plan: Plan) -> float:
        """The expected rate, with a bonus for the current plan: the best of many noisy estimates is overestimated."""
        if plan.n == 0:
            return plan.rate * GAIN * (HABIT if self.habit.arm else 1.0)
        return plan.rate * self._habit(plan.arm, plan.n)

    def _habit(self, arm: Arm | None, n: int) -> float:
        """The bonus factor of a draft that equals the last one."""
        return HABIT if arm is not None and arm is self.habit.arm and n == self.habit.n else 1.0

    # Learning from rounds

    def learn(
        self,
        plan: Plan,
        match: int,
        drafted: int,
        accepted: int,
        drafting: float,
        verifying: float,
        timed: bool = True,
        path: Sequence[int] = (),
    ) -> None:
        """Learn from a round that was waited for; ``drafting`` and ``verifying`` are seconds, ``path`` is a tree's.

        Not ``timed``: something was captured in it, so that its seconds say nothing.
        """
        self._expect(plan, match, drafted, accepted, drafting, verifying)
        timed = timed or self.investment.unlimited
        if timed:
            self._surveyed(drafted)
            self.times.add(1 + drafted, verifying)
        if plan.forced:  # says nothing about any drafter
            return
        arm = plan.arm
        hopes = self._hopes(match, drafted) if arm is None else []
        self._remember(hopes, accepted)
        if arm is None:
            return
        if drafted and timed:
            arm.learn_cost(drafting, plan.n, drafted, self.rounds)
        elif plan.trial if drafted else plan.n and not arm.asked:
            # Something was captured in it, or its cache had to be built first: that was no trial.
            arm.trials = max(0, arm.trials - 1)
        arm.asked = arm.asked or plan.n > 0
        if plan.parents and self.trees is not None:
            if drafted:
                self.trees.learn(plan.parents, path, drafting if timed else None)
        else:
            arm.curve.learn(drafted, accepted)
        arm.drafter.judged(drafted, accepted)

    def learn_plain(self, seconds: float, timed: bool = True) -> None:
        """Learn from a token that was decoded without a draft while the host read the previous one.

        ``timed``: see ``learn``.
        """
        if timed or self.investment.unlimited:
            self._learn_plain_time(seconds)
        self._remember([], 0)
        self.expected = Expected(self.expected.seconds + self.undrafted.mean, self.expected.tokens + 1)

    def _learn_plain_time(self, seconds: float) -> None:
        seconds = max(seconds, 1e-6)  # a coarse clock must not promise infinite speed
        if self.undrafted.weight:
            seconds = min(seconds, PAUSE * self.undrafted.mean)
        self.undrafted.add(seconds, 1.0 if self.has_overlapped else FIRST)
        self.has_overlapped = True
        self._surveyed(0)

    def learn_unwaited(
        self,
        plan: Plan,
        match: int,
        accepted: int,
        drafting: float,
        verifying: float,
        timed: bool = True,
        path: Sequence[int] = (),
    ) -> None:
        """Learn from one of several rounds that were not waited for; ``timed`` and ``path``: see ``learn``."""
        self.rounds += 1
        timed = timed or self.investment.unlimited
        if timed:
            self.times.add(1 + plan.n, verifying)
        if not plan.n:
            return
        if plan.parents and self.trees is not None:
            self.trees.learn(plan.parents, path, drafting if timed else None)
            return
        self.blend.learn(plan.n, accepted)
        if plan.arm is None:
            return
        if timed:
            plan.arm.learn_cost(drafting, plan.n, plan.n, self.rounds)
        if match < plan.threshold:
            plan.arm.curve.learn(plan.n, accepted)

    def learn_gap(self, seconds: float) -> None:
        """Learn how long the host was busy with other things between two rounds."""
        self.gap.add(min(seconds, PAUSE * self.times(1)))

    def _hopes(self, match: int, n: int) -> list[float]:
        return self.lookup.survival(match, n) if self.lookup and match else []

    def _remember(self, hopes: list[float], accepted: int) -> None:
        """Update lookup's record of accepted tokens, which fades while lookup is not used."""
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
        """Add what the round was expected to yield and to cost, or its actual figures if nothing was known."""
        arm = plan.arm
        known = self.times.known and (arm is None or arm.measured)
        chances = arm.curve.chances(drafted) if arm else self._hopes(match, drafted)
        record = 1.0 if arm else self._record
        tokens = 1 + (record * sum(chances) if known else accepted)
        (first, more), each = self._round, arm.cost.mean if arm else 0.0
        seconds = first + (more + each) * drafted if known else drafting + verifying
        self.expected = Expected(self.expected.seconds + seconds, self.expected.tokens + tokens)


class Wish(NamedTuple):
    """About ``n`` tokens after ``length`` are to be made by several rounds."""

    planner: Planner
    n: int
    length: int


def rounds_together(wishes: Sequence[Wish]) -> list[tuple[int, int]]:
    """(drafted tokens, rounds) for each of the sequences that make their rounds together: the same for all.

    A forward of some of them takes hardly less time than one of all, and a sequence with fewer rounds would only wait.
    """
    planners, count = [wish.planner for wish in wishes], len(wishes)
    leading = planners[0]
    drafted = min(wish.planner._longest(wish.length) for wish in wishes)
    if leading.gamma is None and drafted:
        curves = [[0.0, *accumulate(planner._blend.chances(drafted))] for planner in planners]
        # Until one has measured something, all reckon in shares of a step.
        lines = [p._line for p in planners if p.times.known] or [leading._line]
        first, each = (sum(parts) / len(lines) for parts in zip(*lines, strict=True))
        rates = {
            g: (1 + sum(hopes[g] for hopes in curves) / count) / (first + each * g) for g in sizes(1, drafted)
        }
        drafted = leading._best(leading._first, rates) or leading._least_lacking(leading._first, rates)
    n = sum(wish.n for wish in wishes) / count
    made = 1 + sum(sum(planner._blend.chances(drafted)) for planner in planners) / count
    rounds = min(round(n / made) or min(math.ceil(n), 1), MOST // (drafted + 1))
    return count * [(drafted, rounds)]


def sizes(least: int, most: int) -> list[int]:
    """Numbers of drafted tokens whose verifications have one of the captured sizes."""
    return [rows - 1 for rows in ROWS if least < rows <= most + 1]
