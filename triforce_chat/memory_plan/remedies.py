"""Finds changes of the settings that would make a run fit; each one is itself planned to check that it works."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

from triforce_chat.errors import TriforceError
from triforce_chat.memory_plan.batch import BatchPlan
from triforce_chat.memory_plan.plan import CONTEXT_STEP, MemoryPlan
from triforce_chat.settings.settings import SPECIFICATIONS

MOST_PAIRS = 3  # that are named
FILE = "file"  # no setting: the weights come from a GGUF file in 4 bits
GPUS = "tp"
ELSEWHERE = {FILE, GPUS}  # what takes another file or machine
PLACING = {"offload", "gpu_layers", "stack", "tree"}  # decide what may be in host memory
SPECS = {spec.name: spec for spec in SPECIFICATIONS}
Changes = Mapping[str, Any]  # new values, by setting


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, and the plans of sequences that are to run at once."""

    plan: MemoryPlan
    batches: tuple[BatchPlan, ...] = ()

    @property
    def fits(self) -> bool:
        return self.plan.fits and all(each.at_once for each in self.batches)

    @property
    def on_device(self) -> bool:
        """Whether it fits with nothing in host memory."""
        return self.fits and not self.host

    @property
    def device(self) -> int:
        """Bytes on each device; of sequences at once with one of them."""
        return max((each.common + each.each for each in self.batches), default=self.plan.device)

    @property
    def host(self) -> int:
        """Bytes in host memory, where the keys and values of sequences at once are not."""
        return self.plan.workload.streamed_weights if self.batches else self.plan.host

    @property
    def bytes(self) -> int:
        return self.device + self.host


class Run(Protocol):
    """What is to be planned."""

    @property
    def wanted(self) -> int:
        """The longest context that is asked for, in tokens."""
        ...

    @property
    def reach(self) -> int:
        """The longest context that is worth asking for, in tokens."""
        ...

    def planned(self) -> Outcome:
        """Raises TriforceError for settings that contradict each other."""
        ...

    def offers(self) -> Mapping[str, Sequence[Any]]:
        """The values of each setting that may take less, the mildest first; settings in the order of naming."""
        ...

    def changed(self, changes: Changes) -> Run:
        """The run with other settings. Raises TriforceError."""
        ...

    def with_context(self, context: int) -> Run:
        """The run with no context longer than so many tokens."""
        ...

    def option(self, context: int) -> str:
        """How ``with_context`` is typed."""
        ...


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that are enough, and what the run takes with them. Sizes in bytes."""

    flags: str  # as they are typed
    changes: Changes
    shortened: int | None  # tokens of the context, if it has to be another one
    device: int  # on each device
    host: int
    gpus: int
    context: int  # tokens, the most that fit


def find_remedies(run: Run, now: Outcome) -> list[Remedy]:
    """The smallest changes that make a run fit, or that let one keep everything on the device; those of one come first.

    Changes of two settings are named where none of one leaves the wanted context on the same machine.
    """
    return [] if now.on_device else Search(run, now).remedies()


def would_fit(found: Sequence[Remedy]) -> dict[str, Any]:
    """Remedies as plain values, for ``plan --json``."""
    alone = [each for each in found if not each.changes]
    narrow = next((each for each in found if each.changes.keys() == {"dtype"}), None)
    return {
        "context": next((each.context for each in alone if not each.host), None),
        "offloaded_context": next((each.context for each in alone if each.host), None),
        "dtype": narrow and narrow.changes["dtype"],
        "dtype_context": narrow and narrow.shortened,
        "tp": next((each.changes[GPUS] for each in found if each.changes.keys() == {GPUS}), None),
        "changes": [
            {"flags": each.flags, "device": each.device, "host": each.host, "context": each.context}
            for each in found
        ],
    }


class Search:
    """Tries changes of a run's settings."""

    def __init__(self, run: Run, now: Outcome) -> None:
        self.run, self.now = run, now
        self.goal: Callable[[Outcome], bool] = _on_device if now.fits or now.batches else _fits
        # By setting: each value with which the run takes less, or may be elsewhere, with what becomes of it.
        self.offers = {name: dict(self._outcomes(name, values)) for name, values in run.offers().items()}

    def remedies(self) -> list[Remedy]:
        """What ``find_remedies`` promises."""
        enough = {name: self._first(name) for name in self.offers}
        single = [self._remedy(changes) for changes in enough.values() if changes]
        here, elsewhere = ([each for each in single if _elsewhere(each) == far] for far in (False, True))
        shorter = list(self._shorter())
        if here:
            return [*here, *shorter, *elsewhere]
        others = [name for name, changes in enough.items() if not changes and self.offers[name]]
        pairs = [*sorted(self._pairs(others), key=_elsewhere), *self._shorter_pairs(others, shorter)]
        return [*shorter, *elsewhere, *pairs[:MOST_PAIRS]]

    def _outcomes(self, name: str, values: Sequence[Any]) -> Iterator[tuple[Any, Outcome]]:
        for value in values:
            outcome = self._tried({name: value})
            if outcome and (name in PLACING or outcome.bytes < self.now.bytes):
                yield value, outcome

    def _tried(self, changes: Changes, context: int | None = None) -> Outcome | None:
        """What becomes of the run with changes; None if it cannot have them."""
        try:
            changed = self.run.changed(changes)
            return (changed if context is None else changed.with_context(context)).planned()
        except TriforceError:
            return None

    def _works(self, changes: Changes, context: int | None = None) -> bool:
        outcome = self._tried(changes, context)
        return outcome is not None and self.goal(outcome)

    def _first(self, name: str) -> Changes:
        """The mildest change of a setting that is enough; empty if none is."""
        return next(({name: value} for value, tried in self.offers[name].items() if self.goal(tried)), {})

    def _strongest(self, name: str) -> Any:
        """The value with which the run takes least."""
        outcomes = self.offers[name]
        return min(outcomes, key=lambda value: outcomes[value].bytes)

    def _pairs(self, names: Sequence[str]) -> Iterator[Remedy]:
        """Two changes that are enough together, each as mild as it can be beside the other."""
        for pair in combinations(names, 2):
            changes = {name: self._strongest(name) for name in pair}
            if self._works(changes):
                for name in pair:
                    milder = ({**changes, name: value} for value in self.offers[name])
                    changes = next(each for each in milder if self._works(each))
                yield self._remedy(changes)

    def _shorter(self) -> Iterator[Remedy]:
        """The longest context alone: with everything on the device, and with more in host memory."""
        here = self._longest({}, self.run.wanted, _on_device)
        if here:
            yield self._remedy({}, here)
        most = self._longest({}, self.run.wanted, self.goal)
        if most > here:
            yield self._remedy({}, most)

    def _shorter_pairs(self, names: Sequence[str], alone: Sequence[Remedy]) -> list[Remedy]:
        """A change and a context that is longer than without it, the longest first."""
        least = max((each.context for each in alone), default=0)
        made = []
        for changes in ({name: self._strongest(name)} for name in names):
            longest = self._longest(changes, self.run.wanted, self.goal)
            if longest > least:
                made.append(self._remedy(changes, longest))
        return sorted(made, key=lambda each: -each.context)

    def _longest(self, changes: Changes, most: int, goal: Callable[[Outcome], bool]) -> int:
        """The longest context up to ``most`` tokens that is possible with changes; 0 if none is."""

        def too_long(context: int) -> bool:
            outcome = self._tried(changes, context)
            return outcome is None or not goal(outcome)

        steps = [*range(CONTEXT_STEP, most, CONTEXT_STEP), most]
        count = bisect_left(steps, True, key=too_long)
        return steps[count - 1] if count else 0

    def _remedy(self, changes: Changes, shortened: int | None = None) -> Remedy:
        """What a change is worth that is known to be enough."""
        outcome = self._tried(changes, shortened)
        assert outcome is not None
        most = max(self.run.wanted, self.run.reach)
        return Remedy(
            flags_of(changes, self.run.option(shortened) if shortened else ""),
            changes,
            shortened,
            outcome.device,
            outcome.host,
            outcome.plan.workload.gpus,
            shortened or max(self.run.wanted, self._longest(changes, most, self.goal)),
        )


def flags_of(changes: Changes, context: str = "") -> str:
    """Changes as they are typed; ``context``: the option for another context, or empty."""
    specs = [(SPECS[name], value) for name, value in changes.items() if name != FILE]
    typed = [f"--{spec.key} {value}" for spec, value in specs if value != spec.default]
    dropped = [f"--{spec.key}" for spec, value in specs if value == spec.default]
    added = " ".join(filter(None, [context, *typed]))
    options = [added, f"without {' and '.join(dropped)}" if dropped else ""]
    if FILE in changes:
        options = ["a 4-bit GGUF file of the model", f"with {added}" if added else "", options[1]]
    return " ".join(filter(None, options))


def _elsewhere(remedy: Remedy) -> bool:
    return not ELSEWHERE.isdisjoint(remedy.changes)


def _fits(outcome: Outcome) -> bool:
    return outcome.fits


def _on_device(outcome: Outcome) -> bool:
    return outcome.on_device
