"""How far drafts survive: the chance that the first i tokens of one are all accepted."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from triforce_chat.engine.speculation.step_times import Average

GUESS = 0.8  # acceptance until verdicts come
HUNCH = 3.0  # tests that the guess counts for
DOUBT = 6.0  # and at each position what was learnt in front of it
FORGET = 0.975  # weight of the past at each test of a position
FORGET_ALL = 0.995  # the same over all positions


class Survival:
    """Learnt by position, because a drafter that runs ahead errs more; untested tokens teach nothing."""

    def __init__(self) -> None:
        self.overall = Average(FORGET_ALL, HUNCH, HUNCH * GUESS)
        self.places: list[Average] = []

    def learn(self, proposed: int, accepted: int) -> None:
        tested = min(accepted + 1, proposed)
        self.places += [Average(FORGET) for _ in range(tested - len(self.places))]
        for i, place in enumerate(self.places[:tested]):
            place.add(i < accepted)
            self.overall.add(i < accepted)

    def chances(self, n: int) -> list[float]:
        """Of the first 1 .. n tokens: [n], decreasing."""
        passing, rate = [], self.overall.mean
        for i in range(n):
            if i < len(self.places):
                place = self.places[i]
                rate = (place.total + DOUBT * rate) / (place.weight + DOUBT)
            passing.append(rate)
        return list(accumulate(passing, mul))
