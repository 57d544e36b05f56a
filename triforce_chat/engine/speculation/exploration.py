"""A planner's trials of what it hardly knows, which may cost a part of what there is to win.

Of drafters, and of plain decoding where something else is used: how long that takes is measured without drafts alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from triforce_chat.engine.speculation.arm import FAR_OFF, NOT_FAR_OFF, TRIALS, TRY_AGAIN, Arm
from triforce_chat.engine.speculation.cost_model import GUESS, AcceptanceCurve
from triforce_chat.engine.speculation.round_times import AT_MOST

if TYPE_CHECKING:
    from triforce_chat.engine.speculation.plan import Plan
    from triforce_chat.engine.speculation.planner import Planner

TRY_AFTER = 3  # rounds before an unmeasured drafter gets its first trial, unless much is expected of it
# A first trial may lose this share of what its drafter would win in the expected rest of the answer, or in later ones,
# if its drafts were accepted as expected: many are not.
CHANCE = 0.25
# What a first trial shows is kept for later answers. Where another drafter pays already, it counts for at least so many
# tokens, unless this answer is about to end.
LATER = 256
# Further trials may together lose this share of the time of all tokens, those of the expected rest included.
EXPLORED = 0.005
# A further trial waits for all of an arm's patience if it is expected to lose the first share of a step; the less it
# loses the sooner it comes, but not before the second share of the patience.
DEAR, SOONEST = 0.08, 0.25
# A drafter that promises to be so many times as fast as plain decoding is tried at once, unless tokens are decoded
# ahead of the host: how fast that is must be known first.
ALREADY = 2.0
# Share of a step that the tokens of a first trial may cost, if they are more than the fewest. Where one of them costs
# less than the second share, they may cost a step: then a short trial loses more, as a step could confirm many.
RISKED, CHEAP = 0.25, 1 / 16
AHEAD = 2  # tokens of a trial of plain decoding ahead of the host, the first of which waits for its launch

UNLUCKY = 0.7  # standard deviations by which the tests of a drafter may have been unlucky
DOUBT = 2.0  # what was measured in an answer's first rounds alone may be so many times slower than it is

Trial = tuple[Arm | None, int]  # who drafts how many tokens; nobody none, to measure plain decoding


class Exploration:
    """Decides what is tried next, and counts what trials have cost.

    By the planner's own forecasts, which do not follow the clock where its times do not.
    """

    def __init__(self) -> None:
        self.passed = 0.0  # seconds of all rounds so far
        self.lost = 0.0  # seconds of further trials beyond what the best plan takes for as many tokens
        self.plain_at = 0  # round of the last measurement of plain decoding
        self.plain_patience = TRY_AGAIN  # rounds until the next one

    # What was done

    def passes(self, seconds: float, loss: float = 0.0) -> None:
        """Count a round of so many seconds, and what is lost by it if it is a further trial."""
        self.passed += seconds
        self.lost += max(0.0, loss)

    def plain_measured(self, now: int, tried: bool) -> None:
        """Plain decoding was measured in round ``now``; ``tried``: although something else promised more."""
        self.plain_at = now
        self.plain_patience = 2 * self.plain_patience if tried else TRY_AGAIN

    def worth(self, loss: float, won: float) -> bool:
        """Whether a first trial may lose so many seconds where ``won`` can be won in the rest of the answer."""
        return loss <= CHANCE * won

    def affords(self, loss: float, rest: float) -> bool:
        """Whether a further trial may lose so many seconds; ``rest``: those that the rest of the answer takes."""
        return self.lost + loss <= EXPLORED * (self.passed + rest)

    # What is tried

    def trial(
        self, planner: Planner, able: Sequence[Arm], best: Plan, most: int, length: int
    ) -> Trial | None:
        """A trial of what was never measured, or not recently, if it is due and worth its time; else None.

        ``able``: the arms to choose from, ``best``: what promises most, with at most ``most`` drafted tokens after
        ``length``.
        """
        for arm in able:
            n = self._first(planner, arm, best, most, length) if arm.trials < len(TRIALS) else 0
            if not n and arm is not best.arm:
                n = self._further(planner, arm, best.rate, most)
            if n:
                return arm, n
        return (None, 0) if best.n and self._plain_is_due(planner, best.rate) else None

    def _first(self, planner: Planner, arm: Arm, best: Plan, most: int, length: int) -> int:
        """Tokens of a trial of an arm that is hardly known; 0 if it has to wait, or is not worth it."""
        (_, more), forecast = planner.times.step(planner.rounds), arm.forecast(length)
        step = planner.times.waiting(planner.rounds) or 1.0
        curve = arm.curve if arm.curve.tested else AcceptanceCurve(GUESS._replace(rate=arm.hope))
        hopes = planner.rates(arm, most, (0.0, forecast * step), curve)
        best_length = max(hopes, key=hopes.__getitem__)
        each = forecast + more / step if forecast else math.inf
        few, many = first_lengths(min(TRIALS[arm.trials], most), hopes, best_length, each)
        if not planner.may_be_plain:
            return many
        dear = forecast > 0 and hopes[best_length] * step > ALREADY
        if best.arm is not arm and planner.rounds <= TRY_AFTER and (planner.overlaps or not dear):
            return 0
        saved = 1 / best.rate - 1 / hopes[best_length] if best.rate else math.inf
        later = LATER * planner.sequences * planner.unmatched.mean if best.arm and planner.goes_on else 0.0
        for n in (many, few):
            loss = planner.loss(n, n * (forecast * step or step), best.rate, 0.0)
            captures = planner.capturing(arm, n)
            left = planner.left_to_arms if captures else max(planner.left_to_arms, later)
            pays = best.arm is arm or self.worth(loss + captures, left * saved)
            if pays and planner.affordable(arm, n, planner.times.plain_seconds):
                return n
        return 0

    def _further(self, planner: Planner, arm: Arm, best: float, most: int) -> int:
        """Tokens of a trial of an arm that was tried before; 0 if none is due."""
        waited = planner.rounds - arm.measured_at
        if waited <= SOONEST * arm.patience:
            return 0
        n, rate = planner.again(arm, most, best)
        optimistic = self._optimistic_rate(planner, arm, most) or rate
        near = optimistic > NOT_FAR_OFF * best or waited > FAR_OFF * arm.patience
        if not near or not planner.affordable(arm, n, planner.times.plain_seconds):
            return 0
        loss = planner.further_loss(arm, n, best) + planner.capturing(arm, n)
        if waited <= arm.patience * min(1.0, loss / (DEAR * planner.times.step(planner.rounds)[0])):
            return 0
        rest = planner.expected_rest / best if best else math.inf
        able = not planner.may_be_plain or self.affords(loss, rest)
        return n if able or self.worth(loss, planner.left_to_arms * (1 / best - 1 / optimistic)) else 0

    def _optimistic_rate(self, planner: Planner, arm: Arm, most: int) -> float:
        """What an arm would promise if its tests were unlucky and, before others followed, its first trials disturbed.

        0 if there were none.
        """
        if not arm.measured:
            return 0.0
        doubt = DOUBT if arm.patience <= TRY_AGAIN else 1.0
        whole, each = arm.line
        rates = planner.rates(arm, most, (whole / doubt, each / doubt), arm.curve, UNLUCKY)
        return max(rates.values())

    def _plain_is_due(self, planner: Planner, best: float) -> bool:
        """Whether plain decoding is to be measured again, which promises less than ``best`` tokens a second.

        What it takes is known from rounds without drafts: those with drafts say the same of a slow machine as of dear
        rows. Repeatable plans go by fixed times.
        """
        seconds, all_ = planner.times.plain_seconds, planner.sequences
        if not (planner.may_be_plain and seconds and best) or planner.investment.unlimited:
            return False
        if planner.overlaps and planner.times.undrafted.weight < 1:
            won = planner.expected_rest * (all_ / best - seconds / AT_MOST)
            return self.worth((1 + AHEAD) * (seconds - all_ / best), won)
        patience = self.plain_patience * (1 if all_ / seconds > NOT_FAR_OFF * best else FAR_OFF)
        if planner.rounds - self.plain_at <= patience:
            return False
        tokens = 1 + AHEAD if planner.overlaps else 1
        begun = planner.times.in_a_row > 0
        return begun or self.affords(tokens * (seconds - all_ / best), planner.expected_rest / best)


def first_lengths(few: int, able: Iterable[int], best_length: int, each: float) -> tuple[int, int]:
    """Tokens of an arm's first trial: few, and as many of ``able`` as cost next to nothing, if those are more.

    ``each``: a token's cost as a share of a step. ``best_length``: how many promise most if all goes well.
    """
    longest = min(best_length, (1.0 if each < CHEAP else RISKED) / each)
    return few, max([few, *(n for n in able if n <= longest)])
