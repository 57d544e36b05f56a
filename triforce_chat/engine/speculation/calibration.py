"""What planners have measured on this machine, as data that can outlive a process.

Times depend on the length of the history, so they are kept by bucket: powers of two of tokens. Acceptance depends on
models and texts and is kept once. ``measured`` times come from a calibration and never change once it is complete, so
that plans which are based on them can be repeated; ``learnt`` ones are refined by every answer. No file is read here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from triforce_chat.engine.speculation.cost_model import (
    ROW_PRIOR,
    STORED_TIMES,
    AcceptanceCurve,
    Average,
    FixedAverage,
    FixedStepTimes,
    StepTimes,
)
from triforce_chat.engine.speculation.lookup import ORDERS
from triforce_chat.engine.speculation.tree_rates import RankAcceptance

FORGET = 0.9  # weight of the past in costs and gaps
SMALLEST_BUCKET = 256  # tokens; in shorter histories steps hardly differ
DIGEST_DIGITS = 8
NEGATIVE = -64.0  # tokens; drafts may be shorter than requested by as many

Made = TypeVar("Made")
DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


def bucket_of(length: int) -> int:
    """The bucket of a history of that many tokens: the largest power of two that is no longer."""
    return max(SMALLEST_BUCKET, 1 << (max(length, 1).bit_length() - 1))


@dataclass(frozen=True, slots=True)
class TreeTimes:
    """The costs of rounds that draft trees, in seconds: their verifications, and drafting the tokens of one depth."""

    steps: StepTimes
    depth: Average

    @staticmethod
    def unknown(row: float = ROW_PRIOR) -> TreeTimes:
        """Before anything was measured; ``row``: see ``StepTimes``."""
        return TreeTimes(StepTimes(row), Average(FORGET))

    def plain(self) -> dict[str, Any]:
        return {"steps": self.steps.plain(), "level": self.depth.plain()}

    @staticmethod
    def of(plain: dict[str, Any]) -> TreeTimes:
        """From plain data. Raises one of ``DAMAGED``."""
        return TreeTimes(StepTimes.of(plain["steps"]), Average.of(plain["level"], FORGET, STORED_TIMES))


@dataclass(frozen=True, slots=True)
class LevelTimes:
    """The costs of one level's rounds, in seconds unless named otherwise."""

    steps: StepTimes
    gap: Average  # from one round to the next
    undrafted: Average  # per token decoded without drafts, with overlapping forwards
    costs: tuple[Average, ...] = ()  # per token drafted by each arm
    excess: tuple[Average, ...] = ()  # tokens drafted by each arm beyond those requested
    overheads: tuple[Average, ...] = ()  # of each draft by each arm, beside its tokens' costs
    trees: TreeTimes | None = None  # of a level for which trees are drafted

    @staticmethod
    def unknown(arms: int) -> LevelTimes:
        """The times of a level with so many arms that was never measured."""
        costs, excess, overheads = (tuple(Average(FORGET) for _ in range(arms)) for _ in range(3))
        return LevelTimes(StepTimes(), Average(FORGET), Average(FORGET), costs, excess, overheads)

    @property
    def known(self) -> bool:
        return self.steps.known or self.undrafted.weight > 0

    def plain(self) -> dict[str, Any]:
        return {
            "steps": self.steps.plain(),
            "gap": self.gap.plain(),
            "undrafted": self.undrafted.plain(),
            "costs": [each.plain() for each in self.costs],
            "excess": [each.plain() for each in self.excess],
            "overheads": [each.plain() for each in self.overheads],
            **({"trees": self.trees.plain()} if self.trees else {}),
        }

    @staticmethod
    def of(plain: dict[str, Any]) -> LevelTimes:
        """From plain data. Raises one of ``DAMAGED``."""
        return _times(plain, StepTimes, Average)

    def copy(self) -> LevelTimes:
        """Times that a planner may go on refining."""
        return _times(self.plain(), StepTimes, Average)

    def fixed(self) -> LevelTimes:
        """Times that do not follow the clock; the excess, which is no time, is still learnt."""
        return _times(self.plain(), FixedStepTimes, FixedAverage)


def _times(plain: dict[str, Any], steps: type[StepTimes], average: type[Average]) -> LevelTimes:
    def seconds(each: Sequence[float]) -> Average:
        return average.of(each, FORGET, STORED_TIMES)

    def overhead(each: Sequence[float]) -> Average:
        return average.of(each, FORGET, STORED_TIMES, -math.inf)

    return LevelTimes(
        steps.of(plain["steps"]),
        seconds(plain["gap"]),
        seconds(plain["undrafted"]),
        tuple(map(seconds, plain["costs"])),
        tuple(Average.of(each, FORGET, STORED_TIMES, NEGATIVE) for each in plain["excess"]),
        tuple(map(overhead, plain.get("overheads") or len(plain["costs"]) * [[0.0, 0.0]])),
        TreeTimes.of(plain["trees"]) if "trees" in plain else None,
    )


@dataclass(frozen=True, slots=True)
class LevelAcceptance:
    """How often one level accepted what was drafted for it."""

    blend: AcceptanceCurve  # of rounds in which either the arm or lookup drafts
    curves: tuple[AcceptanceCurve, ...]  # of each arm
    record: tuple[float, float]  # looked-up tokens: expected to be accepted, and accepted
    rates: tuple[float, ...] = ()  # of lookup, by the length of a match; none without lookup
    ranks: RankAcceptance | None = None  # of trees; None where none are drafted

    def plain(self) -> dict[str, Any]:
        return {
            "blend": self.blend.plain(),
            "curves": [each.plain() for each in self.curves],
            "record": list(self.record),
            "rates": list(self.rates),
            **({"ranks": self.ranks.plain()} if self.ranks else {}),
        }

    @staticmethod
    def of(plain: dict[str, Any]) -> LevelAcceptance:
        """From plain data. Raises one of ``DAMAGED``."""
        expected, accepted = map(float, plain["record"])
        rates = tuple(map(float, plain["rates"]))
        if not (0 < expected < 1e9 and 0 <= accepted < 1e9 and all(0 <= rate <= 1 for rate in rates)):
            raise ValueError("no record of lookup")
        if rates and len(rates) != ORDERS + 1:
            raise ValueError("no rates by length of match")
        curves = tuple(map(AcceptanceCurve.of, plain["curves"]))
        ranks = RankAcceptance.of(plain["ranks"]) if "ranks" in plain else None
        return LevelAcceptance(AcceptanceCurve.of(plain["blend"]), curves, (expected, accepted), rates, ranks)

    def copy(self) -> LevelAcceptance:
        """Acceptance that a planner may go on refining."""
        return LevelAcceptance.of(self.plain())


Times = Mapping[str, LevelTimes]  # by the level's name
Acceptance = Mapping[str, LevelAcceptance]  # by the level's name


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one calibration; it never changes unless time ran out: then a later start goes on with it."""

    times: Times
    acceptance: Acceptance
    left: Mapping[str, int] = field(default_factory=dict)  # rounds not yet run, by the level's name

    @property
    def complete(self) -> bool:
        return not any(self.left.values())

    @property
    def digest(self) -> str:
        """A short hash of the figures, the same for those that were just measured and as they are read later."""
        text = json.dumps(self.plain(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]

    def plain(self) -> dict[str, Any]:
        left = {"left": dict(self.left)} if self.left else {}
        return {"times": _plain(self.times), "acceptance": _plain(self.acceptance), **left}

    def further(self, other: Measured | None) -> Measured:
        """The one of the two that is nearer to completion; this one if both are equally near."""
        nearer = other is not None and sum(other.left.values()) < sum(self.left.values())
        return other if other is not None and nearer else self


@dataclass(slots=True)
class Calibration:
    """All figures of one stack on one machine; the keys are buckets in tokens."""

    measured: dict[int, Measured] = field(default_factory=dict)
    learnt: dict[int, Times] = field(default_factory=dict)
    acceptance: Acceptance = field(default_factory=dict)  # as last learnt

    def near(self, bucket: int) -> Times:
        """The times of that bucket, or of one a factor of two away; none if there is neither."""
        for each in (bucket, bucket // 2, 2 * bucket):
            if each in self.learnt:
                return self.learnt[each]
            if each in self.measured:
                return self.measured[each].times
        return {}

    @property
    def usual(self) -> Acceptance:
        """The acceptance to begin with: as last learnt, else as measured at the longest history."""
        if self.acceptance or not self.measured:
            return self.acceptance
        return self.measured[max(self.measured)].acceptance

    def absorb(self, news: Calibration) -> None:
        """Take what is new; what was measured completely before stays."""
        known = {bucket: each.further(news.measured.get(bucket)) for bucket, each in self.measured.items()}
        self.measured = {**news.measured, **known}
        self.learnt |= news.learnt
        self.acceptance = news.acceptance or self.acceptance

    def plain(self) -> dict[str, Any]:
        """This calibration as values that JSON can hold."""
        return {
            "measured": {str(bucket): each.plain() for bucket, each in sorted(self.measured.items())},
            "learnt": {str(bucket): _plain(times) for bucket, times in sorted(self.learnt.items())},
            "acceptance": _plain(self.acceptance),
        }

    @staticmethod
    def of(plain: Any) -> Calibration:
        """A calibration from plain data; damaged or unknown entries are left out."""
        made = Calibration()
        with suppress(*DAMAGED):
            made.measured = _buckets(plain["measured"], _measured)
        with suppress(*DAMAGED):
            made.learnt = _buckets(plain["learnt"], lambda levels: _levels(levels, LevelTimes.of))
        with suppress(*DAMAGED):
            made.acceptance = _levels(plain["acceptance"], LevelAcceptance.of)
        return made


def _plain(levels: Times | Acceptance) -> dict[str, Any]:
    return {name: each.plain() for name, each in levels.items()}


def _measured(plain: dict[str, Any]) -> Measured:
    times, acceptance = plain["times"], plain["acceptance"]
    left = {name: max(0, int(rounds)) for name, rounds in plain.get("left", {}).items()}
    return Measured(_levels(times, LevelTimes.of), _levels(acceptance, LevelAcceptance.of), left)


def _levels(plain: dict[str, Any], of: Callable[[dict[str, Any]], Made]) -> dict[str, Made]:
    return {name: of(each) for name, each in plain.items()}


def _buckets(plain: dict[str, Any], of: Callable[[dict[str, Any]], Made]) -> dict[int, Made]:
    """The entries that can be read."""
    made: dict[int, Made] = {}
    for bucket, each in plain.items():
        with suppress(*DAMAGED):
            made[int(bucket)] = of(each)
    return made
