"""Limits what a planner's trials of drafters may cost to a part of what there is to win."""

from __future__ import annotations

HOPE = 0.85  # acceptance of a drafter that was not tested yet, if all goes well: the good ones must not be missed
# A first trial may lose this share of what its drafter would win in the expected rest of the answer if its drafts were
# accepted as hoped: many are not.
CHANCE = 0.25
# Further trials may together lose this share of the time of all tokens, those of the expected rest included.
EXPLORED = 0.005
# A further trial waits for all of an arm's patience if it is expected to lose the first share of a step; the less it
# loses the sooner it comes, but not before the second share of the patience.
DEAR, SOONEST = 0.08, 0.25
# A drafter that promises to be so many times as fast as plain decoding is tried at once, unless tokens are decoded
# ahead of the host: how fast that is must be known first.
ALREADY = 2.0
RISKED = 0.25  # share of a step that the tokens of a first trial may cost, if they are more than the fewest


class Exploration:
    """What a planner's trials have cost, by its own forecasts, which do not follow the clock where its times do not."""

    def __init__(self) -> None:
        self.passed = 0.0  # seconds of all rounds so far
        self.lost = 0.0  # seconds of further trials beyond what the best plan takes for as many tokens

    def worth(self, loss: float, won: float) -> bool:
        """Whether a first trial may lose so many seconds where ``won`` can be won in the rest of the answer."""
        return loss <= CHANCE * won

    def affords(self, loss: float, rest: float) -> bool:
        """Whether a further trial may lose so many seconds; ``rest``: those that the rest of the answer takes."""
        return self.lost + loss <= EXPLORED * (self.passed + rest)

    def passes(self, seconds: float, loss: float = 0.0) -> None:
        """Count a round of so many seconds, and what is lost by it if it is a further trial."""
        self.passed += seconds
        self.lost += max(0.0, loss)
