"""The named stacks: each is one line of composition over the same few classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.selection import MeanKey, MinMaxKey, Policy, Recent
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.events import Event
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.speculation.async_decoder import Adaptive, Ahead
from triforce_chat.engine.speculation.level import Autoregressive, Level, Silent, Speculative, Top
from triforce_chat.engine.speculation.lookup import NgramLookup, NoLookup
from triforce_chat.engine.speculation.planner import Arm, Planner
from triforce_chat.engine.speculation.relay import Relay
from triforce_chat.engine.speculation.step_times import StepTimes, clock_of
from triforce_chat.errors import UsageError

POLICIES: dict[str, type[Policy]] = {"mean": MeanKey, "minmax": MinMaxKey}


MOST_GAMMA = 16  # what a planner may choose from
STREAMED_GAMMA = 32  # the same where every verification streams keys and values from host memory
STREAMED_STRIDE = 16  # new tokens there between two builds of the retrieval cache, which cost next to nothing
MOST_DRAFT_GAMMA = 8  # the same below the middle level


@dataclass(frozen=True, slots=True)
class StackOptions:
    """How a stack is built; sizes in tokens."""

    name: str = "auto"
    gamma: int | None = None  # asked of the level below the target, per verification; None: planned
    draft_gamma: int | None = None  # asked of the drafter, per step of the middle level; None: planned
    policy: str = "mean"
    budget: Budget = field(default_factory=Budget)
    middle: str = "auto"  # the middle level's weights: "full", "int8", or 8 bits where there is room


class Builder:
    """Puts levels on a target's full cache; every method named like a stack builds its top level."""

    def __init__(
        self,
        target: Runner,
        full: FullCache,
        draft: Runner | None,
        options: StackOptions,
        emit: Callable[[Event], None],
        group: RankGroup = SINGLE,
    ) -> None:
        self.target, self.full, self.draft, self.options, self.emit = target, full, draft, options, emit
        self.group, self.clock = group, clock_of(target.device)

    def build(self) -> Top:
        self.check()
        return self.makers()[self.options.name]()

    def check(self) -> None:
        """Raise UsageError unless it can be built; which every rank finds out by itself."""
        name, makers = self.options.name, self.makers()
        if name not in makers:
            raise UsageError(f"no stack '{name}'; choose one of {', '.join(makers)}")
        if name == "naive" and self.draft is None:
            raise UsageError("the stack 'naive' needs a draft model: pass --draft")

    def makers(self) -> dict[str, Callable[[], Top]]:
        return {
            "auto": self.auto,
            "triforce": lambda: self.top(self.middle(self.retrieval())),
            "retrieval": lambda: self.top(self.middle(self.retrieval(), drafts=False)),
            "streaming": lambda: self.top(self.middle(self.streaming())),
            "naive": self.naive,
            "lookup": self.looked_up,
            "autoregressive": self.plain,
        }

    def auto(self) -> Top:
        # Below this length the middle level would read nearly as much as the target itself.
        hierarchy = Arm(self.middle(self.retrieval()), 2 * self.options.budget.tokens)
        return self.adaptive(self.planned([hierarchy, *self.drafts()]))

    def adaptive(self, planner: Planner) -> Top:
        """What the planner finds best, plain decoding included."""
        ahead, fast = self.ahead(), self.over(planner)
        # Ranks would have to agree on a plan for every token, which is what running ahead does without.
        return Adaptive(ahead, fast, planner) if ahead and self.group.size == 1 else fast

    def looked_up(self) -> Top:
        return self.adaptive(self.planned([])) if self.options.gamma is None else self.over(self.lookup())

    def naive(self) -> Speculative:
        assert self.draft is not None
        return self.top(self.drafter(self.draft))

    def plain(self) -> Top:
        """No drafts."""
        return self.ahead() or self.over(Silent(self.target))

    def ahead(self) -> Ahead | None:
        """No drafts, ahead of the host: where the device works by itself, and a forward is cheap to take back."""
        if self.target.device.type == "cuda" and isinstance(self.full.storage, KVBuffer):
            return Ahead("target", self.target, self.full, self.emit, self.group)
        return None

    def top(self, drafter: Level) -> Speculative:
        """The target over a drafter that always drafts."""
        if self.options.gamma is not None:
            return self.over(drafter)
        return self.over(
            Planner(StepTimes(), NoLookup(self.target.vocabulary), [Arm(drafter)], self.group, self.clock, 1)
        )

    def over(self, drafter: Level) -> Speculative:
        return Speculative("target", self.target, self.full, drafter, self.most, self.emit, self.group)

    @property
    def most(self) -> int:
        """Tokens to ask for at most per verification; longer drafts pay where a verification is dear."""
        return self.options.gamma or (STREAMED_GAMMA if self.streamed else MOST_GAMMA)

    @property
    def streamed(self) -> bool:
        """Whether every verification fetches keys and values from host memory."""
        return isinstance(self.full.storage, OffloadedKV)

    def middle(self, cache: RetrievalCache, drafts: bool = True) -> Level:
        """The target over a small cache: proposals that the host need not hear of, where that is possible."""
        name, model, gamma = "retrieval", self.proposer(), self.options.draft_gamma or MOST_DRAFT_GAMMA
        if not model.sends or (self.draft and not self.draft.sends):
            below = self.below() if drafts else Silent(self.target)
            return Speculative(name, model, cache, below, gamma, self.emit, self.group)
        planned = self.options.draft_gamma is None
        draft = (self.draft, StreamingCache(self.draft.shape)) if self.draft and drafts else None
        lookup = drafts and (planned or draft is None)
        common = self.emit, self.clock, self.group
        return Relay(name, model, cache, draft, gamma, *common, lookup=lookup, planned=planned)

    def below(self) -> Level:
        """What drafts for the middle level: whatever pays, or as many tokens as were asked for."""
        if self.options.draft_gamma is None:
            return self.planned(self.drafts())
        return self.drafter(self.draft) if self.draft else self.lookup()

    def planned(self, arms: Sequence[Arm]) -> Planner:
        return Planner(StepTimes(), self.lookup(), arms, self.group, self.clock)

    def drafts(self) -> list[Arm]:
        return [Arm(self.drafter(self.draft))] if self.draft else []

    def drafter(self, draft: Runner) -> Autoregressive:
        return Autoregressive(draft, StreamingCache(draft.shape), self.group)

    def proposer(self) -> Runner:
        """The target as the middle level runs it."""
        wanted = self.options.middle
        int8 = wanted == "int8" or (wanted == "auto" and self.target.room_for_int8)
        return self.target.quantized if int8 else self.target

    def retrieval(self) -> RetrievalCache:
        return RetrievalCache(self.full, self.budget, POLICIES[self.options.policy](), self.emit)

    def streaming(self) -> RetrievalCache:
        return RetrievalCache(self.full, self.budget, Recent(), self.emit)

    @property
    def budget(self) -> Budget:
        own = self.options.budget
        planned = self.options.gamma is None  # else nothing may depend on where memory happens to be free
        return replace(own, stride=min(own.stride, STREAMED_STRIDE)) if self.streamed and planned else own

    def lookup(self) -> NgramLookup:
        return NgramLookup(self.target.vocabulary)
