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
    STALE,
    AcceptanceCurve,
    Average,
    StepTimes,
)
from triforce_chat.engine.speculation.exploration import AHEAD, Exploration
from triforce_chat.engine.speculation.investment import Investment, Lacking, nothing_lacking
from triforce_chat.engine.speculation.lookup import ORDERS, NgramLookup
from triforce_chat.engine.speculation.tree_plan import RoundCosts, TreePlan
from triforce_chat.engine.speculation.tree_rates import eldest_line
from triforce_chat.engine.tree import Parents, levels

# Rows of a verification: few sizes, as each is captured once; a proposal may be some tokens longer than requested. The
# last two serve where keys and values are streamed and nothing is captured.
ROWS = (*SIZES[:-1], 48, 64)
GAIN = 1.03  # speculation must promise this much over plain decoding
HABIT = 1.05  # another plan must promise this much more than the last one
# After so many rounds, what a waited round takes is no longer known, but taken to be at most so many times what a token
# takes that is decoded ahead of the host.
WAIT_AGAIN, AT_MOST = 64, 1.5
PAUSE = 3.0  # steps; a longer pause between two rounds is not part of their cost
FORGET_RECORD = 0.98  # weight of the past in the record of lookup
FORGET_UNUSED = 0.997  # weight of the past in a round without lookup
CANDID = 3.0  # looked-up tokens for which the predicted acceptance is trusted as it is
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
    rate: float = 0.0  # expected tokens per second; 0 for a trial, a fixed plan or if it is unknown
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
    graphs may be captured for the sake of a plan. ``row``: see ``StepTimes``. With ``trees`` the first arm drafts
    those: where they are optional, only if they promise more than chains.

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
        self.overlaps = False  # whether its level decodes ahead of the host where nothing is drafted
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
        # Tokens decoded without drafts up to now, each launched before the host had read the one before it.
        self.in_a_row = 0
        self.waited_at = 0  # the latest round that was waited for
        self.exploration = Exploration()

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
        trees = None if self.trees is None else self.trees.costs
        return LevelTimes(self.times, self.gap, self.undrafted, costs, excess, trees).copy()

    @property
    def known_acceptance(self) -> LevelAcceptance:
        """A copy of the acceptance as it is now."""
        rates = tuple(self.lookup.rates) if self.lookup else ()
        curves = tuple(arm.curve for arm in self.arms)
        ranks = None if self.trees is None else self.trees.ranks
        return LevelAcceptance(self.blend, curves, (self.hoped, self.came), rates, ranks).copy()

    def use_times(self, known: LevelTimes) -> None:
        """Go on from times that were measured before, and change them unless they are fixed."""
        self.times, self.gap, self.undrafted = known.steps, known.gap, known.undrafted
        self.times.row, self.in_a_row = self.row, 0
        for arm, cost, excess in zip(self.arms, known.costs, known.excess, strict=False):
            arm.use_costs(cost, excess, self.rounds)
        if self.trees is not None and known.trees is not None:
            self.trees.use_costs(known.trees)

    def use_acceptance(self, known: LevelAcceptance) -> None:
        """Go on from acceptance that was learnt before."""
        own = known.copy()
        self.blend, (self.hoped, self.came) = own.blend, own.record
        for arm, curve in zip(self.arms, own.curves, strict=False):
            arm.curve = curve
        if self.lookup is not None and own.rates:
            self.lookup.go_on(own.rates)
        if self.trees is not None and own.ranks is not None:
            self.trees.use_ranks(own.ranks)

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

    @property
    def learns(self) -> bool:
        """Whether what it measures changes its rounds."""
        return self.decides or (self.trees is not None and not self.trees.fixed)

    @property
    def widest(self) -> int:
        """The most tokens that a round may draft."""
        return self.most if self.trees is None else max(self.most, self.trees.options.most)

    def renew(self, rest: int) -> None:
        """The answer may grow by ``rest`` tokens, for which captures may still pay."""
        rate = self.habit.rate
        self.investment.renew(rest, min(self.plain_seconds, 1 / rate) if rate else self.plain_seconds)

    def expected_rounds(self, length: int, most: int) -> list[tuple[Arm | TreePlan | None, int]]:
        """Rounds after ``length`` tokens, by who drafts and how many tokens, in the order of their first use.

        Where there is something to choose they draft at most ``most``.
        """
        if not self.decides and self.arms:
            return [(self.trees or self.arms[0], self.most)]
        able = [arm for arm in self.arms if length >= arm.worth_above]
        plain: list[tuple[Arm | TreePlan | None, int]] = [(None, 0)]
        trials = [(arm, n) for arm in able for n in TRIALS] if self.decides else []
        drafters = [*able, *([None] if self.lookup or not able else [])]
        # The largest first: its scratch memory is large enough for the others.
        others = [(arm, n) for n in reversed(sizes(1, min(most, self.most))) for arm in drafters]
        trees: list[tuple[Arm | TreePlan | None, int]] = []
        if self.trees is not None:
            trees = [(self.trees, self.trees.options.most)]
        drafted = [*trials, *trees, *others]
        return [*plain, *drafted] if self.may_be_plain else [*drafted, *plain]

    def choose(self, length: int, most: int, match: int) -> Plan:
        """Plan the round after ``length`` tokens, with at most ``most`` drafted ones.

        ``match`` is the length of the match that lookup found. All ranks take rank 0's plan, as their clocks differ.
        """
        self.rounds += 1
        if not self.decides:
            return self._fixed(most, match)
        own = self._or_tree(self._choose(length, min(most, self.most), match), most, match)
        if own.parents:  # of one rank
            return own
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
        arm, trees = self._first, self.trees
        if trees is not None and arm is not None and not trees.optional:
            return self._several_trees(trees, self._tree(arm, trees, self.most, 0), n, length)
        ((drafted, rounds),) = rounds_together([Wish(self, n, length)])
        chain = Plan(drafted, arm, rounds=rounds)
        if trees is None:
            return chain
        tree = self._or_tree(replace(chain, rate=self._chain_rate(drafted, length)), n, 0)
        return (
            self._several_trees(trees, tree, n, length) if length >= tree.longest and tree.parents else chain
        )

    def _several_trees(self, trees: TreePlan, tree: Plan, n: int, length: int) -> Plan:
        """Rounds that each draft that tree."""
        if length < tree.longest:  # the draft feeds as many tokens again
            tree = Plan(0, tree.arm)
        rounds = round(n / (1 + trees.expected(tree.parents))) or min(n, 1)
        return replace(tree, rounds=min(rounds, MOST // tree.longest))

    def _chain_rate(self, drafted: int, length: int) -> float:
        """Tokens a second of one of several rounds that each draft a chain; 0 before both of its costs are measured."""
        if not (self.times.known and self.arms and self.arms[0].measured):
            return 0.0
        first, each = self._line(length)
        return (1 + sum(self._blend.chances(drafted))) / (first + each * drafted)

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

    def _line(self, length: int) -> tuple[float, float]:
        """Seconds of one of several rounds without a draft, and of each drafted token."""
        first, more = self.times.line if self.times.known else (1.0, self.row)
        arm = self._first
        if arm is None:
            return first, more
        return first, more + (arm.cost.mean if arm.measured else arm.forecast(length) * first)

    def _best(self, arm: Arm | None, rates: dict[int, float]) -> int:
        """The number of drafted tokens with the highest rate for which nothing too costly is to be captured; else 0."""
        slowest: float | None = None  # looked for where it matters, as that takes the host a while
        for n in sorted(rates, key=rates.__getitem__, reverse=True):
            if self.investment.unlimited or not self._lacked(arm, n):
                return n
            slowest = self._slowest(arm, rates) if slowest is None else slowest
            if self.affordable(arm, n, slowest - 1 / rates[n]):
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

    def affordable(self, arm: Arm | None, n: int, saved: float) -> bool:
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
            return self._tree(arm, self.trees, min(self.most, self.trees.most(most)), match)
        if arm is None and self.lookup:
            n = sum(chance >= CUTOFF for chance in self.lookup.survival(match, n)) if match else 0
        return Plan(n, arm)

    def _tree(self, arm: Arm, trees: TreePlan, n: int, match: int) -> Plan:
        """A tree of at most n tokens, up to half of which are looked up."""
        branch = sum(chance >= CUTOFF for chance in self._hopes(match, n // 2))
        costs = self._tree_costs(arm, trees)
        parents = trees.shape(n - branch, costs)
        return Plan(len(parents), arm, trees.rate(parents, costs), parents=parents, branch=branch)

    def _tree_costs(self, arm: Arm, trees: TreePlan) -> RoundCosts:
        """As measured for trees; until then as for chains."""
        if not trees.measured:
            return RoundCosts(*self._round, arm.cost.mean)
        first, row = trees.costs.steps.line
        return RoundCosts(first + self.gap.mean, row, trees.costs.level.mean)

    def _or_tree(self, chain: Plan, most: int, match: int) -> Plan:
        """That plan, or a tree of an answer's next ``most`` tokens if that promises more."""
        trees, arm = self.trees, self._first
        if trees is None or arm is None or not chain.rate or most < 1 or self.agenda:
            return chain
        tree = self._tree(arm, trees, trees.most(most), match)
        how = tree.rate, chain.rate, self.rounds, chain.rounds, trees.measured
        if not tree.rate or not trees.rivalry.drafts_tree(*how):
            return chain
        saved = 1 / chain.rate - 1 / tree.rate
        able = self.investment.unlimited or self.investment.allows(self._lacked_by(trees, tree), saved)
        return tree if able else chain

    def _lacked_by(self, trees: TreePlan, tree: Plan) -> int:
        known, plan = self.investment.lacking, (id(self), id(trees), tree.parents)
        if plan not in known:
            known[plan] = self.lacking(trees, tree.n)
        return known[plan]

    @property
    def next_tree(self) -> Parents:
        """The shape that the next round drafts if it drafts a tree, without looked-up tokens."""
        assert self.trees is not None
        return self._tree(self.arms[0], self.trees, self.trees.most(self.trees.options.most), 0).parents

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
        if self.in_a_row == 1 and self.undrafted.weight < 1:
            # The first one waited for its launch: what is compared with it looks better than it is.
            return Plan(0)
        able = [arm for arm in self.arms if length >= arm.worth_above]
        options = [self._drafted(arm, n) for arm in able if arm.measured]
        if self.may_be_plain and (self.times.known or self.undrafted.weight):
            options += [Plan(0, rate=self.sequences / self.plain_seconds), self._looked_up(n, match)]
        best = max(options, key=self._appeal, default=Plan(0))
        trial = self.exploration.trial(self, able, best, n, length)
        if trial is not None:
            arm, tokens = trial
            return Plan(tokens, arm)
        if best.arm:
            best.arm.patience = TRY_AGAIN
        if best.arm or best.n == 0:  # lookup is no habit: matches come and go
            self.habit = best
        return best

    @property
    def expected_rest(self) -> int:
        """Tokens that all sequences are expected to add to their answers."""
        return self.sequences * self.investment.expected_rest

    def again(self, arm: Arm, most: int, best: float) -> tuple[int, float]:
        """What a trial of an arm that was tried before drafts, and promises; ``best``, where it was never measured."""
        if not arm.measured:
            return min(TRIALS[0], most), best
        plan = self._drafted(arm, most)
        return plan.n, plan.rate

    def further_loss(self, arm: Arm, n: int, best: float) -> float:
        """What a trial of an arm that was tried before is expected to lose.

        A drafted token that cost more than one of plain decoding is taken to cost as much: something was prepared then.
        """
        each = min(arm.cost.mean, self.plain_seconds) if arm.measured else self.plain_seconds
        return self.loss(n, each, best, sum(arm.curve.chances(n)))

    def loss(self, n: int, each: float, best: float, accepted: float) -> float:
        """Seconds by which n drafted tokens, of so many seconds each, take longer than the best plan for as many."""
        first, more = self.step
        seconds = first + self._interruption + (more + each) * n
        return seconds - self.sequences * (1 + accepted) / best if best else 0.0

    @property
    def _round(self) -> tuple[float, float]:
        """Seconds of a round without a draft, and of verifying each drafted token."""
        if not self.times.known:
            return self.undrafted.mean, self.row * self.undrafted.mean
        (first, more), gap = self.times.line, self.gap.mean
        if self.undrafted.weight >= 1 and not self._waited_lately:
            usual = AT_MOST * self.undrafted.mean
            return min(first + gap, usual), min(more, self.row * usual)
        return first + gap, more

    @property
    def _waited_lately(self) -> bool:
        """Whether what a waited round takes was measured by more than the first one, and not long ago.

        Otherwise, where tokens are decoded ahead of the host, a single round in which something was prepared, or the
        host was busy, would keep drafts from ever being made again.
        """
        return self.times.level.weight >= 1 and self.rounds - self.waited_at <= WAIT_AGAIN

    @property
    def step(self) -> tuple[float, float]:
        """Seconds of a round without a draft, and of verifying each drafted token; shares of a step until measured."""
        first, more = self._round
        return (first, more) if first else (1.0, self.row)

    @property
    def _interruption(self) -> float:
        """Seconds that a round with a draft costs the token after it, which is not launched ahead of the host then."""
        return max(0.0, self._round[0] - self.undrafted.mean) if self.in_a_row and self.times.known else 0.0

    @property
    def plain_is_measured(self) -> bool:
        """True if tokens were decoded without drafts; else their time follows from that of verifications."""
        return self.undrafted.weight > 0

    @property
    def plain_seconds(self) -> float:
        """Seconds per token without drafts; 0 before the first measurement."""
        if self.undrafted.weight or not self.times.known:
            return self.undrafted.mean
        return self.times.one_row + self.gap.mean

    # The device idles during these two, so they avoid tensors.

    def _looked_up(self, most: int, match: int) -> Plan:
        if self.lookup is None or not match:
            return Plan(0, rate=self.sequences / self._round[0])
        record, hopes = self._record, [0.0, *accumulate(self.lookup.survival(match, most))]
        (first, more), late = self._round, self._interruption
        rates = {
            n: (self.sequences + record * hopes[n]) / (first + more * n + (late if n else 0.0))
            for n in sizes(0, most)
        }
        n = self._best(None, rates)
        return Plan(n, rate=rates[n])

    def _drafted(self, arm: Arm, most: int) -> Plan:
        rates = self.rates(arm, most, arm.cost.mean, arm.curve)
        appeal = {n: rate * self._habit(arm, n) for n, rate in rates.items()}
        n = self._best(arm, appeal)
        if not n and self.may_be_plain:
            return Plan(0)
        n = n or self._least_lacking(arm, appeal)
        return Plan(n, arm, rates[n])

    def rates(self, arm: Arm, most: int, each: float, curve: AcceptanceCurve) -> dict[int, float]:
        """Expected tokens per second by the number of tokens that the arm is asked for, each of which costs so much."""
        hopes = [0.0, *accumulate(curve.chances(arm.makes(most)))]
        (first, more), all_ = self.step, self.sequences
        made = {n: arm.makes(n) for n in sizes(1, most)}
        return {n: all_ * (1 + hopes[m]) / (first + (more + each) * m) for n, m in made.items()}

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
        self._explored(plan, drafted)
        timed = timed or self.investment.unlimited
        if timed:
            self._surveyed(drafted)
            if self.rounds - self.waited_at > WAIT_AGAIN:
                self.times.level.fade()
            self.waited_at = self.rounds
            self._learn_step(plan, drafted, verifying)
        if timed and not drafted:
            self.exploration.plain_measured(self.rounds, self.habit.n > 0)
        if plan.forced:  # says nothing about any drafter
            return
        arm = plan.arm
        hopes = self._hopes(match, drafted) if arm is None else []
        self._remember(hopes, accepted)
        if arm is None:
            self._learn_rival(False)
            return
        if plan.parents and self.trees is not None:
            if drafted:
                self._learn_tree(self.trees, plan, drafted, path, (drafting, verifying) if timed else None)
                arm.drafter.judged(drafted, accepted)
            return
        self._learn_chain(drafted, accepted)
        if drafted and timed:
            arm.learn_cost(drafting, plan.n, drafted, self.rounds)
        elif plan.trial if drafted else plan.n and not arm.asked:
            # Something was captured in it, or its cache had to be built first: that was no trial.
            arm.trials = max(0, arm.trials - 1)
        arm.asked = arm.asked or plan.n > 0
        arm.curve.learn(drafted, accepted)
        arm.drafter.judged(drafted, accepted)

    def _learn_step(self, plan: Plan, drafted: int, verifying: float) -> None:
        """Learn what a verification took; that of a tree says little of a chain's where there are both."""
        if not plan.parents or self.trees is None or not self.trees.optional:
            self.times.add(1 + drafted, verifying)

    def _learn_tree(
        self,
        trees: TreePlan,
        plan: Plan,
        drafted: int,
        path: Sequence[int],
        seconds: tuple[float, float] | None,
    ) -> None:
        """Learn from a round that drafted a tree, also about chains; ``seconds``: see ``TreePlan.learn``."""
        trees.learn(plan.parents, path, 1 + drafted, seconds)
        if plan.arm is not None:
            plan.arm.curve.learn(*eldest_line(plan.parents, path))
            plan.arm.measured_at = self.rounds
        self._learn_rival(True)

    def _learn_chain(self, drafted: int, accepted: int) -> None:
        """Learn from a round in which the arm drafted a chain, also about trees."""
        if self.trees is not None and self.trees.optional:
            self.trees.ranks.learn_chain(drafted, accepted)
        self._learn_rival(False)

    def _learn_rival(self, tree: bool) -> None:
        if self.trees is not None and self.trees.optional:
            self.trees.rivalry.drafted(tree, self.rounds)

    def learn_plain(self, seconds: float, timed: bool = True) -> None:
        """Learn from a token that was decoded without a draft while the host read the previous one.

        ``timed``: see ``learn``; nor does the last of several count, after which nothing was launched.
        """
        if timed or self.investment.unlimited:
            self._learn_plain_time(seconds)
        self._remember([], 0)
        self.exploration.passes(self.undrafted.mean, self._plain_loss)
        self.expected = Expected(self.expected.seconds + self.undrafted.mean, self.expected.tokens + 1)

    def _learn_plain_time(self, seconds: float) -> None:
        seconds = max(seconds, 1e-6)  # a coarse clock must not promise infinite speed
        if self.undrafted.weight:
            seconds = min(seconds, PAUSE * self.undrafted.mean)
        # The first of several waits for its launch.
        if self.in_a_row and self.rounds - self.exploration.plain_at > STALE:
            self.undrafted.fade()
        self.undrafted.add(seconds, 1.0 if self.in_a_row else FIRST)
        self.in_a_row += 1
        if self.in_a_row >= AHEAD:
            self.exploration.plain_measured(self.rounds, self.habit.n > 0)
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
            self._learn_step(plan, plan.n, verifying)
        if not plan.n:
            self._learn_rival(False)
            return
        if plan.parents and self.trees is not None:
            self._learn_tree(self.trees, plan, plan.n, path, (drafting, verifying) if timed else None)
            return
        self.blend.learn(plan.n, accepted)
        if plan.arm is None:
            return
        if match < plan.threshold:
            self._learn_chain(plan.n, accepted)
        else:
            self._learn_rival(False)
        if timed:
            plan.arm.learn_cost(drafting, plan.n, plan.n, self.rounds)
        if match < plan.threshold:
            plan.arm.curve.learn(plan.n, accepted)

    def learn_gap(self, seconds: float) -> None:
        """Learn how long the host was busy with other things between two rounds."""
        usual = min(self.times(1), self.undrafted.mean) if self.undrafted.weight else self.times(1)
        self.gap.add(min(seconds, PAUSE * usual))

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

    def _explored(self, plan: Plan, drafted: int) -> None:
        """Count the time of a round, and what is lost by it if it is a trial."""
        arm, (first, more) = plan.arm, self._round
        loss = self._plain_loss if plan.plain else 0.0
        if arm is not None and plan.trial and arm.again and self.habit.rate:
            loss = self.further_loss(arm, drafted, self.habit.rate)
        self.exploration.passes(first + (more + (arm.cost.mean if arm else 0.0)) * drafted, loss)
        self.in_a_row = 0

    @property
    def _plain_loss(self) -> float:
        """Seconds that a token without a draft takes longer than the plan by which tokens are made otherwise."""
        habit = self.habit
        return self.plain_seconds - self.sequences / habit.rate if habit.n and habit.rate else 0.0

    def _expect(
        self, plan: Plan, match: int, drafted: int, accepted: int, drafting: float, verifying: float
    ) -> None:
        """Add what the round was expected to yield and to cost, or its actual figures if nothing was known."""
        arm = plan.arm
        known = self.times.known and (arm is None or arm.measured)
        if plan.parents and self.trees is not None:
            tokens = self.trees.forecast(plan.parents) if plan.rate else 1 + accepted
            seconds = tokens / plan.rate if plan.rate else drafting + verifying
            self.expected = Expected(self.expected.seconds + seconds, self.expected.tokens + tokens)
            return
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
        lines = [wish.planner._line(wish.length) for wish in wishes if wish.planner.times.known]
        lines = lines or [leading._line(wishes[0].length)]
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
