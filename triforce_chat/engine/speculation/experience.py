"""What one level has learnt from its rounds: times, acceptance, and what trials have cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from triforce_chat.engine.speculation.arm import OUTLIER, Arm
from triforce_chat.engine.speculation.calibration import LevelAcceptance, LevelTimes
from triforce_chat.engine.speculation.cost_model import STALE, AcceptanceCurve, Average
from triforce_chat.engine.speculation.exploration import AHEAD, Exploration
from triforce_chat.engine.speculation.investment import Investment
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.plan import Expected, Plan
from triforce_chat.engine.speculation.round_times import CurrentPlainTime, RoundTimes
from triforce_chat.engine.speculation.tree_plan import TreePlan
from triforce_chat.engine.speculation.tree_rates import eldest_line

FORGET_RECORD = 0.98  # weight of the past in the record of lookup
FORGET_UNUSED = 0.997  # weight of the past in a round without lookup
FORGET_PACE = 0.97  # weight of the past at each round
CANDID = 3.0  # looked-up tokens for which the predicted acceptance is trusted as it is


class Experience:
    """What one level has learnt from its rounds, by which the next ones are planned.

    ``investment``: see ``Planner``, as are ``row``, ``trees`` and ``sequences``.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        lookup: NgramLookup | None,
        investment: Investment,
        row: float,
        trees: TreePlan | None,
    ) -> None:
        self.arms, self.lookup, self.trees = list(arms), lookup, trees
        self.investment, self.row = investment, row
        self.sequences = 1
        self.expected = Expected(0.0, 0.0)
        self.spent = 0.0  # seconds of all timed rounds
        self._begin()

    def _begin(self) -> None:
        self.times, self.current_plain = RoundTimes(self.row), CurrentPlainTime()
        self.blend = AcceptanceCurve()  # of rounds in which either the arm or lookup drafts
        self.rounds = 0
        self.habit = Plan(0)  # the latest one that is no trial and no match's
        # Looked-up tokens: how many were expected to be accepted, and how many were.
        self.lookup_expected = self.lookup_accepted = CANDID
        self.agenda: deque[Plan] = deque()  # rounds that a calibration prescribes
        self.exploration = Exploration()
        self.round_seconds, self.round_tokens = Average(FORGET_PACE), Average(FORGET_PACE)
        # Share of the tokens that came neither by lookup nor by the form of the answer
        self.unmatched = Average(FORGET_PACE, 1.0, 1.0)

    # Figures that outlive this process

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
        overheads = tuple(arm.overhead for arm in self.arms)
        trees = None if self.trees is None else self.trees.costs
        times = self.times.steps, self.times.gap, self.times.undrafted
        return LevelTimes(*times, costs, excess, overheads, trees).copy()

    @property
    def known_acceptance(self) -> LevelAcceptance:
        """A copy of the acceptance as it is now."""
        rates = tuple(self.lookup.rates) if self.lookup else ()
        curves = tuple(arm.curve for arm in self.arms)
        ranks = None if self.trees is None else self.trees.ranks
        record = self.lookup_expected, self.lookup_accepted
        return LevelAcceptance(self.blend, curves, record, rates, ranks).copy()

    def use_times(self, known: LevelTimes) -> None:
        """Go on from times that were measured before, and change them unless they are fixed."""
        self.times.use(known)
        self.current_plain.use(self.times)
        each = zip(self.arms, known.costs, known.excess, known.overheads, strict=False)
        for arm, cost, excess, overhead in each:
            arm.use_costs(cost, excess, overhead, self.rounds)
        if self.trees is not None and known.trees is not None:
            self.trees.use_costs(known.trees)

    def use_acceptance(self, known: LevelAcceptance) -> None:
        """Go on from acceptance that was learnt before."""
        own = known.copy()
        self.blend, (self.lookup_expected, self.lookup_accepted) = own.blend, own.record
        for arm, curve in zip(self.arms, own.curves, strict=False):
            arm.curve.use(curve)
        if self.lookup is not None and own.rates:
            self.lookup.go_on(own.rates)
        if self.trees is not None and own.ranks is not None:
            self.trees.use_ranks(own.ranks)

    def another_text(self) -> None:
        """Let what matches of lookup were worth so far count for little beside those of the answer that begins.

        How texts repeat differs more than anything else that is learnt. The drafters' acceptance tells by itself when
        it belongs to another text: it is tested in every round.
        """
        if self.lookup is not None:
            self.lookup.fade()
        self.unmatched.fade()
        share = min(1.0, CANDID / self.lookup_expected)
        self.lookup_expected *= share
        self.lookup_accepted *= share

    # What follows from them

    def further_loss(self, arm: Arm, n: int, best: float) -> float:
        """What a trial of an arm that was tried before is expected to lose.

        A drafted token that cost more than one of plain decoding is taken to cost as much: something was prepared then.
        """
        dear = n * self.times.plain_seconds
        drafting = min(arm.seconds(n), dear) if arm.measured else dear
        return self.loss(n, drafting, best, sum(arm.curve.chances(n)))

    def loss(self, n: int, drafting: float, best: float, accepted: float) -> float:
        """Seconds by which n tokens, drafted in so many seconds, take longer than the best plan for as many."""
        first, more = self.times.step(self.rounds)
        seconds = first + self.times.interruption(self.rounds) + more * n + drafting
        return seconds - self.sequences * (1 + accepted) / best if best else 0.0

    @property
    def pace(self) -> float:
        """Seconds per token of its rounds, lately: all of their seconds by all of their tokens; 0 before the first."""
        return self.round_seconds.total / self.round_tokens.total if self.round_tokens.total else 0.0

    @property
    def record(self) -> float:
        """How many looked-up tokens were accepted for each that was expected to be, lately."""
        return self.lookup_accepted / self.lookup_expected

    def hopes(self, match: int, n: int) -> list[float]:
        """The chances of n tokens that continue a match of that length; empty without one."""
        return self.lookup.survival(match, n) if self.lookup and match else []

    @property
    def _plain_loss(self) -> float:
        """Seconds that a token without a draft takes longer than the plan by which tokens are made otherwise."""
        habit = self.habit
        return self.times.plain_seconds - self.sequences / habit.rate if habit.n and habit.rate else 0.0

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
        self.unmatched.add(float(plan.arm is not None or not drafted), 1 + accepted)
        timed = timed or self.investment.unlimited
        if timed:
            self._learn_pace(drafting + verifying + self.times.gap.mean, 1 + accepted)
            self._surveyed(drafted)
            self.times.waited(self.rounds)
            self._learn_step(plan, drafted, verifying)
            self.current_plain.verified(1 + drafted, verifying)
        if timed and not drafted and plan.plain:
            self.current_plain.plain(verifying + self.times.gap.mean)
        if timed and not drafted:
            self.exploration.plain_measured(self.rounds, self.habit.n > 0)
        if plan.forced:  # says nothing about any drafter
            return
        arm = plan.arm
        hopes = self.hopes(match, drafted) if arm is None else []
        self._remember(hopes, accepted)
        if arm is None:
            self._learn_choice(False)
            return
        if plan.parents and self.trees is not None:
            if drafted:
                self._learn_tree(self.trees, plan, drafted, path, (drafting, verifying) if timed else None)
                arm.drafter.judged(drafted, accepted)
            return
        self._learn_chain(drafted, accepted)
        # First, as then a level knows what its rounds took.
        arm.drafter.judged(drafted, accepted)
        rounds = arm.rounds_took()
        if drafted and timed:
            arm.learn_cost(drafting, plan.n, drafted, self.rounds, rounds)
        elif plan.trial if drafted else plan.n and not arm.asked:
            # Something was captured in it, or its cache had to be built first: that was no trial.
            arm.trials = max(0, arm.trials - 1)
        arm.asked = arm.asked or plan.n > 0
        arm.curve.learn(drafted, accepted)

    def _learn_pace(self, seconds: float, tokens: int) -> None:
        self.spent += seconds
        usual = self.round_seconds.mean
        self.round_seconds.add(min(seconds, OUTLIER * usual or seconds))
        self.round_tokens.add(tokens)

    def _learn_step(self, plan: Plan, drafted: int, verifying: float) -> None:
        """Learn what a verification took; that of a tree says little of a chain's where there are both."""
        if not plan.parents or self.trees is None or not self.trees.optional:
            self.times.add_step(1 + drafted, verifying)

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
        self._learn_choice(True)

    def _learn_chain(self, drafted: int, accepted: int) -> None:
        """Learn from a round in which the arm drafted a chain, also about trees."""
        if self.trees is not None and self.trees.optional:
            self.trees.ranks.learn_chain(drafted, accepted)
        self._learn_choice(False)

    def _learn_choice(self, tree: bool) -> None:
        if self.trees is not None and self.trees.optional:
            self.trees.choice.drafted(tree, self.rounds)

    def learn_plain(self, seconds: float, timed: bool = True) -> None:
        """Learn from a token that was decoded without a draft while the host read the previous one.

        ``timed``: see ``learn``; nor does the last of several count, after which nothing was launched.
        """
        if timed or self.investment.unlimited:
            self._learn_plain_time(seconds)
        self._remember([], 0)
        self.unmatched.add(1.0)
        self.exploration.passes(self.times.undrafted.mean, self._plain_loss)
        self.expected = Expected(self.expected.seconds + self.times.undrafted.mean, self.expected.tokens + 1)

    def _learn_plain_time(self, seconds: float) -> None:
        # The first of several waited for its launch.
        if self.times.in_a_row or not self.current_plain.measured:
            self.current_plain.plain(seconds)
        self.times.add_plain(seconds, self.rounds - self.exploration.plain_at > STALE)
        if self.times.in_a_row >= AHEAD:
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
            self._learn_pace(drafting + verifying, 1 + accepted)
            self._learn_step(plan, plan.n, verifying)
        if not plan.n:
            self._learn_choice(False)
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
            self._learn_choice(False)
        if timed:
            plan.arm.learn_cost(drafting, plan.n, plan.n, self.rounds)
        if match < plan.threshold:
            plan.arm.curve.learn(plan.n, accepted)

    def _surveyed(self, drafted: int) -> None:
        """A round is done; it was the next one on the agenda unless its arm could not draft yet."""
        if self.agenda and (drafted > 0) == (self.agenda[0].n > 0):
            self.agenda.popleft()

    def _remember(self, hopes: list[float], accepted: int) -> None:
        """Update lookup's record of accepted tokens, which fades while lookup is not used."""
        forget = FORGET_RECORD if hopes else FORGET_UNUSED
        unused = (1 - forget) * CANDID
        self.lookup_expected = forget * self.lookup_expected + (sum(hopes) if hopes else unused)
        self.lookup_accepted = forget * self.lookup_accepted + (accepted if hopes else unused)

    def _explored(self, plan: Plan, drafted: int) -> None:
        """Count the time of a round, and what is lost by it if it is a trial."""
        arm = plan.arm
        loss = self._plain_loss if plan.plain else 0.0
        if arm is not None and plan.trial and arm.again and self.habit.rate:
            loss = self.further_loss(arm, drafted, self.habit.rate)
        self.exploration.passes(self._seconds(arm, drafted), loss)
        self.times.in_a_row = 0

    def _expect(
        self, plan: Plan, match: int, drafted: int, accepted: int, drafting: float, verifying: float
    ) -> None:
        """Add what the round was expected to yield and to cost, or its actual figures if nothing was known."""
        arm = plan.arm
        known = self.times.steps.known and (arm is None or arm.measured)
        if plan.parents and self.trees is not None:
            tokens = self.trees.forecast(plan.parents) if plan.rate else 1 + accepted
            seconds = tokens / plan.rate if plan.rate else drafting + verifying
            self.expected = Expected(self.expected.seconds + seconds, self.expected.tokens + tokens)
            return
        chances = arm.curve.chances(drafted) if arm else self.hopes(match, drafted)
        record = 1.0 if arm else self.record
        tokens = 1 + (record * sum(chances) if known else accepted)
        seconds = self._seconds(arm, drafted) if known else drafting + verifying
        self.expected = Expected(self.expected.seconds + seconds, self.expected.tokens + tokens)

    def _seconds(self, arm: Arm | None, drafted: int) -> float:
        """What a round with so many drafted tokens is expected to take."""
        if not drafted:
            return self.times.waiting(self.rounds)
        first, more = self.times.round(self.rounds)
        return first + more * drafted + (arm.seconds(drafted) if arm else 0.0)
