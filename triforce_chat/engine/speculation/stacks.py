"""The named stacks, each composed of the same few classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from triforce_chat.engine.cache.chunk_mass import weighable
from triforce_chat.engine.cache.eviction import SINKS, WINDOW
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.in_place import InPlaceCache
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.quantization import BITS
from triforce_chat.engine.cache.quantized_copy import QuantizedCopy, copy_bytes
from triforce_chat.engine.cache.renumbered import RenumberedCache
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.selection import AttentionMass, MeanKey, MinMaxKey, Policy, Recent
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, KVPool
from triforce_chat.engine.cache.streaming import HOP, LONG_HOP, StreamingCache
from triforce_chat.engine.cuda_graph import SIZES, TREE_SIZES, USUAL, captures_on, fitting
from triforce_chat.engine.events import Event
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.gathered import rows_each
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.speculation.arm import LEVEL_HOPE, Arm
from triforce_chat.engine.speculation.cost_model import (
    COMPUTED_ROW_PRIOR,
    GPU_FURTHER_PRIOR,
    GPU_ROW_PRIOR,
    LEVEL_GUESS,
    ROW_PRIOR,
    STREAMED_ROW_PRIOR,
)
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.forecast import Step, StepCost
from triforce_chat.engine.speculation.investment import Investment
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.plan import Proposals, sizes
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.stack_specs import (
    LARGEST_STREAMED,
    MAX_DEPTH,
    MAX_DRAFT_GAMMA,
    MAX_GAMMA,
    MAX_TREE,
    STACKS,
)
from triforce_chat.engine.speculation.tree_graph import LARGEST_NARROW, rows_for
from triforce_chat.engine.speculation.tree_plan import LARGEST_BELOW, TreeOptions, TreePlan
from triforce_chat.errors import UsageError

POLICIES: dict[str, type[Policy]] = {"mean": MeanKey, "minmax": MinMaxKey, "attention": AttentionMass}
# Policies of heavy hitters, which score no chunks: at their own positions, or at positions inside the cache.
HEAVY = HEAVY_IN_PLACE, HEAVY_RENUMBERED = "h2o", "streaming-h2o"
# Policies that list what they select by what forwards leave, where keys and values lie together.
IN_PLACE = ("attention", HEAVY_IN_PLACE)

MOST_GAMMA = 16  # tokens that a planner drafts at most per verification
# Tokens, if every verification streams keys and values, or weights, from host memory: with one more, a power of two.
STREAMED_GAMMA = 63
LONG = Proposals(most=128, spare=1)  # of the middle level there
USUAL_ROWS = 65  # of a tree that caches have room for anyway
AHEAD = 256  # slots of a retrieval cache for what a level over a quantized copy has confirmed until the next build
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
    tree: TreeOptions | None = None  # that the draft model drafts; None: chains
    # Whether the memory plan has room for the long proposals that pay where keys and values are in host memory.
    streams: bool = False

    @property
    def copies(self) -> bool:
        """Whether there is a level over a quantized copy of the full cache."""
        return STACKS[self.name].quantized_copies > 0

    @property
    def hop(self) -> int:
        """Tokens by which the draft model's window grows before it is read again."""
        return HOP if self.tree is None and not self.streams else LONG_HOP

    @property
    def scratch(self) -> int:
        """Slots beyond that window for the tokens of a large tree."""
        return 0 if self.tree is None else rows_for(self.tree.most) - LARGEST_NARROW

    @property
    def beyond(self) -> int:
        """Slots of the target's own cache for large trees that it verifies itself, beside the usual ones."""
        own = STACKS[self.name].draft_caches and not STACKS[self.name].retrieval_caches
        return rows_beyond(self.tree.most) if own and self.tree is not None else 0

    @property
    def window(self) -> int:
        """Slots of the draft model's streaming cache."""
        return SINKS + WINDOW + self.hop + self.scratch

    def streaming(self, weights: bool, keys: bool) -> StackOptions:
        """With trees as large as may be planned where weights, or keys and values, are streamed from host memory."""
        if self.tree is None or not (weights or keys):
            return self
        return replace(self, tree=replace(self.tree, planned=LARGEST_STREAMED if weights else LARGEST_BELOW))

    def beside(self, sequences: int) -> StackOptions:
        """With trees no larger than those that so many sequences have room for in one forward on a GPU."""
        if self.tree is None:
            return self
        room = MAX_TREE if sequences == 1 else rows_each(sequences, apart=True) - 1
        return replace(self, tree=replace(self.tree, room=room))


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
        self.target, self.full, self.draft, self.emit = target, full, draft, emit
        pool = self.pool_of(full)
        options = options.beside(pool.count) if pool else options
        self.options = options.streaming(target.streamed is not None, full.storage.streams)
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
        fixed = self.options.gamma, self.options.draft_gamma
        for what, drafted, most in zip(
            ("gamma", "draft-gamma"), fixed, (MAX_GAMMA, MAX_DRAFT_GAMMA), strict=True
        ):
            if drafted is not None and not 1 <= drafted <= most:
                raise UsageError(f"{what} must be from 1 to {most} tokens, not {drafted}")
        if name not in makers:
            raise UsageError(f"no stack '{name}'; choose one of {', '.join(makers)}")
        if name == "naive" and self.draft is None:
            raise UsageError("the stack 'naive' needs a draft model: pass --draft")
        check_policy(self.options.policy, self.target)
        if self.target.streamed is not None:
            check_streamed(name)
        if self.options.copies and self.full.shape.kv_format in BITS:
            raise UsageError(
                f"the stack '{name}' quantizes keys and values that the target keeps as they are: not with "
                "--kv int8 or --kv int4"
            )
        if self.options.copies and self.target.gathering is not None and self.target.places_on_device:
            raise UsageError(f"the stack '{name}' answers one question at a time on a GPU")
        if self.options.tree is not None and STACKS[name].draft_caches:
            self.check_tree(self.options.tree)

    def check_tree(self, tree: TreeOptions) -> None:
        """Raise UsageError if this stack cannot draft such trees."""
        for what, most, wanted in (("size", MAX_TREE, tree.size), ("depth", MAX_DEPTH, tree.depth)):
            if wanted is not None and not 1 <= wanted <= most:
                raise UsageError(f"tree-{what} must be from 1 to {most} tokens, not {wanted}")
        if STACKS[self.options.name].draft_caches > 1 or self.options.copies:
            raise UsageError(
                f"the stack '{self.options.name}' drafts chains; --tree {tree.kind} needs --stack naive, triforce or "
                "streaming"
            )
        if self.group.size > 1:
            raise UsageError(f"--tree {tree.kind} runs in one process only, so far")
        on_gpu = self.target.device.type == "cuda" or self.target.places_on_device
        on_device = self.target.places_on_device and (self.draft is None or self.draft.places_on_device)
        if on_gpu and not on_device:
            raise UsageError(
                f"--tree {tree.kind} needs captured forwards on a GPU, which these models do not have"
            )
        if on_gpu and self.full.weighs:
            raise UsageError(
                f"--tree {tree.kind} drafts no trees on a GPU where --endless goes by attention: choose --endless "
                "streaming"
            )
        if self.options.name == "triforce" and self.options.policy in (*IN_PLACE, *HEAVY):
            raise UsageError(
                f"--tree {tree.kind} needs the middle level's keys and values in one place: not with "
                f"--policy {self.options.policy}"
            )
        if self.full.shape.kv_format in BITS:
            raise UsageError(f"--tree {tree.kind} drafts no trees with --kv int8 or --kv int4, so far")
        # Below a middle level, whose keys and values are on the device, the target itself verifies chains.
        below = STACKS[self.options.name].retrieval_caches > 0
        if not below and self.full.storage.slot(self.full.length) is None:
            raise UsageError(
                f"--tree {tree.kind} needs all keys and values in one place under the target itself: with --offload "
                "choose --stack triforce"
            )

    def makers(self) -> dict[str, Callable[[], Speculative]]:
        return {
            "auto": self.auto,
            "triforce": lambda: self.over(*self.middle_level()),
            "triforce-int4": lambda: self.over(self.over_copy(), self.copy_step),
            "retrieval": lambda: self.over(self.middle(self.retrieval(), drafts=False), self.middle_step),
            "streaming": lambda: self.over(self.middle(self.streaming()), self.middle_step),
            "naive": self.naive,
            "lookup": lambda: self.top(self.planner(lookup=NgramLookup())),
            "autoregressive": lambda: self.top(
                Planner(group=self.group, investment=self.investment, row=self.row)
            ),
        }

    def auto(self) -> Speculative:
        """A target whose planner chooses among all drafters by what it measures while decoding."""
        arms, lookup = self.drafts(self.parts), NgramLookup()
        # Several sequences share the reading of the weights already; streamed ones take as long at any level.
        if self.target.gathering is None and self.target.streamed is None:
            level, step = self.middle_level()
            for own, below in zip(arms, level.planner.arms, strict=True):
                own.pair_with(below)
            arms = [self.level(level, share(step, self.plain_step), self.worth_above), *arms]
        return self.top(
            Planner(arms, lookup, most=self.most, group=self.group, investment=self.investment, row=self.row)
        )

    @property
    def worth_above(self) -> int:
        """The shortest history, in tokens, for which the middle level can pay.

        In shorter ones it would read nearly as many bytes as the target itself, unless those of the target stream, or
        its own weights are smaller.
        """
        if self.full.storage.streams:
            return 0
        return self.options.budget.tokens * (1 if self.options.middle == "int8" else 2)

    def naive(self) -> Speculative:
        arms = self.drafts(self.parts)
        trees = self.trees(arms, self.full, self.options.gamma)
        if trees is None:
            return self.top(self.planner(arms, plain=False))
        # What lookup finds, the host has to wait for: not for long beside a forward that streams weights.
        waits = not trees.drafter.device_side or self.target.streamed is not None
        lookup = NgramLookup() if waits else None
        gamma = None if trees.optional else trees.options.most
        own = self.group, self.investment, self.row, trees
        return self.top(Planner(arms, lookup, gamma, self.most, not trees.optional, *own))

    def trees(self, arms: Sequence[Arm], cache: KVCache, chain: int | None) -> TreePlan | None:
        """The trees that the draft model drafts for a level, whose chains would have ``chain`` tokens if that is fixed.

        None where it drafts chains or is missing. Whether trees promise more than chains is known from measurements:
        with a fixed length or a seed, where nothing is, the kind "auto" stays with chains.
        """
        tree, fixed = self.options.tree, chain is not None or self.options.repeatable
        if tree is None or not arms or (tree.kind == "auto" and fixed):
            return None
        drafter = arms[0].drafter
        assert isinstance(drafter, DraftModel)
        tree = replace(tree, room=min(tree.room, self.rows_beside_others(cache) - 1))
        return TreePlan(tree, drafter, self.options.repeatable, self.row)

    def rows_beside_others(self, cache: KVCache) -> int:
        """The most rows of a tree that is verified over a cache of one of several sequences on a GPU.

        By how many there is room for, not by how many there are: so trees stay as large as what is captured for them.
        """
        slot, pool = cache.write_slot(), self.pool_of(cache)
        return rows_each(pool.count, slot.prefix is None) if slot and pool else 1 + MAX_TREE

    def pool_of(self, cache: KVCache) -> KVPool | None:
        """Where a cache of one of several sequences on a GPU lies beside those of the others."""
        slot = cache.write_slot() if self.target.places_on_device else None
        return slot.storage.pool if slot else None

    @property
    def drafts_chains(self) -> bool:
        """Whether the draft model drafts chains, if perhaps among other drafts."""
        return self.options.tree is None or self.options.tree.kind == "auto"

    @property
    def parts(self) -> Sequence[int]:
        """Lengths of the draft model's graphs where it drafts for the top level."""
        return PARTS if self.options.gamma is None and self.drafts_chains else ()

    def over(self, drafter: Speculative, step: Step) -> Speculative:
        """The target over a drafter that always drafts, and whose steps cost so much."""
        return self.top(self.planner([self.level(drafter, share(step, self.plain_step))], plain=False))

    @staticmethod
    def level(drafter: Speculative, step: Step, worth_above: int = 0) -> Arm:
        """A level as a drafter of another one; ``step``: what its steps cost, as a share of those of that one."""
        planner = drafter.planner
        return Arm(
            drafter,
            worth_above,
            lambda length: step(length) / planner.expected_gain(length),
            LEVEL_HOPE,
            pace=lambda: planner.expected_pace,
            spent=lambda: planner.spent,
            guess=LEVEL_GUESS,
            surplus=drafter.surplus,
        )

    def planner(
        self, arms: Sequence[Arm] = (), lookup: NgramLookup | None = None, plain: bool = True
    ) -> Planner:
        gamma = self.options.gamma
        return Planner(arms, lookup, gamma, self.most, plain, self.group, self.investment, self.row)

    def top(self, planner: Planner) -> Speculative:
        self.planners["target"] = planner
        return Speculative(
            "target", self.target, self.full, planner, self.emit, self.group, self.overlaps(planner)
        )

    def overlaps(self, planner: Planner) -> bool:
        """Whether plain decoding may launch the next forward before the host reads the last token.

        On a GPU, where a surplus forward is cheap to discard unless it streams weights. Ranks would have to agree on a
        plan for every token, and lookup by fixed numbers goes by the last token, which the host does not know yet.
        """
        queue = self.target.device.type == "cuda" and self.full.write_slot() is not None
        cheap = self.target.streamed is None
        return queue and cheap and (not planner.most or (planner.decides and self.group.size == 1))

    @property
    def most(self) -> int:
        """Largest number of tokens per verification; longer drafts pay if verifications are expensive."""
        return self.options.gamma or (STREAMED_GAMMA if self.streamed else MOST_GAMMA)

    @property
    def row(self) -> float:
        """What one more row costs the target, as a share of a step of one row, before that is measured."""
        return STREAMED_ROW_PRIOR if self.streamed else self.row_on_device

    @property
    def row_on_device(self) -> float:
        """``row`` for a level whose keys and values are on the device."""
        if self.target.device.type == "cuda":
            return GPU_ROW_PRIOR
        return COMPUTED_ROW_PRIOR if self.target.multiplies_quantized else ROW_PRIOR

    @property
    def streamed(self) -> bool:
        """Whether every verification streams keys and values, or weights, from host memory."""
        return self.full.storage.streams or self.target.streamed is not None

    def middle_level(self) -> tuple[Speculative, Step]:
        """The middle level, and what a step of it costs."""
        return self.middle(self.retrieval()), self.middle_step

    def over_copy(self) -> Speculative:
        """The target over a quantized copy of the full cache, for which the middle level always drafts.

        The copy takes its memory first: 8-bit weights of the middle level have what is left.
        """
        cache = QuantizedCopy(self.full)
        drafter, step = self.middle_level()
        gamma = self.options.gamma
        planner = Planner(
            [self.level(drafter, share(step, self.copy_step))],
            None,
            gamma and -(-gamma // 2),
            MOST_GAMMA,
            False,
            self.group,
            self.investment,
            self.row_on_device,
        )
        self.planners["int4"] = planner
        self.caches.append(cache)
        return Speculative("int4", self.target, cache, planner, self.emit, self.group)

    def middle(self, cache: RetrievalCache | InPlaceCache, drafts: bool = True) -> Speculative:
        """The target over a small cache."""
        gamma = self.options.draft_gamma
        lengths = sizes(1, MOST_DRAFT_GAMMA) if gamma is None and self.drafts_chains else []
        arms = self.drafts(lengths, self.middle_step) if drafts else []
        trees = self.trees(arms, cache, gamma)
        if trees is not None and not trees.optional:
            gamma, looks_up = trees.options.most, not trees.drafter.device_side
        else:
            looks_up = drafts and (gamma is None or not arms)
        lookup = NgramLookup() if looks_up else None
        own = self.group, self.investment, self.row_on_device, trees
        planner = Planner(arms, lookup, gamma, MOST_DRAFT_GAMMA, True, *own)
        if self.options.streams:
            planner.proposals = LONG
        self.planners["retrieval"] = planner
        self.caches.append(cache)
        return Speculative("retrieval", self.proposer(), cache, planner, self.emit, self.group)

    def drafts(self, lengths: Sequence[int] = (), step: Step | None = None) -> list[Arm]:
        """The draft model, if there is one; drafts of these lengths are captured before their first use.

        ``step``: what one costs of the level that they are for, which is the top one if it is None.
        """
        if self.draft is None:
            return []
        room = {"hop": self.options.hop, "scratch": self.options.scratch}
        cache = StreamingCache(self.draft.shape, **room, buffer=self.buffer)
        self.caches.append(cache)
        drafter, own = DraftModel(self.draft, cache, lengths, self.group), StepCost.of(self.draft).model
        further = GPU_FURTHER_PRIOR if self.draft.device.type == "cuda" else 1.0
        return [Arm(drafter, forecast=share(lambda _: own, step or self.plain_step), further=further)]

    @property
    def plain_step(self) -> Step:
        """What a step of plain decoding costs after so many tokens."""
        return StepCost.of(self.target, self.full.storage.streams)

    @property
    def copy_step(self) -> Step:
        """What a step over the quantized copy of the full cache costs."""
        return replace(
            StepCost.of(self.target),
            token=copy_bytes(self.full.shape, self.full.storage.capacity) / self.full.storage.capacity,
        )

    @property
    def middle_step(self) -> Step:
        """What a step of the middle level costs: the same after all but the shortest histories."""
        cost = StepCost.of(self.proposer())(self.options.budget.tokens)
        return lambda _: cost

    def proposer(self) -> Runner:
        """The target's runner for the middle level."""
        wanted = self.options.middle
        # The product of 8-bit weights is faster for few rows only, and several sequences have many.
        alone = self.target.gathering is None
        int8 = wanted == "int8" or (wanted == "auto" and alone and self.target.room_for_int8)
        self.options = replace(self.options, middle="int8" if int8 else "full")
        return self.target.quantized if int8 else self.target

    def retrieval(self) -> RetrievalCache | InPlaceCache:
        policy, seeded = self.options.policy, self.options.repeatable
        early = self.options.streams
        return retrieval_cache(
            self.target, self.full, self.budget, policy, self.emit, self.buffer, seeded, early
        )

    def streaming(self) -> RetrievalCache:
        return self.small(Recent())

    def small(self, policy: Policy) -> RetrievalCache:
        return RetrievalCache(self.full, self.budget, policy, self.emit, self.buffer, self.options.streams)

    @property
    def budget(self) -> Budget:
        own, options = retrieval_budget(self.options), self.options
        # With a fixed length that no memory plan knows of, nothing may depend on how much memory is free.
        if not (self.streamed and (options.streams or options.gamma is None)):
            return own
        # What is chosen is copied while its layer is on the device for the verification: nothing more crosses the bus.
        stride = min(own.stride, 1 if options.policy == "attention" else STREAMED_STRIDE)
        # What the stride leaves, long proposals need.
        return replace(own, stride=stride, scratch=own.scratch + own.stride - stride)


def share(each: Step, step: Step) -> Step:
    """What a drafted token costs, by the length of the history, as a share of a step of the level that verifies it."""
    return lambda length: each(length) / step(length)


def rereads(name: str) -> bool:
    """Whether a stack always has a level below the target that reads the target's weights, too."""
    return STACKS[name].retrieval_caches > 0 and name != StackOptions().name


def check_streamed(name: str) -> None:
    """Raise UsageError for a stack that makes no sense where weights are streamed: its level would take as long."""
    if rereads(name):
        raise UsageError(
            f"the stack '{name}' has a level below the target with the same weights, some of which are in host memory: "
            "choose --stack auto, naive, lookup or autoregressive, or more --gpu-layers"
        )


def retrieval_budget(options: StackOptions) -> Budget:
    """The budget of a stack's retrieval cache, with room for large trees and for what a level above it confirms."""
    own, large = options.budget, rows_beyond(options.tree.most) if options.tree else 0
    return replace(own, scratch=own.scratch + large + options.copies * AHEAD)


def largest_forward(options: StackOptions) -> int:
    """Rows of the largest forward of a chain that is captured; see ``Speculative.surplus``.

    The level over a quantized copy, whose rounds are waited for, may draft twice as many tokens as it is asked for.
    """
    asked, tree = options.gamma or sizes(1, MOST_GAMMA)[-1], options.tree
    chain = options.draft_gamma or MOST_DRAFT_GAMMA
    surplus = MOST_GAMMA if options.copies else max(chain, tree.deepest if tree else 0) // 2
    return max(fitting(1 + asked + surplus) or SIZES[-1], USUAL)


def rows_beyond(most: int) -> int:
    """Rows of a tree of so many tokens beyond those that caches have room for anyway."""
    return max(0, (fitting(most + 1, TREE_SIZES) or 0) - USUAL_ROWS)


def check_policy(policy: str, target: Runner) -> None:
    """Raise UsageError for heavy hitters where forwards do not weigh."""
    if policy in HEAVY and (target.device.type != "cpu" or target.captures):
        raise UsageError(f"--policy {policy} runs on a CPU only, so far: choose another one")


def retrieval_cache(
    target: Runner,
    full: FullCache,
    budget: Budget,
    policy: str,
    emit: Callable[[Event], None],
    buffer: Callable[[Shape, int], KVBuffer] = KVBuffer,
    repeatable: bool = False,
    early: bool = False,
) -> RetrievalCache | InPlaceCache:
    """The retrieval cache of a policy; ``attention`` selects in place over contiguous keys of one sequence.

    ``repeatable``: the same tokens come of it whether documents were prefilled or recalled from the disk, which brings
    no attention: so prefills do not count. ``early``: see ``RetrievalCache``.
    """
    check_policy(policy, target)
    slot = full.storage.slot(0)
    together = slot is not None and slot.prefix is None
    weighs = target.captures and weighable(budget.chunk)
    layered = target.device.type == "cpu" and not target.places_on_device
    if policy not in (*IN_PLACE, *HEAVY) or not together or not (weighs or layered):
        # Of a prefix that sequences share, no sequence sees the attention: the latest queries' has to do.
        return RetrievalCache(full, budget, POLICIES.get(policy, AttentionMass)(), emit, buffer, early)
    heavy = replace(budget, chunk=1, tail=budget.tokens // 2)
    if policy == HEAVY_RENUMBERED:
        return RenumberedCache(full, heavy, emit, target.frequencies, not repeatable, buffer)
    if policy == HEAVY_IN_PLACE:
        return InPlaceCache(full, heavy, emit, half_life=None, weighs_all=not repeatable)
    return InPlaceCache(full, budget, emit, captured=target.captures)
