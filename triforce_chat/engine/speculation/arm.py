"""A drafter as a planner sees it: what its drafts cost, and how many of their tokens are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.calibration import FORGET
from triforce_chat.engine.speculation.cost_model import (
    DISTURBED,
    FIRST,
    GUESS,
    AcceptanceCurve,
    Average,
    Guess,
    StepTimes,
)

TRIALS = (1, 2)  # tokens of the first trials; the very first may have to prepare its sizes
TRY_AGAIN = 16  # rounds after which a drafter that was not far off is tried again, doubled each time in vain
PREPARED = 3.0  # a draft this many times slower than the next one included preparations, such as captures
OUTLIER = 3.0  # a draft counts as at most this many times slower than usual
LEAST_SHARE = 0.01  # of a draft's seconds that its tokens take in any case
NOT_FAR_OFF = 0.8  # share of the best rate
# Acceptance of a drafter that was not tested yet, if all goes well: the good ones must not be missed. Of a level, which
# is the model that verifies it with a part of its cache or of its bits, nearly all may be accepted.
HOPE, LEVEL_HOPE = 0.85, 0.97
FAR_OFF = 4  # retry drafters below that this many times less often: the text may have changed


class Drafter(Protocol):
    """A source of drafts: a small model, or a level that verifies another one's drafts.

    ``name``: as events call it. ``device_side``: whether it can draft after a sequence whose length only the device
    knows.
    """

    name: str
    device_side: bool

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft about n tokens after ``seq``, perhaps none, with the distributions that they were drawn from."""
        ...

    def longest(self, length: int, n: int) -> int:
        """The most tokens that a draft of about n tokens after ``length`` may have room for."""
        ...

    def unprepared(self, length: int, n: int, sampler: Sampler) -> list[Preparation]:
        """What is to be captured before about n tokens can be drafted after ``length``; nothing on a CPU."""
        ...

    def preparations(self, length: int, sampler: Sampler) -> Iterator[Preparation]:
        """All that is worth capturing before an answer after ``length`` tokens, the most useful first."""
        ...

    def judged(self, proposed: int, accepted: int) -> None:
        """Learn how many tokens of the last proposal the level above accepted."""
        ...

    def rollback(self, length: int) -> None:
        """Discard all but the first ``length`` tokens of the history."""
        ...


@dataclass(slots=True, eq=False)
class Arm:
    """A drafter with its running cost and acceptance."""

    drafter: Drafter
    worth_above: int = 0  # shortest history, in tokens, for which it can pay
    # What a drafted token is expected to cost after so many, as a share of plain decoding's; 0: not known
    forecast: Callable[[int], float] = lambda _: 0.0
    hope: float = HOPE  # acceptance that is hoped for before the first tests
    # Expected seconds per token by the drafter's own rounds, where it is a level, which makes rounds; 0: not known
    pace: Callable[[], float] = lambda: 0.0
    spent: Callable[[], float] = lambda: 0.0  # seconds of all of these rounds so far
    cost: Average = field(default_factory=lambda: Average(FORGET))  # seconds per drafted token
    # Seconds that a draft takes beside its tokens: a launch, catching up, building a cache
    overhead: Average = field(default_factory=lambda: Average(FORGET))
    excess: Average = field(default_factory=lambda: Average(FORGET))  # tokens drafted beyond those requested
    guess: Guess = GUESS
    surplus: int = 0  # tokens that its drafts may have beyond those asked for: a level makes whole rounds
    # What a further token of a draft takes, as a share of what the first one does, before that is known
    further: float = 1.0
    curve: AcceptanceCurve = field(init=False)
    lengths: StepTimes = field(init=False)  # seconds of its drafts by their tokens
    counted: float = 0.0  # seconds of its drafter's rounds up to the latest draft
    trials: int = 0  # number of first trials so far
    again: bool = False  # whether the latest trial came after the first ones
    asked: bool = False  # whether it was ever asked to draft
    measured_at: int = 0  # round of the last measurement
    patience: int = TRY_AGAIN  # rounds until the next trial
    warmups: int = 1  # drafts to come that may include preparations, such as captures

    def __post_init__(self) -> None:
        self.curve, self.lengths = AcceptanceCurve(self.guess), StepTimes(self.further)

    @property
    def measured(self) -> bool:
        return self.cost.weight > 0

    def rounds_took(self) -> float:
        """Seconds that the drafter's own rounds have taken since this was last asked."""
        before, self.counted = self.counted, self.spent()
        return self.counted - before

    def learn_cost(self, seconds: float, asked: int, made: int, now: int, rounds: float = 0.0) -> None:
        """Learn what drafting ``made`` tokens cost in round ``now``; ``asked`` were requested.

        ``rounds``: of these seconds, those of the drafter's own rounds, where it makes rounds.
        """
        usual, weight = self.cost.mean, FIRST if self.warmups else 1.0
        each = self.pace() or self._each(seconds, made)
        beside = max(0.0, seconds - (rounds or each * made))
        beside = min(beside, OUTLIER * self.seconds(made) or beside)
        if each < usual / (PREPARED if self.cost.weight > 1 else DISTURBED):
            self.cost.clear()
            if not rounds:  # both are parts of the same seconds
                self.overhead.clear()
        elif usual:
            each = min(each, OUTLIER * usual)
        self.cost.add(each, weight)
        self.overhead.add(beside, weight)
        self.warmups = max(0, self.warmups - 1)
        self.excess.add(made - asked)
        self.measured_at = now

    def _each(self, seconds: float, made: int) -> float:
        """Of the seconds of a draft, those of each token, as drafts of other lengths tell them from the rest."""
        self.lengths.add(made, seconds)
        share = self.lengths.line[1] / self.lengths(made)
        return seconds * min(1 / made, max(share, LEAST_SHARE / made))

    def tried(self) -> None:
        """Count a trial that is being run."""
        self.again = self.trials >= len(TRIALS)
        if self.again:
            self.patience *= 2
            self.cost.fade()
            self.overhead.fade()
        else:
            self.trials += 1

    def use_costs(self, cost: Average, excess: Average, overhead: Average, now: int) -> None:
        """Go on from costs that were measured before, if they were; then no first trial is due."""
        if not cost.weight and self.measured:
            return
        self.cost, self.excess, self.overhead, self.warmups = cost, excess, overhead, 1
        if whole := self.seconds(1):
            self.lengths = StepTimes(cost.mean / whole)
        if self.measured:
            self.trials, self.measured_at = len(TRIALS), now

    def pair_with(self, other: Arm) -> None:
        """Learn acceptance together with the arm of another level that drafts by the same model.

        What tests show of either's drafts, they show of both.
        """
        other.curve = self.curve

    def restart(self) -> None:
        """Forget everything that was learnt."""
        fresh = Arm(self.drafter, guess=self.guess, further=self.further)
        self.cost, self.excess, self.overhead = fresh.cost, fresh.excess, fresh.overhead
        self.lengths = fresh.lengths
        self.curve.use(fresh.curve)
        self.warmups = 1
        self.trials, self.again, self.asked, self.measured_at, self.patience = 0, False, False, 0, TRY_AGAIN

    @property
    def line(self) -> tuple[float, float]:
        """Seconds that a draft is expected to take, and each of its tokens, as far as it is known."""
        return max(0.0, self.overhead.mean), self.cost.mean

    def seconds(self, made: int) -> float:
        """What a draft of that many tokens is expected to take, as far as it is known."""
        whole, each = self.line
        return whole + each * made if made else 0.0

    def makes(self, n: int) -> int:
        """Number of tokens to expect when n are requested: what long drafts fell short of, short ones need not."""
        return n + max(0, round(self.excess.mean))
