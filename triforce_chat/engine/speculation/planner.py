"""Chooses, round by round, who drafts and how much: the cost model of TriForce over measured times.

Expected tokens of a round over its expected seconds, with times and acceptance as they were lately. Every level that
verifies has a planner. Decisions look only at what is already revealed (the history, past verdicts, the clock), so the
output stays exact.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from triforce_chat.engine.cuda_graph import Captures
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.speculation.arm import TRIALS, TRY_AGAIN, Arm
from triforce_chat.engine.speculation.cost_model import ROW_PRIOR, AcceptanceCurve
from triforce_chat.engine.speculation.experience import Experience
from triforce_chat.engine.speculation.investment import SURE, Investment, Lacking, nothing_lacking
from triforce_chat.engine.speculation.lookup import CUTOFF, ORDERS, NgramLookup
from triforce_chat.engine.speculation.plan import NEVER, Plan, Proposals, sizes
from triforce_chat.engine.speculation.stack_specs import LONGEST_BRANCH, MAX_TREE
from triforce_chat.engine.speculation.survey import EVERYTHING, prescribe
from triforce_chat.engine.speculation.tree_plan import RoundCosts, TreePlan
from triforce_chat.engine.tree import Parents

GAIN = 1.03  # speculation must promise this much over plain decoding
HABIT = 1.05  # another plan must promise this much more than the last one
# Where tokens are decoded without drafts ahead of the host, drafters are considered once in so many rounds: nothing is
# learnt about them meanwhile, and the host has no more than a token's time. Matches are always considered.
SELDOM = 4


class Planner(Experience):
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
        super().__init__(arms, lookup, investment or Investment(Captures()), row, trees)
        self.gamma, self.group = gamma, group
        self.lacking: Lacking = nothing_lacking
        self.most = (gamma or most) if arms or lookup else 0
        self.may_be_plain, self.proposals = plain, Proposals()
        self.overlaps = False  # whether its level decodes ahead of the host where nothing is drafted
        self.room = MAX_TREE  # tokens of a tree that its level's cache has room for

    @property
    def outlook(self) -> tuple[float, float]:
        """Expected seconds per token without drafts, and in the plan that promises most; lookup is left out."""
        drafted = [1 / self._drafted(arm, self.most).rate for arm in self.arms if arm.measured]
        return self.times.plain_seconds, min([self.times.plain_seconds, *drafted])

    def expected_gain(self, length: int) -> float:
        """How many times as fast as without drafts its rounds after ``length`` tokens may be, before any was made.

        1 as long as nothing is known of its drafts.
        """
        found = [1.0]
        for arm in self.arms:
            if arm.curve.tested:
                each = arm.forecast(length) + self.row
                hopes = list(accumulate(arm.curve.chances(self.most)))
                found += [(1 + hopes[n - 1]) / (1 + each * n) for n in sizes(1, self.most)]
        return max(found)

    @property
    def expected_pace(self) -> float:
        """Seconds per token of its rounds, as its drafts fare now; 0 before the first.

        What the latest rounds took says less: few of them are a matter of luck, and the text may have changed since.
        It is all that is known of a level that drafts as many tokens each time, or trees.
        """
        drafted = [
            self.sequences / max(self.rates(arm, self.most, arm.line, arm.curve).values())
            for arm in self.arms
            if arm.measured and self.decides and self.trees is None
        ]
        return min([self.times.plain_seconds, *drafted]) if drafted else self.pace

    def survey(self, longest: int, left: int = EVERYTHING) -> None:
        """Prescribe rounds that measure plain decoding and every arm usable up to ``longest`` tokens.

        ``left``: only so many of the last ones, where others were run by an earlier process.
        """
        able = [arm for arm in self.arms if longest >= arm.worth_above]
        prescribe(self.agenda, self.may_be_plain, able, left)

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

    @property
    def plans_together(self) -> bool:
        """Whether its rounds may depend on other sequences: not where a seed is to give the same tokens every time."""
        return (self.gamma is None or self.trees is not None) and not self.investment.unlimited

    @property
    def expected_rest(self) -> int:
        """Tokens that all sequences are expected to add to their answers."""
        return self.sequences * self.investment.expected_rest

    @property
    def goes_on(self) -> bool:
        """Whether the answer is not about to end, as far as its limit tells."""
        return self.investment.expected_rest >= SURE

    @property
    def left_to_arms(self) -> float:
        """How many of these tokens come without lookup, if matches go on as they did lately."""
        return self.expected_rest * self.unmatched.mean

    @property
    def first(self) -> Arm | None:
        """By which several rounds draft, and the rounds of a stack that does not choose."""
        return self.arms[0] if self.arms else None

    def renew(self, rest: int) -> None:
        """The answer may grow by ``rest`` tokens, for which captures may still pay."""
        rate = self.habit.rate
        self.investment.renew(
            rest, min(self.times.plain_seconds, 1 / rate) if rate else self.times.plain_seconds
        )

    def expected_rounds(self, length: int, most: int) -> list[tuple[Arm | TreePlan | None, int]]:
        """Rounds after ``length`` tokens, by who drafts and how many tokens, in the order of their first use.

        Where there is something to choose they draft at most ``most``.
        """
        if not self.decides and self.arms:  # the last round of an answer may lack no draft
            return [(self.trees or self.arms[0], self.most), (None, 0)]
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

    # What the next round drafts

    def choose(self, length: int, most: int, match: int, needed: int = EVERYTHING) -> Plan:
        """Plan the round after ``length`` tokens, with at most ``most`` drafted ones, only ``needed`` of which count.

        ``match`` is the length of the match that lookup found. All ranks take rank 0's plan, as their clocks differ.
        """
        self.rounds += 1
        if not self.decides:
            return self._fixed(most, match, needed)
        own = self._choose(length, min(most, self.most), match, needed)
        own = self.or_tree(own, min(most, needed), match)
        if own.parents:  # of one rank
            return own
        places = [None, *self.arms]
        n, place = self.group.broadcast_ints((own.n, places.index(own.arm)))
        return Plan(n, places[place], own.rate)

    def _fixed(self, most: int, match: int, needed: int) -> Plan:
        arm, n = self.first, min(most, self.most) if needed else 0
        if arm is not None and self.trees is not None and n > 0:
            return self.tree(arm, self.trees, min(self.most, self.room, self.trees.most(most)), match)
        if arm is None and self.lookup:
            found = self.lookup.survival(match, min(n, needed)) if match else ()
            n = sum(chance >= CUTOFF for chance in found)
        return Plan(n, arm)

    def _choose(self, length: int, n: int, match: int, needed: int = EVERYTHING) -> Plan:
        rest = min(n, needed)
        if rest == 0:
            return Plan(0, None if self.may_be_plain else self.arms[0])
        if self.agenda:
            return replace(self.agenda[0], n=min(n, self.agenda[0].n))
        if self.times.in_a_row == 1 and self.times.undrafted.weight < 1:
            # The first one waited for its launch: what is compared with it looks better than it is.
            return Plan(0)
        seldom = self.habit.plain and self.times.in_a_row and self.rounds % SELDOM
        able = [] if seldom else [arm for arm in self.arms if length >= arm.worth_above]
        options = [self._drafted(arm, n, needed) for arm in able if arm.measured]
        if self.may_be_plain and (self.times.steps.known or self.times.undrafted.weight):
            options += [Plan(0, rate=self.sequences / self.times.plain_seconds), self._looked_up(rest, match)]
        best = max(options, key=self._appeal, default=Plan(0))
        trial = self.exploration.trial(self, able, best, rest, length)
        if trial is not None:
            arm, tokens = trial
            return Plan(tokens, arm)
        if best.arm:
            best.arm.patience = TRY_AGAIN
        if best.arm or best.n == 0:  # lookup is no habit: matches come and go
            self.habit = best
        return best

    def again(self, arm: Arm, most: int, best: float) -> tuple[int, float]:
        """What a trial of an arm that was tried before drafts, and promises; ``best``, where it was never measured."""
        if not arm.measured:
            return min(TRIALS[0], most), best
        plan = self._drafted(arm, most)
        return plan.n, plan.rate

    def threshold(self, n: int) -> int:
        """The shortest match for which n looked-up tokens promise more accepted ones than the arm's."""
        if self.lookup is None:
            return NEVER
        if not self.arms:
            return 0
        kept = sum(self.arms[0].curve.chances(n))
        promises = (length for length in range(1, NEVER) if sum(self.lookup.survival(length, n)) > kept)
        return next(promises, NEVER)

    # The device idles during these two, so they avoid tensors.

    def _looked_up(self, most: int, match: int) -> Plan:
        self.investment.quoted += self.times.plain_seconds if match == ORDERS else 0.0
        if self.lookup is None or not match:
            return Plan(0, rate=self.sequences / self.times.waiting(self.rounds))
        record, hopes = self.record, [0.0, *accumulate(self.lookup.survival(match, most))]
        first, more = self.times.round(self.rounds)
        first += self.times.interruption(self.rounds)
        plain = self.sequences / self.times.waiting(self.rounds)
        most_hoped, least = self.sequences + record * hopes[-1], first + more
        if most_hoped * self.times.plain_seconds <= self.sequences * least:  # as for most matches
            return Plan(0, rate=plain)
        rates = {n: (self.sequences + record * hopes[n]) / (first + more * n) for n in sizes(1, most)}
        rates[0] = plain
        n = self.best(None, rates, single=True)
        return Plan(n, rate=rates[n])

    def _drafted(self, arm: Arm, most: int, needed: int = EVERYTHING) -> Plan:
        rates, last = self.rates(arm, most, arm.line, arm.curve, needed=needed), self.habit.n
        appeal = rates | {last: HABIT * rates[last]} if arm is self.habit.arm and last in rates else rates
        n = self.best(arm, appeal)
        if not n and self.may_be_plain:
            return Plan(0)
        n = n or self.least_lacking(arm, appeal)
        return Plan(n, arm, rates[n])

    def rates(
        self,
        arm: Arm,
        most: int,
        seconds: tuple[float, float],
        curve: AcceptanceCurve,
        hope: float = 0.0,
        needed: int = EVERYTHING,
    ) -> dict[int, float]:
        """Expected tokens per second by the number of tokens that the arm is asked for.

        ``seconds``: of a draft, and of each of its tokens, of which only ``needed`` count.
        """
        surplus, all_ = arm.makes(0), self.sequences
        hopes = [0.0, *accumulate(curve.chances(most + surplus, hope))]
        first, more = map(operator.add, self.times.step(self.rounds), seconds)
        # All that an answer lacks is a choice, too: another round may cost a second.
        rest = min(most, needed)
        lengths = {*sizes(1, most), *([rest] if 0 < rest < self.most else [])}
        made = ((n, n + surplus) for n in sorted(lengths))
        return {n: all_ * (1 + hopes[min(m, needed)]) / (first + more * m) for n, m in made}

    def _appeal(self, plan: Plan) -> float:
        """The expected rate, with a bonus for the current plan: the best of many noisy estimates is overestimated."""
        if plan.n == 0:
            return plan.rate * GAIN * (HABIT if self.habit.arm else 1.0)
        same = plan.arm is not None and plan.arm is self.habit.arm and plan.n == self.habit.n
        return plan.rate * (HABIT if same else 1.0)

    # What is worth capturing

    def best(self, arm: Arm | None, rates: dict[int, float], single: bool = False) -> int:
        """The number of drafted tokens with the highest rate for which nothing too costly is to be captured; else 0.

        ``single``: of a match that lookup found. It serves one round, and most are short and fail, so captures may take
        as long as tokens did that followed the longest ones.
        """
        slowest: float | None = None  # looked for where it matters, as that takes the host a while
        for n in sorted(rates, key=rates.__getitem__, reverse=True):
            if self.investment.unlimited or not self._lacked(arm, n):
                return n
            if slowest is None and not single:
                slowest = self._slowest(arm, rates)
            won = self.investment.quoted if slowest is None else self.investment.won(slowest - 1 / rates[n])
            if self.investment.allows(self._lacked(arm, n), won):
                return n
        return 0

    def _slowest(self, arm: Arm | None, rates: dict[int, float]) -> float:
        """Seconds per token of the best plan that needs no captures, as far as it is known."""
        ready = [rate for n, rate in rates.items() if not self._lacked(arm, n)]
        if self.may_be_plain and self.times.undrafted.weight:
            ready.append(1 / self.times.undrafted.mean)
        if not self._lacked(self.habit.arm, self.habit.n):
            ready.append(self.habit.rate)
        best = max(ready, default=0)
        return 1 / best if best else math.inf

    def affordable(self, arm: Arm, n: int, saved: float) -> bool:
        """Whether what ``arm`` lacks for n tokens may be captured, if that saves ``saved`` seconds a token."""
        own = self.investment
        return own.unlimited or own.allows(self._lacked(arm, n), own.won(saved))

    def capturing(self, arm: Arm, n: int) -> float:
        """Seconds that the captures take which a round of that kind lacks."""
        return 0.0 if self.investment.unlimited else self.investment.seconds(self._lacked(arm, n))

    def _lacked(self, arm: Arm | None, n: int) -> int:
        # Looking takes the host a while. By number: references would keep a replaced stack alive.
        known, plan = self.investment.lacking, (id(self), id(arm), n)
        if plan not in known:
            known[plan] = self.lacking(arm, n)
        return known[plan]

    def least_lacking(self, arm: Arm | None, rates: dict[int, float]) -> int:
        """Where a draft must be made: the best of those for which least is to be captured."""
        return min(rates, key=lambda n: (self.lacking(arm, n), -rates[n]))

    # Trees

    def tree(self, arm: Arm, trees: TreePlan, n: int, match: int) -> Plan:
        """A tree of at most n tokens, up to half of which are looked up."""
        branch = sum(chance >= CUTOFF for chance in self.hopes(match, min(n // 2, LONGEST_BRANCH)))
        costs = self._tree_costs(arm, trees)
        parents = trees.shape(n, costs, branch)
        return Plan(len(parents), arm, trees.rate(parents, costs), parents=parents, branch=branch)

    def _tree_costs(self, arm: Arm, trees: TreePlan) -> RoundCosts:
        """As measured for trees; until then as for chains."""
        if not trees.measured:
            (first, row), (whole, each) = self.times.round(self.rounds), arm.line
            return RoundCosts(first + whole, row, each)
        first, row = trees.costs.steps.line
        return RoundCosts(first + self.times.gap.mean, row, trees.costs.depth.mean)

    def or_tree(self, chain: Plan, most: int, match: int) -> Plan:
        """That plan, or a tree of an answer's next ``most`` tokens if that promises more."""
        trees, arm = self.trees, self.first
        if trees is None or arm is None or not chain.rate or most < 1 or self.agenda:
            return chain
        tree = self.tree(arm, trees, min(self.room, trees.most(most)), match)
        how = tree.rate, chain.rate, self.rounds, chain.rounds, trees.measured
        if not tree.rate or not trees.choice.drafts_tree(*how):
            return chain
        saved = 1 / chain.rate - 1 / tree.rate
        own = self.investment
        able = own.unlimited or own.allows(self._lacked_by(trees, tree), own.won(saved))
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
        most = min(self.room, self.trees.most(self.trees.options.most))
        return self.tree(self.arms[0], self.trees, most, 0).parents
