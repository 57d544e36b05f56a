"""The named stacks: each is one line of composition over the same few classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from triforce_chat.engine.accord import ALONE, Accord
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.retrieval import Budget, RetrievalCache
from triforce_chat.engine.cache.selection import MeanKey, MinMaxKey, Policy, Recent
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.events import Event
from triforce_chat.engine.level import Autoregressive, Level, Silent, Speculative
from triforce_chat.engine.lookup import NgramLookup
from triforce_chat.engine.planner import Arm, Planner
from triforce_chat.engine.runner import Runner
from triforce_chat.engine.timing import StepTimes
from triforce_chat.errors import UsageError

POLICIES: dict[str, type[Policy]] = {"mean": MeanKey, "minmax": MinMaxKey}


@dataclass(frozen=True, slots=True)
class StackOptions:
    """How a stack is built; sizes in tokens."""

    name: str = "auto"
    gamma: int = 8  # asked of the level below the target, per verification
    draft_gamma: int = 4  # asked of the drafter, per step of the middle level
    policy: str = "mean"
    middle: str = (
        "auto"  # weights of the middle level: "full", "int8", or 8 bits where there is room for copies
    )
    budget: Budget = field(default_factory=Budget)


class Builder:
    """Puts levels on a target's full cache; every method named like a stack builds its top level."""

    def __init__(
        self,
        target: Runner,
        full: FullCache,
        draft: Runner | None,
        options: StackOptions,
        emit: Callable[[Event], None],
        accord: Accord = ALONE,
    ) -> None:
        self.target, self.full, self.draft, self.options, self.emit = target, full, draft, options, emit
        self.accord = accord

    def build(self) -> Speculative:
        makers = self.makers()
        if self.options.name not in makers:
            raise UsageError(f"no stack '{self.options.name}'; choose one of {', '.join(makers)}")
        return makers[self.options.name]()

    def makers(self) -> dict[str, Callable[[], Speculative]]:
        return {
            "auto": self.auto,
            "triforce": lambda: self.top(self.middle(self.retrieval(), self.drafter())),
            "retrieval": lambda: self.top(self.middle(self.retrieval(), Silent(self.target))),
            "streaming": lambda: self.top(self.middle(self.streaming(), self.drafter())),
            "naive": self.naive,
            "lookup": lambda: self.top(self.lookup()),
            "autoregressive": lambda: self.top(Silent(self.target)),
        }

    def auto(self) -> Speculative:
        times = StepTimes()
        # Below this length the middle level would read nearly as much as the target itself.
        hierarchy = Arm(self.middle(self.retrieval(), self.drafter()), 2 * self.options.budget.tokens)
        arms = [hierarchy, *([Arm(self.drafter())] if self.draft else [])]
        return self.top(Planner(times, self.lookup(), arms, self.accord), times)

    def naive(self) -> Speculative:
        if self.draft is None:
            raise UsageError("the stack 'naive' needs a draft model: pass --draft")
        return self.top(self.drafter())

    def top(self, drafter: Level, times: StepTimes | None = None) -> Speculative:
        return Speculative(
            "target", self.target, self.full, drafter, self.options.gamma, self.emit, times, self.accord
        )

    def middle(self, cache: RetrievalCache, drafter: Level) -> Speculative:
        return Speculative(
            "retrieval",
            self.proposer(),
            cache,
            drafter,
            self.options.draft_gamma,
            self.emit,
            accord=self.accord,
        )

    def proposer(self) -> Runner:
        """The target as the middle level runs it."""
        wanted = self.options.middle
        narrow = wanted == "int8" or (wanted == "auto" and self.target.room_for_narrow)
        return self.target.narrow if narrow else self.target

    def retrieval(self) -> RetrievalCache:
        return RetrievalCache(self.full, self.options.budget, POLICIES[self.options.policy](), self.emit)

    def streaming(self) -> RetrievalCache:
        return RetrievalCache(self.full, self.options.budget, Recent(), self.emit)

    def drafter(self) -> Level:
        """The draft model where there is one, else lookup."""
        if self.draft is None:
            return self.lookup()
        return Autoregressive(self.draft, StreamingCache(self.draft.shape), self.accord)

    def lookup(self) -> NgramLookup:
        return NgramLookup(self.target.vocabulary)
