"""The named stacks, each composed of the same few classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.selection import MeanKey, MinMaxKey, Policy, Recent
from triforce_chat.engine.cache.storage import KVBuffer, KVCache, Shape
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import captures_on
from triforce_chat.engine.events import Event
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.investment import Investment
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.planner import Planner, sizes
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stack_specs import MAX_GAMMA
from triforce_chat.errors import UsageError

POLICIES: dict[str, type[Policy]] = {"mean": MeanKey, "minmax": MinMaxKey}


MOST_GAMMA = 16  # tokens that a planner drafts at most per verification
STREAMED_GAMMA = 32  # tokens, if every verification streams keys and values from host memory
STREAMED_STRIDE = 16  # new tokens between builds of the retrieval cache there, as builds cost next to nothing
MOST_DRAFT_GAMMA = 8  # tokens that a planner drafts at most per step of the middle level
PARTS = (1, 2, 4)  # tokens of a draft model's graphs where drafts of many lengths are planned


@dataclass(frozen=True, slots=True)
class StackOptions:
    """Options of a stack; sizes in tokens."""

    name: str = "auto"
    gamma: int | None = None  # drafted per verification by the target; None: planned
    draft_gamma: int | None = None  # drafted per step of the middle level; None: planned
    policy: str = "mean"
    budget: Budget = field(default_factory=Budget)
    middle: str = "auto"  # weights of the middle level: "full", "int8", or "auto" for 8 bits if there is room
    repeatable: bool = False  # plan by measured times that never change, not by the clock


class Builder:
    """Builds a stack over a target's full cache.

    Afterwards ``planners`` holds the planner of each level by its name, ``caches`` those below the full cache, and
    ``options`` has no weights left to choose.
    """

    def __init__(
        self,
        target: Runner,
        full: FullCache,
        draft: Runner | None,
        options: StackOptions,
        emit: Callable[[Event], None],
        group: RankGroup = SINGLE,
        buffer: Callable[[Shape, int], KVBuffer] = KVBuffer,
    ) -> None:
        self.target, self.full, self.draft, self.options, self.emit = target, full, draft, options, emit
        self.group, self.buffer = group, buffer
        self.planners: dict[str, Planner] = {}
        self.caches: list[KVCache] = []
        self.investment = Investment(captures_on(target.device), unlimited=options.repeatable)

    def build(self) -> Speculative:
        self.check()
        return self.makers()[self.options.name]()

    def check(self) -> None:
        """Raise UsageError if the stack cannot be built; every rank finds that out by itself."""
        name, makers = self.options.name, self.makers()
        for what, drafted in (("gamma", self.options.gamma), ("draft-gamma", self.options.draft_gamma)):
            if drafted is not None and not 1 <= drafted <= MAX_GAMMA:
                raise UsageError(f"{what} must be from 1 to {MAX_GAMMA} tokens, not {drafted}")
        if name not in makers:
            raise UsageError(f"no stack '{name}'; choose one of {', '.join(makers)}")
        if name == "naive" and self.draft is None:
            raise UsageError("the stack 'naive' needs a draft model: pass --draft")

    def makers(self) -> dict[str, Callable[[], Speculative]]:
        return {
            "auto": self.auto,
            "triforce": lambda: self.over(self.middle(self.retrieval())),
            "retrieval": lambda: self.over(self.middle(self.retrieval(), drafts=False)),
            "streaming": lambda: self.over(self.middle(self.streaming())),
            "naive": self.naive,
            "lookup": lambda: self.top(self.planner(lookup=NgramLookup())),
            "autoregressive": lambda: self.top(Planner(group=self.group, investment=self.investment)),
        }

    def auto(self) -> Speculative:
        """A target whose planner chooses among all drafters by what it measures while decoding."""
        # In shorter histories the middle level would read nearly as much as the target itself.
        hierarchy = Arm(self.middle(self.retrieval()), 2 * self.options.budget.tokens)
        arms = [hierarchy, *self.drafts(self.parts)]
        lookup, most = NgramLookup(), self.most
        return self.top(Planner(arms, lookup, most=most, group=self.group, investment=self.investment))

    def naive(self) -> Speculative:
        return self.top(self.planner(self.drafts(self.parts), plain=False))

    @property
    def parts(self) -> Sequence[int]:
        """Lengths of the draft model's graphs where it drafts for the top level."""
        return PARTS if self.options.gamma is None else ()

    def over(self, drafter: Speculative) -> Speculative:
        """The target over a drafter that always drafts."""
        return self.top(self.planner([Arm(drafter)], plain=False))

    def planner(
        self, arms: Sequence[Arm] = (), lookup: NgramLookup | None = None, plain: bool = True
    ) -> Planner:
        gamma = self.options.gamma
        return Planner(arms, lookup, gamma, self.most, plain, self.group, self.investment)

    def top(self, planner: Planner) -> Speculative:
        self.planners["target"] = planner
        return Speculative(
            "target", self.target, self.full, planner, self.emit, self.group, self.overlaps(planner)
        )

    def overlaps(self, planner: Planner) -> bool:
        """Whether plain decoding may launch the next forward before the host reads the last token.

        On a GPU, where a surplus forward is cheap to discard. Ranks would have to agree on a plan for
        every token, and lookup by fixed numbers goes by the last token, which the host does not know yet.
        """
        queue = self.target.device.type == "cuda" and self.full.write_slot() is not None
        return queue and (not planner.most or (planner.decides and self.group.size == 1))

    @property
    def most(self) -> int:
        """Largest number of tokens per verification; longer drafts pay if verifications are expensive."""
        return self.options.gamma or (STREAMED_GAMMA if self.streamed else MOST_GAMMA)

    @property
    def streamed(self) -> bool:
        """Whether every verification streams keys and values from host memory."""
        return self.full.storage.streams

    def middle(self, cache: RetrievalCache, drafts: bool = True) -> Speculative:
        """The target over a small cache."""
        gamma = self.options.draft_gamma
        lengths = sizes(1, MOST_DRAFT_GAMMA) if gamma is None else []
        arms = self.drafts(lengths) if drafts else []
        looks_up = drafts and (gamma is None or not arms)
        lookup = NgramLookup() if looks_up else None
        planner = Planner(arms, lookup, gamma, MOST_DRAFT_GAMMA, group=self.group, investment=self.investment)
        self.planners["retrieval"] = planner
        self.caches.append(cache)
        return Speculative("retrieval", self.proposer(), cache, planner, self.emit, self.group)

    def drafts(self, lengths: Sequence[int] = ()) -> list[Arm]:
        """The draft model, if there is one; drafts of these lengths are captured before their first use."""
        if self.draft is None:
            return []
        cache = StreamingCache(self.draft.shape, buffer=self.buffer)
        self.caches.append(cache)
        return [Arm(DraftModel(self.draft, cache, lengths, self.group))]

    def proposer(self) -> Runner:
        """The target's runner for the middle level."""
        wanted = self.options.middle
        int8 = wanted == "int8" or (wanted == "auto" and self.target.room_for_int8)
        self.options = replace(self.options, middle="int8" if int8 else "full")
        return self.target.quantized if int8 else self.target

    def retrieval(self) -> RetrievalCache:
        return self.small(POLICIES[self.options.policy]())

    def streaming(self) -> RetrievalCache:
        return self.small(Recent())

    def small(self, policy: Policy) -> RetrievalCache:
        return RetrievalCache(self.full, self.budget, policy, self.emit, self.buffer)

    @property
    def budget(self) -> Budget:
        own = self.options.budget
        planned = self.options.gamma is None  # otherwise nothing may depend on how much memory is free
        return replace(own, stride=min(own.stride, STREAMED_STRIDE)) if self.streamed and planned else own
