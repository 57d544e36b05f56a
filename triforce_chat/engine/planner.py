"""Chooses, round by round, who drafts and how much: the cost model of TriForce over measured times.

Expected tokens of a round over its expected seconds, with step times and acceptance as they were lately.
Decisions look only at what is already revealed (the history, past verdicts), so the output stays exact.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from triforce_chat.engine.accord import ALONE, Accord
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.level import Level
from triforce_chat.engine.lookup import Forecast, NgramLookup
from triforce_chat.engine.sampling import Sampler
from triforce_chat.engine.timing import StepTimes

LEARN = 0.1
GAIN = 1.03  # speculation must promise this much over plain decoding
TRY_AFTER = 4  # rounds before an unmeasured drafter gets its first trial
TRY_AGAIN = 64  # rounds after which a drafter that was not far off is measured again
NOT_FAR_OFF = 0.7
TRIAL = 4  # tokens of a trial


@dataclass(slots=True)
class Arm:
    """A drafting level with its running cost and acceptance."""

    level: Level
    worth_above: int = 0  # shortest history for which it can pay at all
    seconds: float = 0.0  # per drafted token
    acceptance: float = 0.8  # a guess until verdicts come
    measured_at: int | None = None  # round of the last measurement

    def learn_cost(self, seconds: float, tokens: int, now: int) -> None:
        each = seconds / tokens
        self.seconds = each if self.measured_at is None else self.seconds + LEARN * (each - self.seconds)
        self.measured_at = now

    def learn_acceptance(self, proposed: int, accepted: int) -> None:
        for passed in [1.0] * accepted + [0.0] * (accepted < proposed):
            self.acceptance += LEARN * (passed - self.acceptance)


@dataclass(frozen=True, slots=True)
class Choice:
    """What one round does: ``n`` tokens from ``arm``, or from the lookup where it is None."""

    rate: float  # expected tokens per second
    n: int
    arm: Arm | None = None


class Planner:
    """The drafter of the ``auto`` stack: the best of plain decoding, lookup, and its arms."""

    def __init__(
        self, times: StepTimes, lookup: NgramLookup, arms: Sequence[Arm], accord: Accord = ALONE
    ) -> None:
        self.times, self.lookup, self.arms, self.accord = times, lookup, arms, accord
        self.rounds = 0
        self.choice = Choice(0.0, 0)
        self.expected_s = self.expected_tokens = 0.0  # over all rounds but trials

    @property
    def predicted_ms(self) -> float | None:
        """What a token was expected to take, over all rounds that were planned."""
        return 1000 * self.expected_s / self.expected_tokens if self.expected_tokens else None

    def propose(self, tokens: Tensor, n: int, sampler: Sampler) -> Draft:
        self.rounds += 1
        forecast = self.lookup.forecast(tokens, n)
        self.choice = self._agreed(self._choose(forecast, len(tokens), n))
        self._expect(self.choice)
        arm = self.choice.arm
        if arm is None:
            return self.lookup.draft(forecast.tokens[: self.choice.n])
        started = time.perf_counter()
        draft = arm.level.propose(tokens, self.choice.n, sampler)
        if len(draft):  # none where the arm has to be prepared first
            arm.learn_cost(time.perf_counter() - started, len(draft), self.rounds)
        return draft

    def _agreed(self, own: Choice) -> Choice:
        """Rank 0's choice: every rank has a clock of its own."""
        places = [None, *self.arms]
        n, place = self.accord.numbers((own.n, places.index(own.arm)))
        return Choice(own.rate, n, places[place])

    def _expect(self, choice: Choice) -> None:
        """Keep what a round was planned with."""
        if choice.rate:
            drafting = choice.n * choice.arm.seconds if choice.arm else 0.0
            seconds = drafting + self.times(1 + choice.n)
            self.expected_s += seconds
            self.expected_tokens += choice.rate * seconds

    def _choose(self, forecast: Forecast, length: int, n: int) -> Choice:
        if n == 0 or not self.times.known:
            return Choice(0.0, 0)
        plain = Choice(1 / self.times(1), 0)
        able = [arm for arm in self.arms if length >= arm.worth_above]
        measured = [self._drafted(arm, n) for arm in able if arm.measured_at is not None]
        best = max([self._looked_up(forecast), *measured], key=lambda choice: choice.rate)
        due = [arm for arm in able if self._wants_trial(arm, best.rate, n)]
        if due:
            return Choice(0.0, min(TRIAL, n), due[0])
        return best if best.rate > GAIN * plain.rate else plain

    def _looked_up(self, forecast: Forecast) -> Choice:
        best, expected = Choice(0.0, 0), 1.0
        for n, chance in enumerate(forecast.survival, 1):
            expected += chance
            best = max(best, Choice(expected / self.times(1 + n), n), key=lambda choice: choice.rate)
        return best

    def _drafted(self, arm: Arm, most: int) -> Choice:
        best, expected = Choice(0.0, 0, arm), 1.0
        for n in range(1, most + 1):
            expected += arm.acceptance**n
            rate = expected / (n * arm.seconds + self.times(1 + n))
            best = max(best, Choice(rate, n, arm), key=lambda choice: choice.rate)
        return best

    def _wants_trial(self, arm: Arm, best: float, most: int) -> bool:
        if arm.measured_at is None:
            return self.rounds > TRY_AFTER
        stale = self.rounds - arm.measured_at > TRY_AGAIN
        return stale and self._drafted(arm, most).rate > NOT_FAR_OFF * best

    def rollback(self, length: int) -> None:
        self.lookup.rollback(length)
        for arm in self.arms:
            arm.level.rollback(length)

    def judged(self, proposed: int, accepted: int) -> None:
        arm = self.choice.arm
        if arm is not None:
            arm.learn_acceptance(proposed, accepted)
            arm.level.judged(proposed, accepted)
