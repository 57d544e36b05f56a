"""Recent measurements that plans are based on: what forwards cost, and how often drafts are accepted."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import torch

FORGET_TIME = 0.9  # weight of the past at each new measurement: contexts grow, machines slow down
FORGET_SHAPE = 0.99  # the cost of a row, in steps of one row, changes with the machine only
ROW_PRIOR = 0.04  # cost of one more row, as a share of a step of one row, before anything else is known
# The same on a GPU, where reading the weights takes the time, and where keys and values come from host memory.
GPU_ROW_PRIOR, STREAMED_ROW_PRIOR = 0.003, 0.001
# The same where a CPU multiplies quantized weights: with few of them to read, computing bounds a step of several rows.
COMPUTED_ROW_PRIOR = 0.15
# What a further token of a draft takes on a GPU, as a share of the first one, before anything else is known: launching
# and catching up are most of what a short draft takes.
GPU_FURTHER_PRIOR = 0.25
PRIOR_WEIGHT = 4.0  # of these, in rows squared
JUMP_WEIGHT = 0.1  # steps of several rows for which it counts that they take no longer than their rows do
KNOWN = 2  # steps of one size after which another one tells nothing new of its rows
NEARLY = 1 + 1e-4  # for rounding
STALE = 16  # steps of several rows after which older ones of one row count for no more than a new one
FIRST = (
    1e-6  # weight of the first measurement of a kind, which may include captures: it counts until the second
)
# Something else may slow a machine down, but nothing makes it faster than it is: what took so many times less than
# expected shows that earlier times were disturbed.
DISTURBED = 1.25


class Guess(NamedTuple):
    """Acceptance until verdicts come, and how many tests that counts for."""

    rate: float
    tests: float


GUESS = Guess(
    0.8, 3.0
)  # a draft model's tokens are right in half of the cases or in nearly all, as the text is
# A level is the model that verifies it with a part of its cache or of its bits: its tokens are nearly always right, and
# a few that were not say little.
LEVEL_GUESS = Guess(0.92, 16.0)
FEW_TESTS = 5.0  # so few may all have failed by bad luck
NEIGHBOUR_WEIGHT = (
    6.0  # tests that the acceptance of the positions in front counts for, or as many as the guess does
)
# What was learnt of a text is of little use for another one, where drafts fare differently: that shows when the latest
# tests, the past of which has such a weight at each test, bring so many standard deviations more or less than expected.
FORGET_SURPRISE, SURPRISING = 0.95, 2.5
OPEN = 0.25  # the variance of a test whose outcome is open, in addition: a single one is no surprise
FORGET_POSITION = 0.975  # weight of the past at each test of a position
FORGET_OVERALL = 0.995  # the same over all positions

# A stored figure counts as at most so many measurements: machines and texts change.
STORED_TIMES, STORED_TESTS = 4.0, 20.0
DIGITS = 6  # of a stored number


class Clock:
    """Times a device that works in step with the host, as a CPU does."""

    def now(self) -> float:
        """Seconds of the host's clock."""
        return time.perf_counter()

    def mark(self) -> Any:
        """A marker for the moment when the device will have finished all work launched so far."""
        return self.now()

    def between(self, first: Any, last: Any) -> float:
        """Seconds between two markers, both of which the device must have passed."""
        elapsed: float = last - first
        return elapsed


class QueueClock(Clock):
    """Times a device with a queue by events in the queue, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, first: Any, last: Any) -> float:
        milliseconds: float = first.elapsed_time(last)
        return milliseconds / 1000


def clock_of(device: torch.device) -> Clock:
    return QueueClock(device) if device.type == "cuda" else Clock()


@dataclass(slots=True)
class Average:
    """An exponentially weighted mean."""

    forget: float
    weight: float = 0.0
    total: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.weight = self.forget * self.weight + weight
        self.total = self.forget * self.total + weight * value

    @property
    def mean(self) -> float:
        """0 before the first value."""
        return self.total / self.weight if self.weight else 0.0

    def clear(self) -> None:
        """Forget all values."""
        self.weight = self.total = 0.0

    def fade(self, most: float = 1.0) -> None:
        """Let all values so far count as at most so many."""
        share = min(1.0, most / self.weight) if self.weight else 1.0
        self.weight, self.total = min(most, self.weight), share * self.total

    def plain(self) -> list[float]:
        """The mean and its weight."""
        return [_rounded(self.mean), _rounded(self.weight)]

    @classmethod
    def of(cls, plain: Sequence[float], forget: float, most: float, least: float = 0.0) -> Average:
        """From a mean of at least ``least`` and its weight, which counts as at most ``most``. Raises ValueError."""
        mean, weight = plain
        if not (math.isfinite(mean) and mean >= least and 0 <= weight < math.inf):
            raise ValueError(f"no mean and weight: {plain}")
        weight = min(weight, most)
        return cls(forget, weight, weight * mean)


class FixedAverage(Average):
    """A mean that no further value changes."""

    __slots__ = ()

    def add(self, value: float, weight: float = 1.0) -> None:
        """Ignore the value."""

    def clear(self) -> None:
        """Keep the mean."""

    def fade(self, most: float = 1.0) -> None:
        """Keep the weight."""


class StepShape:
    """How a step's seconds grow with its rows, as shares of a step of one row: a jump to the second, then a line.

    Fitted by least squares to steps of several rows. Forwards of several rows run other kernels, and on a GPU their
    rows cost next to nothing: a line through the step of one row would make long drafts look dear. ``row`` is the slope
    before anything else is known.
    """

    def __init__(self, row: float) -> None:
        # Sums over steps: of weights, of further rows, of their squares, of what a step took beyond one row's, and of
        # that times the further rows.
        self.row, self.sums = row, [0.0] * 5
        self._fit()

    def add(self, more: int, excess: float, weight: float) -> None:
        """A step of ``more`` further rows took 1 + ``excess`` times as long as one of one row."""
        new = 1.0, more, more * more, excess, more * excess
        self.sums = [FORGET_SHAPE * old + weight * each for old, each in zip(self.sums, new, strict=True)]
        self._fit()

    def __call__(self, rows: float) -> float:
        return 1 + self.jump + self.slope * (rows - 1) if rows > 1 else 1.0

    def _fit(self) -> None:
        count, more, more2, excess, product = self.sums
        count, more2, product = count + JUMP_WEIGHT, more2 + PRIOR_WEIGHT, product + PRIOR_WEIGHT * self.row
        self.slope = max(0.0, (count * product - more * excess) / (count * more2 - more * more))
        self.jump = (excess - self.slope * more) / count
        if self.jump < 0:
            self.jump, self.slope = 0.0, max(0.0, product / more2)

    def plain(self) -> list[float]:
        """The slope before anything was known, and the sums."""
        return [_rounded(each) for each in (self.row, *self.sums)]

    @classmethod
    def of(cls, plain: Sequence[float]) -> StepShape:
        """From such a list. Raises ValueError."""
        row, *sums = plain
        made = cls(row)
        if len(sums) != len(made.sums) or not all(map(math.isfinite, plain)):
            raise ValueError(f"no shape: {plain}")
        count, more, more2, *_ = made.sums = [*map(float, sums)]
        if count < 0 or more2 < 0 or more * more > count * more2 * NEARLY:
            raise ValueError(f"no shape: {plain}")
        made._fit()
        return made


class StepTimes:
    """Seconds of a forward by its number of rows: a level that moves quickly, times a shape that moves slowly.

    ``row``: see ``StepShape``.
    """

    def __init__(self, row: float = ROW_PRIOR) -> None:
        self.shape = StepShape(row)
        self.level = Average(FORGET_TIME)  # seconds of a step of one row, by steps of any size
        self.alone = Average(FORGET_TIME)  # seconds of steps of one row, as they were measured
        self.others = 0  # steps of several rows since the latest of one
        # Whether a step of several rows was much faster than those of one row had been; more than once, that is no
        # sign of a disturbed start.
        self.disproved = False
        self.seen = Counter[int]()  # steps of each size
        self.late = 0  # latest steps in a row that took much longer than expected

    def add(self, rows: int, seconds: float) -> None:
        seconds = max(seconds, 1e-6)  # a coarse clock must not promise infinite speed
        if self.known:  # a step that was interrupted by something else says nothing about the machine
            seconds = min(seconds, 3 * self(rows))
        self.seen[rows] += 1
        weight = 1.0 if self.seen[rows] > 1 else FIRST
        if not self.disproved and seconds < self.alone.mean / DISTURBED:
            self.disproved = True
            self.alone.clear()
        # Of a size that is known, it tells of the machine, and not of rows.
        late = self.seen[rows] > KNOWN and seconds > DISTURBED * self(rows)
        self.late = self.late + 1 if late else 0
        if seconds < self.level.mean / DISTURBED or self.late > 1:
            self.level.clear()
        elif self.level.weight >= 1 and rows > 1 and not late:
            self.shape.add(rows - 1, seconds / self.level.mean - 1, weight)
        self.level.add(seconds / self.shape(rows), weight)
        self.others += 1
        if rows == 1:
            self._add_alone(seconds, weight)

    def _add_alone(self, seconds: float, weight: float) -> None:
        if self.others > STALE:
            self.alone.fade()
        self.others = 0
        self.alone.add(seconds, weight)

    def plain(self) -> dict[str, Any]:
        """Seconds of a step of one row with their weight, and the shape."""
        return {"level": self.level.plain(), "shape": self.shape.plain()}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> StepTimes:
        """From plain data. The first step of each size may still include preparations. Raises ValueError."""
        made = cls()
        made.level = Average.of(plain["level"], FORGET_TIME, STORED_TIMES)
        made.shape = StepShape.of(plain["shape"])
        return made

    @property
    def known(self) -> bool:
        return self.level.weight > 0

    def __call__(self, rows: float) -> float:
        """Expected seconds of a step with that many rows; 0 before the first measurement."""
        return self.level.mean * self.shape(rows)

    @property
    def line(self) -> tuple[float, float]:
        """Expected seconds of the first of several rows of a step, and of each further one."""
        first, shape = self.level.mean, self.shape
        return first * (1 + shape.jump), first * shape.slope

    @property
    def one_row(self) -> float:
        """Expected seconds of a step of one row, by such steps alone where there were some.

        By others it cannot be told whether the machine has become slower or each row dearer.
        """
        return self.alone.mean if self.alone.weight else self.level.mean


class FixedStepTimes(StepTimes):
    """Step times that no further step changes."""

    def add(self, rows: int, seconds: float) -> None:
        """Ignore the step."""


class AcceptanceCurve:
    """The chance that the first i tokens of a draft are all accepted.

    Learnt by position, because the further a drafter runs ahead the more it errs. Tokens behind a rejection were
    never tested and teach nothing.
    """

    def __init__(self, guess: Guess = GUESS) -> None:
        self.overall = Average(FORGET_OVERALL, guess.tests, guess.tests * guess.rate)
        self.alike = max(NEIGHBOUR_WEIGHT, guess.tests)  # tests that neighbouring positions count for
        self.positions: list[Average] = []
        # By how many more of the latest tests were passed than expected, and the variance of that number.
        self.surprise = self.variance = 0.0

    def learn(self, proposed: int, accepted: int) -> None:
        tested = min(accepted + 1, proposed)
        self._compare(tested, accepted)
        self.positions += [Average(FORGET_POSITION) for _ in range(tested - len(self.positions))]
        for i, position in enumerate(self.positions[:tested]):
            position.add(i < accepted)
            self.overall.add(i < accepted)

    def _compare(self, tested: int, accepted: int) -> None:
        """Forget most of what was learnt if the latest tests contradict it."""
        before = 1.0
        for i, chance in enumerate(self.chances(tested)):
            rate, before = chance / before if before else 0.0, chance
            self.surprise = FORGET_SURPRISE * self.surprise + (i < accepted) - rate
            self.variance = FORGET_SURPRISE**2 * self.variance + rate * (1 - rate)
        if abs(self.surprise) > SURPRISING * math.sqrt(self.variance + OPEN):
            self.fade()
            self.surprise = self.variance = 0.0

    def chances(self, n: int, hope: float = 0.0) -> list[float]:
        """Of the first 1 .. n tokens: [n], decreasing.

        ``hope``: as if the tests so far had been unlucky by so many standard deviations. How easy a text is moves the
        rates of all positions together.
        """
        passing, rate, lift = [], self.overall.mean, self._lift(hope) if hope else 0.0
        for i in range(n):
            if i < len(self.positions):
                position = self.positions[i]
                rate = (position.total + self.alike * rate) / (position.weight + self.alike)
            passing.append(rate + lift * (1 - rate))
        return list(accumulate(passing, mul))

    def _lift(self, hope: float) -> float:
        """The share of its errors that a drafter would not make."""
        failing = 1 - self.overall.mean
        deviation = math.sqrt(max(0.0, failing * (1 - failing)) / (1 + self.overall.weight))
        return min(1.0, hope * deviation / failing) if failing > 0 else 0.0

    def use(self, known: AcceptanceCurve) -> None:
        """Go on from what another curve has learnt."""
        self.overall, self.positions = known.overall, known.positions
        self.surprise, self.variance = known.surprise, known.variance

    def fade(self) -> None:
        """Let all tests so far, which were of another text, count for as many as those of neighbouring positions do."""
        for each in (self.overall, *self.positions):
            each.fade(self.alike)

    @property
    def tested(self) -> bool:
        """Whether it knows enough to count for more than a guess."""
        return sum(position.weight for position in self.positions) > FEW_TESTS

    def plain(self) -> dict[str, Any]:
        """The means and weights over all positions and of each one."""
        return {"overall": self.overall.plain(), "positions": [each.plain() for each in self.positions]}

    @staticmethod
    def of(plain: dict[str, Any]) -> AcceptanceCurve:
        """From plain data. Raises ValueError."""
        made = AcceptanceCurve()
        made.overall = Average.of(plain["overall"], FORGET_OVERALL, STORED_TESTS)
        made.positions = [Average.of(each, FORGET_POSITION, STORED_TESTS) for each in plain["positions"]]
        if not made.overall.weight or any(each.mean > 1 for each in (made.overall, *made.positions)):
            raise ValueError("no chances of acceptance")
        return made


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
