"""Toys that make the distribution of an answer exactly computable.

Models are tables from the whole context to a distribution, caches remember the very ids they were fed, and every
outcome of every random choice is visited. So a wrong acceptance rule, a vector that is not the distribution of its
token, or a cache that was cut at the wrong place each change the distribution of the output.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from triforce_chat.engine.cache.kv_cache import UNLIMITED
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward.target_state import NEVER
from triforce_chat.engine.sampling import executor as executor_module
from triforce_chat.engine.sampling.executor import SamplerInputs, SamplerOutput, Verification
from triforce_chat.engine.sampling.ops import CANDIDATES, PenaltyContext, Randomness, Uniforms
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.arm import Arm, Drafter
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.round import Round
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.tree import WORD, Branches

Context = tuple[int, ...]
Distribution = dict[Context, float]
Rule = Callable[[Draft, Tensor, Randomness, Tensor | None], Tensor]
PROMPT: Context = (0, 1)
LONGER: Context = (0, 1, 1, 0)  # the captured draft is no longer than what it follows
CPU = torch.device("cpu")
ROOM = 128


class ToyCache:
    """Holds ids where a real cache holds keys and values."""

    limit, forgotten = UNLIMITED, 0

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.fed: list[int] = []
        self.beyond: list[int] = []  # fed behind them without being counted
        self.memory: list[int] = []  # what was fed at each place, also where that was dropped
        self.verdicts: list[tuple[int, int]] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    @length.setter
    def length(self, _: int) -> None:
        raise AssertionError("only advance and truncate change a cache")

    @property
    def position(self) -> int:
        return len(self.ids)

    def ready(self, _: int) -> bool:
        return True

    def pending(self, tokens: Tensor, _: int = 0) -> Tensor:
        return tokens[len(self.ids) :]

    def write_slot(self) -> None:
        """Nothing lies in slots."""

    def put(self, fed: list[int], offset: int) -> Context:
        """All ids up to the end of those that are fed so many places behind what counts."""
        held = [*self.ids, *self.beyond]
        start = len(self.ids) + offset
        assert 0 <= start <= len(held), "a hole in the cache"
        assert held[start : len(self.ids)] == fed[: max(0, -offset)], "what counts was overwritten"
        held = [*held[:start], *fed]
        self.beyond = held[len(self.ids) :]
        return tuple(held)

    def update(self, *_: Any) -> Any:
        raise AssertionError("toys have no attention")

    def advance(self, n: int) -> None:
        self.ids += self.fed[:n]
        self.beyond = []

    def truncate(self, length: int) -> None:
        held = [*self.ids, *self.beyond]
        self.memory = [*held, *self.memory[len(held) :]]
        del self.ids[length:]
        self.beyond = []

    def confirmed(self, length: int) -> None:
        self.ids += self.memory[len(self.ids) : length]

    def keep(self, length: int, path: Tensor) -> None:
        self.ids[length:] = [self.ids[length + at] for at in path.tolist()]

    def keep_beyond(self, offset: Tensor, path: Tensor) -> None:
        held = [*self.ids, *self.beyond]
        start = len(self.ids) + int(offset)
        held[start : start + len(path)] = [held[start + at] for at in path.tolist()]
        self.beyond = held[len(self.ids) :]

    def drafted(self, certain: int, count: Tensor) -> None:
        """Toys weigh nothing."""

    def judged(self, proposed: int, accepted: int) -> None:
        self.verdicts.append((proposed, accepted))


class Stateless:
    """What a model does for drafts that read states, if there are none, and whose forwards run alone."""

    sequences = 1
    captures: bool

    @property
    def places_on_device(self) -> bool:
        return self.captures

    def before_waiting(self) -> None:
        pass

    def committed(self, count: Tensor, length: Tensor) -> None:
        pass

    def forget_state(self) -> None:
        pass


@dataclass
class ToyState:
    """A target's state: the context of the row that gave the token at index ``base``, the newest committed one."""

    row: Context = ()
    base: int = NEVER


@dataclass
class ToyModel:
    """A table over contexts: ``table(context)`` [V] is drawn once per context and kept.

    ``captures``: as if its forwards were CUDA graphs, so that rounds are not waited for. ``state``: where it leaves its
    own; ``reads``: another one's, on which the table depends, too.
    """

    vocabulary: int
    table: Callable[[Context], Tensor]
    captures: bool = False
    device: torch.device = CPU
    known: dict[Context, Tensor] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    state: ToyState | None = None
    reads: ToyState | None = None
    rows: list[Context] = field(default_factory=list)  # contexts of the last forward's rows

    @property
    def places_on_device(self) -> bool:
        return self.captures

    @property
    def sequences(self) -> int:
        return 1

    def before_waiting(self) -> None:
        pass

    def logits(self, context: Context) -> Tensor:
        if self.reads is not None and len(context) > self.reads.base:
            assert context[: self.reads.base] == self.reads.row, "the state of another row"
            context = (*context, -3, *self.reads.row)
        if context not in self.known:
            self.known[context] = self.table(context).double().log()
        return self.known[context]

    def __call__(
        self,
        ids: Tensor,
        cache: ToyCache,
        rows: int,
        offset: Tensor | None = None,
        tree: Branches | None = None,
    ) -> Tensor:
        fed = ids[0].tolist()
        assert fed, "an empty forward"
        if tree is not None:
            before = cache.ids if offset is None else cache.put(fed, int(offset))[: -len(fed)]
            self.rows = contexts(before, fed, tree)[len(fed) - rows :]
            if offset is None:
                cache.fed = fed
                cache.advance(len(fed))
            return torch.stack([self.logits(context) for context in self.rows])[None]
        if offset is None:
            cache.fed = fed
            seen = (*cache.ids, *fed)
            cache.advance(len(fed))
        else:
            seen = cache.put(fed, int(offset))
        self.rows = [seen[: len(seen) - rows + i + 1] for i in range(rows)]
        return torch.stack([self.logits(context) for context in self.rows])[None]

    def loop(self, cache: ToyCache, tokens: int) -> ToyLoop:  # noqa: ARG002
        return ToyLoop(self, cache)

    def unprepared(self, cache: ToyCache, rows: int, branching: bool = False) -> list[Preparation]:  # noqa: ARG002
        return []

    def committed(self, count: Tensor, length: Tensor) -> None:
        if self.state is not None:
            self.state.row, self.state.base = self.rows[int(count) - 1], int(length) - 1

    def forget_state(self) -> None:
        if self.state is not None:
            self.state.base = NEVER

    def capturing(self) -> ToyModel:
        """The same table behind captured forwards."""
        return replace(self, captures=True)


def contexts(before: Sequence[int], fed: list[int], tree: Branches) -> list[Context]:
    """What each token of a tree's forward follows, itself included."""
    held, found = [*before, *fed], list[Context]()
    tail = len(held) - tree.visible.shape[1]
    for step, visible in zip(tree.steps.tolist(), tree.visible, strict=True):
        found.append((*held[:tail], *(held[tail + at] for at in visible.nonzero()[:, 0].tolist())))
        assert len(found[-1]) == len(before) + step + 1, "another position than its depth"
    return found


@dataclass
class ToyLoop:
    """Feeds a toy where it is told to; the capture itself feeds nothing."""

    model: ToyModel
    cache: ToyCache
    offset: int | None = None
    sequences: int = 1

    def aim(self, caches: Sequence[ToyCache], offset: Tensor) -> None:
        assert [*caches] == [self.cache]
        self.offset = int(offset)

    def __call__(self, ids: Tensor, step: int) -> Tensor:
        assert self.offset is not None
        return self.model(ids, self.cache, 1, torch.tensor([self.offset + step]))

    def branch(self, ids: Tensor, step: int, root: int, depth: int, masks: Tensor) -> Tensor:
        assert self.offset is not None
        start, cache = len(self.cache.ids) + self.offset, self.cache
        held = [*cache.ids, *cache.beyond][: start + step] + ids[0].tolist()
        cache.beyond, tree = held[len(cache.ids) :], held[start + root + 1 :]
        found: list[Tensor] = []
        for mask in masks[0].tolist():
            path = [token for at, token in enumerate(tree) if mask[at // WORD] >> at % WORD & 1]
            assert len(path) in (0, depth), "another position than its depth"  # none where no row is
            found.append(self.model.logits((*held[: start + root + 1], *path)))
        return torch.stack(found)[None]


def random_table(vocabulary: int, seed: int, sharpness: float = 1.0) -> Callable[[Context], Tensor]:
    def table(context: Context) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *context)) % 2**31)
        return torch.softmax(sharpness * torch.randn(vocabulary, generator=generator, dtype=torch.float64), 0)

    return table


def reading(target: ToyModel, middle: ToyModel, draft: ToyModel) -> ToyState:
    """Have the draft read the states of both others, which change between rounds."""
    state = ToyState()
    target.state = middle.state = draft.reads = state
    return state


@dataclass
class ToySelection:
    """What the latest verification found, by all of its rows, and what the middle level goes by since it was asked."""

    found: Context = ()
    chosen: Context = ()


@dataclass
class Weighed(ToyModel):
    """A target whose forwards leave a selection, which depends on rejected tokens too."""

    selection: ToySelection = field(default_factory=ToySelection)

    def __call__(
        self,
        ids: Tensor,
        cache: ToyCache,
        rows: int,
        offset: Tensor | None = None,
        tree: Branches | None = None,
    ) -> Tensor:
        logits = super().__call__(ids, cache, rows, offset, tree)
        self.selection.found = self.rows[-1]
        return logits


@dataclass
class Selecting(ToyModel):
    """A middle level whose table depends on what is selected."""

    selection: ToySelection = field(default_factory=ToySelection)

    def logits(self, context: Context) -> Tensor:
        return super().logits((*context, -5, *self.selection.chosen))


def selecting_levels(
    gammas: tuple[int, int], draft: ToyModel | None, waits: bool = True
) -> tuple[Stack, Weighed, Selecting]:
    """Three levels, the middle one with a selection of every verification, made when a proposal is asked for."""
    selection = ToySelection()
    target = Weighed(3, random_table(3, 1), selection=selection)
    middle = Selecting(3, random_table(3, 2), selection=selection)

    def ready(_: int) -> bool:
        selection.chosen = selection.found
        return bool(selection.found)

    stack = (three_levels if waits else unwaited)(target, middle, draft, gammas)
    stack.parts[1].ready = ready
    stack.middle.model.selection = selection  # type: ignore[attr-defined]
    stack.parts.append(selection)
    return stack, target, middle


def support_table(vocabulary: int, seed: int, allowed: Sequence[int]) -> Callable[[Context], Tensor]:
    """Like ``random_table``, with all mass on some tokens."""
    base = random_table(vocabulary, seed)

    def table(context: Context) -> Tensor:
        mask = torch.zeros(vocabulary, dtype=torch.float64)
        mask[list(allowed)] = 1
        kept = base(context) * mask
        return kept / kept.sum()

    return table


def fixed_table(*chances: float) -> Callable[[Context], Tensor]:
    """The same distribution whatever came before."""
    return lambda _: torch.tensor(chances, dtype=torch.float64)


def toy(seed: int, vocabulary: int = 3) -> ToyModel:
    return ToyModel(vocabulary, random_table(vocabulary, seed))


class Uncaptured:
    """What a drafter says that needs no graphs."""

    name = "draft"

    def longest(self, length: int, n: int) -> int:  # noqa: ARG002
        return n

    def unprepared(self, length: int, n: int, sampler: Sampler) -> list[Preparation]:  # noqa: ARG002
        return []

    def preparations(self, length: int, sampler: Sampler) -> Iterator[Preparation]:  # noqa: ARG002
        return iter(())


class Echo(Uncaptured):
    """A lookup-like drafter: one-hot proposals from a rule on the history, sometimes none at all."""

    device_side = False

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:  # noqa: ARG002
        ids = seq.tokens.tolist()
        chosen = [(sum(ids) + i) % self.vocabulary for i in range(min(n, sum(ids) % 4))]
        return Draft.one_hot(torch.tensor([chosen], dtype=torch.long), self.vocabulary)

    def rollback(self, length: int) -> None:
        pass

    def judged(self, proposed: int, accepted: int) -> None:
        pass


class Walk:
    """``Randomness`` that visits all outcomes: replays a script of choices, then takes the first of each new choice.

    ``horizon`` is the history length whose distribution is wanted: which token comes behind it, or whether it passes,
    cannot matter, so one outcome stands for all.
    """

    def __init__(self, horizon: float = math.inf) -> None:
        self.horizon = horizon
        # By a question and the choices made since it was asked: the next choice's chances, or the answer with the
        # history length after it.
        self.known: dict[tuple[Hashable, Context], list[float] | tuple[SamplerOutput, int]] = {}
        self.asked: tuple[Hashable, int] | None = None  # the open question, and the choices taken before it
        self.begin([])

    def begin(self, script: list[int]) -> None:
        self.script, self.taken = script, 0
        self.open: list[tuple[list[int], int]] = []  # (choices made until then, one that was not taken)
        self.chance = 1.0
        self.at = 0  # history length in front of the next drawn token
        self.count: int | None = None  # drafted tokens that count; None: all

    def once(self, question: Hashable, answer: Callable[[], SamplerOutput]) -> SamplerOutput:
        """An answer that depends on the question and on choices alone: found once, then after the same choices again.

        Most of a walk repeats an earlier one, up to the choice in which they differ.
        """
        taken, chance = self.taken, self.chance
        while isinstance(known := self.known.get((question, self.since(taken))), list):
            self.choose(known)
        if known is None:
            self.taken, self.chance, self.asked = taken, chance, (question, taken)
            made, self.asked = answer(), None
            known = self.known[question, self.since(taken)] = copied(made), self.at
        made, self.at = known
        return copied(made)

    def since(self, taken: int) -> Context:
        return tuple(self.script[taken : self.taken])

    def choose(self, chances: list[float]) -> int:
        """Take one outcome with positive probability and remember the others."""
        if self.asked is not None:
            question, taken = self.asked
            self.known[question, self.since(taken)] = chances
        if self.taken < len(self.script):
            choice = self.script[self.taken]
        else:
            possible = [i for i, chance in enumerate(chances) if chance > 0]
            choice = possible[0]
            self.open += [(self.script[: self.taken], other) for other in possible[1:]]
            self.script = [*self.script[: self.taken], choice]
        self.taken += 1
        self.chance *= chances[choice]
        return choice

    def accepts(self, p: Tensor, q: Tensor) -> Tensor:
        p, q = p[0, : self.count], q[0, : self.count]
        tested = max(0, min(len(p), int(min(self.horizon, 1e9)) - self.at))
        passing, chances = 1.0, []
        for w, v in zip(p.double().tolist()[:tested], q.double().tolist()[:tested], strict=True):
            rate = min(1.0, w / v)
            chances.append(passing * (1 - rate))
            passing *= rate
        k = self.choose([*chances, passing])
        k = len(p) if k == tested else k
        self.at += k
        return torch.tensor([k])

    def only(self, i: int) -> OneOf:  # noqa: ARG002
        return OneOf(self)

    def of(self, row: int) -> Walk:  # noqa: ARG002
        return self

    def draw(self, weights: Tensor) -> Tensor:
        total = float(weights.double().sum())
        assert total > 0, "drawing from nothing"
        if self.at >= self.horizon:
            return weights.argmax(-1)
        self.at += 1
        return torch.tensor([self.choose([w / total for w in weights[0].double().tolist()])])

    def rejected(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        return self.only(0).draw(weights)


@dataclass
class OneOf:
    """A walk's decisions on one token of a tree: what is drawn is not lumped behind the horizon, however deep."""

    walk: Walk

    def accepts(self, p: Tensor, q: Tensor) -> Tensor:
        return self.walk.accepts(p, q)

    def only(self, i: int) -> OneOf:  # noqa: ARG002
        return self

    def of(self, row: int) -> OneOf:  # noqa: ARG002
        return self

    def draw(self, weights: Tensor) -> Tensor:
        row = weights[0].double()
        return torch.tensor([self.walk.choose((row / row.sum()).tolist())])

    def rejected(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        return self.draw(weights)


def copied(output: SamplerOutput) -> SamplerOutput:
    """Levels may write to what they are given."""
    return output._replace(probs=output.probs.clone(), packed=output.packed.clone())


def content(tensor: Tensor | None) -> Hashable:
    return None if tensor is None else (tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkingVerification(Verification):
    """A verification whose random choices are those of a walk."""

    walk: Walk

    @property
    def draws_by_kernels(self) -> bool:
        """Kernels draw by numbers, of which there are too many to visit."""
        return self.sampling.greedy

    def __call__(self, inputs: SamplerInputs, random: Randomness) -> SamplerOutput:
        count = inputs.draft.count
        self.walk.count = len(inputs.draft) if count is None else int(count)
        return self.walk.once(self._question(inputs), lambda: Verification.__call__(self, inputs, random))

    def _question(self, inputs: SamplerInputs) -> Hashable:
        """Everything that the verdict depends on but for choices; tests replace the rules."""
        logits, draft, penalty, forced, allowed = inputs
        tensors = (logits, draft.tokens, draft.probs, draft.count, *(penalty or ()), forced, allowed)
        rules = tuple(vars(executor_module)[name] for name in ("verify", "verify_tree"))
        shape = draft.parents, draft.independent
        return rules, self.candidates, shape, penalty is None, self.walk.at, *map(content, tensors)

    def randomness(self, uniforms: Uniforms) -> Randomness:
        return Verification.randomness(self, uniforms) if self.sampling.greedy else self.walk


class Branching(Sampler):
    """A sampler that walks through all outcomes."""

    def __init__(self, sampling: Sampling, answer_start: int, walk: Walk, forced: bool = False) -> None:
        super().__init__(sampling, answer_start, forced=forced)
        self.walk = walk
        self.op = WalkingVerification(sampling, CANDIDATES, forced, walk=walk)

    def fill(self, uniforms: Uniforms) -> None:
        """Nobody reads them."""

    def penalty_context(self, seq: TokenBuffer, draft: Draft, more: int = 0) -> PenaltyContext | None:
        self.walk.at = int(seq.length)  # every draw and verdict begins with this question
        return super().penalty_context(seq, draft, more)


@dataclass
class Stack:
    """A top level together with everything in it that changes between rounds."""

    top: Speculative
    parts: list[Any]

    def save(self) -> list[dict[str, Any]]:
        return [duplicate(vars(part)) for part in self.parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        for part, values in zip(self.parts, state, strict=True):
            vars(part).update(duplicate(values))
        for level in levels(self.top):
            level.found = None

    def print_of(self, state: list[dict[str, Any]]) -> str:
        """Two states with the same print behave alike.

        Counters for statistics are left out, and what a cache has dropped: it is read again only where a level below
        the top is not waited for, in its own cache.
        """
        below = [level.cache for level in levels(self.top) if level.unwaited and level is not self.top]
        skip = ("fed", "verdicts", "beyond")
        parts = [
            {k: v for k, v in values.items() if k not in skip and (k != "memory" or part in below)}
            for part, values in zip(self.parts, state, strict=True)
        ]
        return repr(parts)

    @property
    def middle(self) -> Speculative:
        level = self.top.planner.arms[0].drafter
        assert isinstance(level, Speculative)
        return level


def duplicate(values: dict[str, Any]) -> dict[str, Any]:
    """A deep copy. Lists hold numbers and tuples of them, for which a shallow one is enough."""
    return {
        name: value.copy() if type(value) is list else copy.deepcopy(value) for name, value in values.items()
    }


def levels(top: Speculative) -> Iterator[Speculative]:
    yield top
    for arm in top.planner.arms:
        if isinstance(arm.drafter, Speculative):
            yield from levels(arm.drafter)


@dataclass(frozen=True)
class ToyConstraint:
    """Allows what ``may`` says after a context; after a token that it forbids, everything."""

    may: Callable[[Context], list[bool]]
    context: Context
    guesses: int = (
        0  # tokens that are forced: the first one allowed at each place, though others are allowed, too
    )

    def forced(self, most: int) -> list[int]:
        made: list[int] = []
        for _ in range(min(most, self.guesses)):
            made.append(self.may((*self.context, *made)).index(True))
        return made

    def allowed(self, drafted: Sequence[int], vocabulary: int) -> Tensor:
        rows = torch.ones(len(drafted) + 1, vocabulary, dtype=torch.bool)
        for n in range(len(drafted) + 1):
            rows[n] = torch.tensor(self.may((*self.context, *drafted[:n])))
            if n < len(drafted) and not rows[n, drafted[n]]:
                break
        return rows

    def advance(self, ids: Sequence[int]) -> None:  # noqa: ARG002
        raise AssertionError("each round has a constraint of its own")


def rounds(
    stack: Stack,
    sampler: Branching,
    tokens: Context,
    most: int,
    forced: Context = (),
    may: Callable[[Context], list[bool]] | None = None,
    guesses: int = 0,
) -> Iterator[tuple[Context, float]]:
    """Every outcome of one round from the state that the stack is in; meanwhile the stack is in the state behind it."""
    start = stack.save()
    scripts: list[list[int]] = [[]]
    walk = sampler.walk
    while scripts:
        stack.load(start)
        walk.begin(scripts.pop())
        stack.top.constraint = None if may is None else ToyConstraint(may, tokens, guesses)
        made = stack.top.step(TokenBuffer.of(tokens, ROOM, CPU, forced), sampler, most)[1].ids
        assert len(made) >= 1
        scripts += [[*prefix, other] for prefix, other in walk.open]
        yield (*tokens, *made), walk.chance


def distribution_of(
    stack: Stack,
    sampling: Sampling,
    n: int,
    lump: bool = True,
    prompt: Context = PROMPT,
    may: Callable[[Context], list[bool]] | None = None,
    guesses: int = 0,
) -> Distribution:
    """The exact distribution of the first ``n`` tokens that the stack emits behind the prompt."""
    horizon = len(prompt) + n
    sampler = Branching(sampling, len(prompt), Walk(horizon if lump else math.inf))
    found: Distribution = {}
    # By length, token and state: the chance to get there. A round only leads to longer ones, so that whatever leads to
    # the shortest is known.
    waiting: list[dict[tuple[Context, str], tuple[float, Any]]] = [{} for _ in range(n)]
    waiting[0] = {(prompt, ""): (1.0, stack.save())}
    for length, there in enumerate(waiting):
        for (tokens, _), (mass, state) in there.items():
            stack.load(state)
            for after, chance in rounds(stack, sampler, tokens, n - length - 1, (), may, guesses):
                if len(after) >= horizon:
                    made = after[len(prompt) : horizon]
                    found[made] = found.get(made, 0.0) + mass * chance
                else:
                    left, later = stack.save(), waiting[len(after) - len(prompt)]
                    key = (after, stack.print_of(left))
                    before = later[key][0] if key in later else 0.0
                    later[key] = (before + mass * chance, left)
    return found


def exact_distribution(
    model: ToyModel,
    sampling: Sampling,
    n: int,
    prompt: Context = PROMPT,
    may: Callable[[Context], list[bool]] | None = None,
) -> Distribution:
    """The product of the target's conditionals, straight from the definition."""
    sampler = Sampler(sampling, len(prompt))
    found: Distribution = {(): 1.0}
    for _ in range(n):
        longer: Distribution = {}
        for made, mass in found.items():
            context = (*prompt, *made)
            logits = model.logits(context)
            if may is not None:
                logits = logits.masked_fill(~torch.tensor(may(context)), -torch.inf)
            probs = sampler.probs(logits[None], torch.tensor(context))[0]
            for token, chance in enumerate(probs.tolist()):
                if chance > 0:
                    longer[(*made, token)] = mass * chance
        found = longer
    return found


def variation(a: Distribution, b: Distribution) -> float:
    """Total variation distance."""
    return sum(abs(a.get(made, 0.0) - b.get(made, 0.0)) for made in a.keys() | b.keys()) / 2


def ruled(level: Speculative, rule: Rule) -> Speculative:
    """The same level with another acceptance rule inside of its real verification."""
    original = level._verify

    def verify(seq: TokenBuffer, made: Round, sampler: Sampler) -> None:
        with patch.object(executor_module, "verify", rule):
            original(seq, made, sampler)

    level._verify = verify  # type: ignore[method-assign]
    return level


def nothing(_: Any) -> None:
    """Events nobody wants."""


def drafting(drafter: Drafter | None, gamma: int, lookup: NgramLookup | None = None) -> Planner:
    """A plan without choice."""
    return Planner([Arm(drafter)] if drafter else [], lookup, gamma, plain=False)


def two_levels(target: ToyModel, draft: ToyModel | Drafter, gamma: int) -> Stack:
    cache = ToyCache()
    parts: list[Any] = [cache]
    planner = drafting(drafter_of(draft, parts), gamma)
    return Stack(Speculative("target", target, cache, planner, nothing), parts)  # type: ignore[arg-type]


def three_levels(
    target: ToyModel,
    middle: ToyModel,
    draft: ToyModel | Drafter | None,
    gammas: tuple[int, int],
    rule: Rule | None = None,
    lookup: NgramLookup | None = None,
) -> Stack:
    """gammas: (asked of the drafter, asked of the middle); ``rule`` replaces the middle's acceptance rule."""
    full, cache = ToyCache(), ToyCache()
    parts: list[Any] = [full, cache]
    below = None if draft is None else drafter_of(draft, parts)
    if lookup is not None:
        parts.append(lookup)
    planner = drafting(below, gammas[0], lookup)
    level = Speculative("retrieval", middle, cache, planner, nothing)  # type: ignore[arg-type]
    if rule is not None:
        ruled(level, rule)
    top = Speculative("target", target, full, drafting(level, gammas[1]), nothing)  # type: ignore[arg-type]
    return Stack(top, parts)


def four_levels(
    target: ToyModel,
    copy_level: ToyModel,
    middle: ToyModel,
    draft: ToyModel,
    gammas: tuple[int, int, int],
    waits: bool = True,
    rule: Rule | None = None,
) -> Stack:
    """A level over a copy of the full cache between the middle and the target, whose acceptance rule ``rule`` replaces.

    gammas: asked of the draft, of the middle, and of the level over the copy; only the middle may be not waited for.
    """
    lower = three_levels if waits else unwaited
    stack = lower(copy_level, middle, draft, gammas[:2])
    level, cache = stack.top, ToyCache()
    level.name = "int4"
    if rule is not None:
        ruled(level, rule)
    top = Speculative("target", target, cache, drafting(level, gammas[2]), nothing)  # type: ignore[arg-type]
    return Stack(top, [cache, *stack.parts])


def unwaited(
    target: ToyModel,
    middle: ToyModel,
    draft: ToyModel | None,
    gammas: tuple[int, int],
    lookup: bool = False,
    threshold: int | None = None,
) -> Stack:
    """Three levels whose middle is not waited for; ``threshold`` fixes from which match on lookup speaks."""
    below = None if draft is None else draft.capturing()
    stack = three_levels(target, middle.capturing(), below, gammas, lookup=NgramLookup() if lookup else None)
    if threshold is not None:
        stack.middle.planner.threshold = lambda n: threshold  # type: ignore[method-assign]  # noqa: ARG005
    return stack


def drafter_of(draft: ToyModel | Drafter, parts: list[Any]) -> Drafter:
    if not isinstance(draft, ToyModel):
        return draft
    parts.append(ToyCache())
    return DraftModel(draft, parts[-1])  # type: ignore[arg-type]
