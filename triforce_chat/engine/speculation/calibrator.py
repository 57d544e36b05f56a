"""Gives the planners of a stack stored figures, stores what they learn, and measures what is missing."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol, cast

from triforce_chat.engine.cache.query_ring import QueryRing
from triforce_chat.engine.draft import TokenBuffer
from triforce_chat.engine.events import Calibrated
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm, Drafter
from triforce_chat.engine.speculation.calibration import (
    Acceptance,
    Calibration,
    LevelAcceptance,
    LevelTimes,
    Measured,
    Times,
    bucket_of,
)
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stacks import MOST_GAMMA, Builder, StackOptions
from triforce_chat.engine.speculation.survey import EVERYTHING
from triforce_chat.engine.speculation.tree_shapes import Rates

TOKENS = 64  # decoded by a calibration at most
SECONDS = 10.0  # after which a calibration ends; a later start goes on with what is still unknown


class CalibrationStore(Protocol):
    """Keeps calibrations beyond the life of an engine, one for each combination of a stack's options."""

    def key(self, options: StackOptions) -> str:
        """A short name of the entry that these options use; empty if nothing is kept."""
        ...

    def read(self, options: StackOptions) -> Calibration:
        """What is known; nothing if there is no valid entry."""
        ...

    def write(self, options: StackOptions, news: Calibration) -> Calibration:
        """Add to what is known, and return all of it; what was measured before stays.

        May silently keep nothing, and then returns nothing.
        """
        ...

    def ranks(self) -> Rates | None:
        """How often each child of a token of the draft's trees is accepted, as last kept; None: unknown."""
        ...

    def keep_ranks(self, rates: Rates) -> None:
        """Keep such rates for all stacks of these models; may silently keep nothing."""
        ...


class NoCalibrations:
    """Keeps nothing: every stack starts without figures."""

    def key(self, options: StackOptions) -> str:  # noqa: ARG002
        return ""

    def read(self, options: StackOptions) -> Calibration:  # noqa: ARG002
        return Calibration()

    def write(self, options: StackOptions, news: Calibration) -> Calibration:  # noqa: ARG002
        return Calibration()

    def ranks(self) -> Rates | None:
        return None

    def keep_ranks(self, rates: Rates) -> None:
        pass


class SharedCalibrations:
    """Gives what ``store`` knows and what several sequences that run together have learnt, which it does not keep.

    So a sequence that joins them begins with what an earlier one has learnt, and ``store`` has the times of one alone.
    What is measured for repeatable answers comes from ``store`` only.
    """

    def __init__(self, store: CalibrationStore) -> None:
        self.store = store
        self.learnt: dict[StackOptions, Calibration] = {}

    def key(self, options: StackOptions) -> str:
        return self.store.key(options)

    def read(self, options: StackOptions) -> Calibration:
        known = self.store.read(options)
        known.absorb(self.learnt.get(options, Calibration()))
        return known

    def write(self, options: StackOptions, news: Calibration) -> Calibration:
        """See ``CalibrationStore``; ``store``, which may be a file, is not asked after every answer."""
        known = self.learnt.setdefault(options, Calibration())
        known.absorb(Calibration({}, news.learnt, news.acceptance))
        return Calibration({}, dict(known.learnt), known.acceptance)

    def ranks(self) -> Rates | None:
        return self.store.ranks()

    def keep_ranks(self, rates: Rates) -> None:
        self.store.keep_ranks(rates)


class MemoryCalibrations:
    """Keeps calibrations as long as the process lives, for stacks that are replaced and come back."""

    def __init__(self) -> None:
        self.stored: dict[StackOptions, Calibration] = {}
        self.rates: Rates | None = None

    def key(self, options: StackOptions) -> str:  # noqa: ARG002
        return ""

    def read(self, options: StackOptions) -> Calibration:
        stored = self.stored.get(options)
        return Calibration() if stored is None else Calibration.of(stored.plain())

    def write(self, options: StackOptions, news: Calibration) -> Calibration:
        known = self.read(options)
        known.absorb(news)
        self.stored[options] = known
        return self.read(options)

    def ranks(self) -> Rates | None:
        return self.rates

    def keep_ranks(self, rates: Rates) -> None:
        self.rates = rates


class Calibrator:
    """Gives the planners of one stack what is known before an answer, and takes what they have learnt after it.

    A repeatable stack plans by measured times alone: before each answer its planners and the caches below the full
    cache begin anew, so that an answer depends on the prompt, the seed and those times, and on no earlier answer.
    """

    def __init__(self, builder: Builder, top: Speculative, store: CalibrationStore) -> None:
        """``builder`` has just built the stack that begins with ``top``."""
        self.top, self.caches, self.group, self.store = top, builder.caches, builder.group, store
        # One entry serves repeatable answers and others, of a sequence alone and beside others.
        self.options = replace(builder.options.beside(1), repeatable=False)
        self.repeatable = builder.options.repeatable
        self.levels = [*builder.planners.values()]
        self.planners = {name: each for name, each in builder.planners.items() if each.learns}
        self.known = store.read(self.options) if self.planners else Calibration()
        self._use_prior()
        self.tried: set[int] = set()  # buckets that this stack was measured in
        self.bucket: int | None = None  # of the times that the planners go by
        # Of what was measured and the latest repeatable answer was planned by; empty if nothing was.
        self.digest = ""
        self._use_acceptance(self.known.usual)

    @property
    def key(self) -> str:
        """A short name of this stack's entry in the store; empty if it has none."""
        return self.store.key(self.options) if self.planners else ""

    def lacks(self, length: int) -> bool:
        """Whether something is to be measured at a history of that many tokens; all ranks say what rank 0 says.

        What an earlier start measured in part is continued once: for the rest of its life a stack goes by the same
        times.
        """
        bucket = bucket_of(length)
        known = self.known.measured.get(bucket)
        decides = any(each.decides for each in self.planners.values())
        missing = decides and (known is None or not (known.complete or bucket in self.tried))
        return bool(self.group.broadcast_ints((int(missing),))[0])

    def begin(self, length: int) -> None:
        """Prepare the planners for an answer after a history of that many tokens."""
        bucket = bucket_of(length)
        if self.repeatable:
            self._restart()
            self._use_measured(bucket)
        elif bucket != self.bucket:
            self._use(self.known.near(bucket))
        if not self.repeatable:
            for planner in self.planners.values():
                planner.another_text()
        self.bucket = bucket

    def end(self) -> None:
        """Keep what the planners have learnt from an answer."""
        times = self._times()
        if not self.repeatable and self.bucket is not None and any(each.known for each in times.values()):
            self._keep(Calibration({}, {self.bucket: times}, self._acceptance()))

    def measure(
        self, history: TokenBuffer, sampler: Sampler, queries: QueryRing, most: int
    ) -> Generator[Calibrated, None, None]:
        """Decode up to ``most`` tokens that nobody sees and keep the times; the caller rolls the caches back.

        Where time ran out before, it goes on from there. Nothing is kept if the generator is closed early.
        """
        bucket, total, made, began = bucket_of(history.known), min(TOKENS, most), 0, time.perf_counter()
        self._survey(bucket)
        agenda, late = self.top.planner.agenda, False
        lacked = len(agenda)
        try:
            yield Calibrated(0, total)
            with queries.preserved(), closing(self.top.decode(history, sampler, total)) as rounds:
                while made < total and agenda and not late:
                    made += len(next(rounds))
                    # Every start comes further, though rounds that only build caches may take all its time.
                    late = self._late(began) and len(agenda) < lacked
                    yield Calibrated(min(made, total - 1), total)
            if self.top.planner.known_times.known:
                left = self._left() if late and agenda else {}
                measured = Measured(self._times(), self._acceptance(), left)
                self._keep(Calibration({bucket: measured}))
                self.tried.add(bucket)
        finally:
            self._restart()
            self._use_acceptance(self.known.usual)
            self.bucket = None
        yield Calibrated(total, total)

    def _survey(self, bucket: int) -> None:
        """Prescribe what is still to be measured, on all ranks what rank 0 lacks."""
        begun = self.known.measured.get(bucket)
        self._restart()
        if begun is not None:
            self._use(begun.times)
            self._use_acceptance(begun.acceptance)
        for name, planner in self.planners.items():
            left = begun.left.get(name, 0) if begun else EVERYTHING
            planner.survey(2 * bucket, self.group.broadcast_ints((left,))[0])

    def _left(self) -> dict[str, int]:
        """Rounds that are still prescribed, by the level's name."""
        return {name: len(planner.agenda) for name, planner in self.planners.items()}

    def _late(self, began: float) -> bool:
        """Whether the calibration takes too long; all ranks say what rank 0 says."""
        return bool(self.group.broadcast_ints((int(time.perf_counter() - began > SECONDS),))[0])

    def _restart(self) -> None:
        for cache in self.caches:
            cache.restart()
        for planner in self.levels:
            planner.restart()

    def _use_prior(self) -> None:
        """Let trees begin with what was measured of these models, where a level has learnt nothing yet."""
        trees = [each.trees for each in self.planners.values() if each.trees is not None]
        prior = self.store.ranks() if trees else None
        for each in trees:
            if prior is not None:
                each.begin_with(prior)

    def _use_measured(self, bucket: int) -> None:
        found = self.known.measured.get(bucket, Measured({}, {}))
        self.digest = found.digest if bucket in self.known.measured else ""
        for name, planner in self.planners.items():
            times = found.times.get(name)
            if times is None or not fits(times, planner):
                times = LevelTimes.unknown(len(planner.arms))
            planner.use_times(times.fixed())
        self._use_acceptance(found.acceptance)

    def _use(self, times: Times) -> None:
        for name, planner in self.planners.items():
            if name in times and times[name].known:
                planner.use_times(times[name].copy())

    def _use_acceptance(self, acceptance: Acceptance) -> None:
        for name, planner in self.planners.items():
            if name in acceptance:
                planner.use_acceptance(acceptance[name])

    def _times(self) -> dict[str, LevelTimes]:
        return {name: planner.known_times for name, planner in self.planners.items()}

    def _acceptance(self) -> dict[str, LevelAcceptance]:
        return {name: planner.known_acceptance for name, planner in self.planners.items()}

    def _keep(self, news: Calibration) -> None:
        first = self.store.write(
            self.options, news
        )  # if another process has measured meanwhile, its times stay
        first.absorb(self.known)
        first.absorb(news)
        self.known = first


def fits(times: LevelTimes, planner: Planner) -> bool:
    """Whether these are times of a level with as many arms."""
    return len(times.costs) == len(times.excess) == len(planner.arms)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a calibration says about contexts of one bucket."""

    context: int  # the bucket's smallest, in tokens
    measured: bool  # for repeatable answers; otherwise learnt from other answers
    plain_ms: float  # milliseconds per token without drafts
    best_ms: float  # expected milliseconds per token in the plan that promises most, lookup left out


def outlooks(calibration: Calibration) -> list[Outlook]:
    """One for each bucket, the shortest contexts first; learnt figures are preferred to measured ones."""
    made, nobody = [], cast("Drafter", None)  # of the drafters only the figures matter
    for bucket in sorted({*calibration.measured, *calibration.learnt}):
        measured = calibration.measured.get(bucket)
        times = calibration.near(bucket)
        acceptance = calibration.acceptance or (measured.acceptance if measured else {})
        top = times.get("target")
        if top is None or not top.known:
            continue
        planner = Planner([Arm(nobody) for _ in top.costs], most=MOST_GAMMA)
        planner.use_times(top.copy())
        if "target" in acceptance:
            planner.use_acceptance(acceptance["target"])
        plain, best = planner.outlook
        made.append(Outlook(bucket, measured is not None, 1000 * plain, 1000 * best))
    return made
