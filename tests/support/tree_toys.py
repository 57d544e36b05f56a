"""Toy stacks whose draft model drafts trees of a given shape, and wrong rules for trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import prod
from typing import Any

import torch
from torch import Tensor

from support.toys import Context, Stack, ToyCache, ToyModel, Walk, drafting, exact_distribution, nothing
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.batched import stacked
from triforce_chat.engine.sampling.branching import PathVerdict, verify_tree
from triforce_chat.engine.sampling.executor import Executor, SamplerInputs, Verification
from triforce_chat.engine.sampling.ops import CANDIDATES, Randomness, Uniforms
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.tree_draft import Draws, grown, growths, widths_of
from triforce_chat.engine.speculation.tree_plan import RoundCosts, TreeOptions, TreePlan
from triforce_chat.engine.tree import Parents, paths

SHAPES: dict[str, Parents] = {
    "one": (-1,),
    "chain": (-1, 0, 1),
    "siblings": (-1, -1, -1),
    "fork": (-1, -1, 0),
    "deep": (-1, -1, 0, 0, 2),
}
# Nine paths of ten tokens each, which begin as a tree: 84 tokens, 75 of which have children.
LARGE: Parents = (*3 * (-1,), *(node for node in range(3) for _ in range(3)), *range(3, 75))


class GivenShape(TreePlan):
    """Trees of one shape, however little of the answer is left."""

    def __init__(self, parents: Parents, drafter: DraftModel, kind: str) -> None:
        super().__init__(TreeOptions(kind, len(parents)), drafter, fixed=True)
        self.parents = parents

    def shape(self, most: int, costs: RoundCosts, others: int = 0) -> Parents:  # noqa: ARG002
        return self.parents


def tree_planner(
    draft: ToyModel, parts: list[Any], parents: Parents, kind: str = "sequoia", lookup: bool = False
) -> Planner:
    """Drafts trees of that shape; with lookup, up to as many looked-up tokens join them."""
    cache = ToyCache()
    parts.append(cache)
    drafter: Any = DraftModel(draft, cache)  # type: ignore[arg-type]
    finds = NgramLookup() if lookup else None
    parts += [finds] if finds else []
    most = len(parents) * (2 if lookup else 1)
    trees = GivenShape(parents, drafter, kind)
    return Planner([Arm(drafter)], finds, most, plain=False, trees=trees)


def tree_over(target: ToyModel, draft: ToyModel, parents: Parents, **how: Any) -> Stack:
    """A target over a draft model that drafts trees."""
    parts: list[Any] = [ToyCache()]
    planner = tree_planner(draft, parts, parents, **how)
    return Stack(Speculative("target", target, parts[0], planner, nothing), parts)  # type: ignore[arg-type]


def tree_below(
    target: ToyModel, middle: ToyModel, draft: ToyModel, parents: Parents, asked: int, **how: Any
) -> Stack:
    """A target over a middle level, of which ``asked`` tokens are asked, over a draft model that drafts trees."""
    parts: list[Any] = [ToyCache(), ToyCache()]
    planner = tree_planner(draft, parts, parents, **how)
    level = Speculative("retrieval", middle, parts[1], planner, nothing)  # type: ignore[arg-type]
    top = Speculative("target", target, parts[0], drafting(level, asked), nothing)  # type: ignore[arg-type]
    return Stack(top, parts)


def captured_tree_over(target: ToyModel, draft: ToyModel, parents: Parents, **how: Any) -> Stack:
    """``tree_over`` where forwards are captured."""
    return tree_over(target.capturing(), draft.capturing(), parents, **how)


def unwaited_tree_below(
    target: ToyModel, middle: ToyModel, draft: ToyModel, parents: Parents, asked: int, **how: Any
) -> Stack:
    """``tree_below`` where nobody waits for the middle level's rounds."""
    return tree_below(target, middle.capturing(), draft.capturing(), parents, asked, **how)


def untouched_residual(draft: Draft, target: Tensor, random: Randomness, _: Tensor | None) -> PathVerdict:
    """After a rejection the next sibling is tested against the target's own distribution again."""
    return _walked(draft, target, random, keep=True)


def with_replacement_rule(draft: Draft, target: Tensor, random: Randomness, _: Tensor | None) -> PathVerdict:
    """Siblings that were drawn without replacement are judged as if each had been drawn from the whole law."""
    first: dict[int, int] = {}
    assert draft.parents is not None
    for node, parent in enumerate(draft.parents):
        first.setdefault(parent, node)
    laws = torch.stack([draft.probs[0, first[parent]] for parent in draft.parents])[None]
    return verify_tree(Draft(draft.tokens, laws, parents=draft.parents), target, random)


def only_the_token_is_lost(draft: Draft, target: Tensor, random: Randomness, _: Tensor | None) -> PathVerdict:
    """After a rejection the target loses that token, not what the draft had given it."""
    return _walked(draft, target, random, keep=False)


def _walked(draft: Draft, target: Tensor, random: Randomness, keep: bool) -> PathVerdict:
    """``verify_tree`` with a residual that stays as it was, or that loses only the rejected token."""
    assert draft.parents is not None
    node, rows, left = -1, [0], target[:, 0]
    while True:
        for child in [at for at, parent in enumerate(draft.parents) if parent == node]:
            token, law = draft.tokens[:, child, None], draft.probs[:, child]
            if int(random.only(child).accepts(left.gather(-1, token), law.gather(-1, token))):
                node = child
                rows.append(child + 1)
                left = target[:, child + 1]
                break
            if not keep:
                left = left.scatter(-1, token, 0)
                left = left / left.sum(-1, keepdim=True)
        else:
            break
    last = random.draw(left)[:, None]
    kept = draft.tokens[:, [row - 1 for row in rows[1:]]]
    count, missing = last.new_tensor([[len(rows) - 1]]), len(draft) + 1 - len(rows)
    numbers = torch.cat([count, kept, last, last.expand(1, missing)], -1)
    return PathVerdict(numbers, last.new_tensor([rows + missing * [rows[-1]]]))


class Joint(Walk):
    """A walk through all outcomes for several sequences at once."""

    def draw(self, weights: Tensor) -> Tensor:
        return torch.cat([super(Joint, self).draw(row[None]) for row in weights])


@dataclass(frozen=True, slots=True, kw_only=True)
class JointVerification(Verification):
    """A verification whose random choices are those of a joint walk."""

    walk: Joint

    @property
    def draws_by_kernels(self) -> bool:
        return False

    def randomness(self, uniforms: Uniforms) -> Randomness:  # noqa: ARG002
        return self.walk


class Batch:
    """Trees of several sequences, each after a prompt of its own, drafted and verified at once."""

    def __init__(
        self,
        target: ToyModel,
        draft: ToyModel,
        trees: Sequence[Parents],
        prompts: Sequence[Context],
        independent: bool,
        executor: Executor,
    ) -> None:
        self.target, self.draft, self.trees, self.prompts = target, draft, trees, prompts
        self.independent, self.executor = independent, executor
        self.walk = Joint()
        self.op = JointVerification(Sampling(1.0), CANDIDATES, walk=self.walk)
        self.room = max(map(len, trees)) + 1

    def context(self, at: int, row: int, ids: Sequence[int]) -> Context:
        """What a row of a tree with these tokens follows, itself included."""
        path = paths(self.trees[at])[row - 1] if row > 0 else ()
        return (*self.prompts[at], *(ids[node] for node in path))

    def logits(self, model: ToyModel, rows: Sequence[Sequence[int]], tokens: Tensor) -> Tensor:
        """After rows of each tree, -1 for any."""
        pairs = enumerate(zip(rows, tokens.tolist(), strict=True))
        return torch.stack(
            [
                torch.stack([model.logits(self.context(at, row, ids)) for row in own])
                for at, (own, ids) in pairs
            ]
        )

    def drafted(self) -> list[Draft]:
        widths = tuple(map(max, zip(*map(widths_of, self.trees), strict=True)))
        how = growths(self.trees, widths, self.room)
        known = torch.zeros(len(self.trees), self.room, dtype=torch.long)
        ends = [0, *accumulate(widths)]

        def feed_depth(depth: int, ids: Tensor) -> Tensor:
            rows = how.rows[:, ends[depth] : ends[depth + 1]]
            for mine, own, new in zip(known, rows.tolist(), ids.tolist(), strict=True):
                for row, token in zip(own, new, strict=True):
                    if row > 0:
                        mine[row - 1] = token
            return self.logits(self.draft, rows.tolist(), known)

        numbers = Uniforms(torch.empty(1, 0), torch.empty(len(self.trees), self.room))
        by = Draws(self.op, None, numbers, self.independent, None, self.draft.vocabulary)
        tokens, probs = grown(how, widths, feed_depth, by)
        return [
            Draft(tokens[at : at + 1, :n], probs[at : at + 1, :n], parents=tree, independent=self.independent)
            for at, (tree, n) in enumerate(zip(self.trees, map(len, self.trees), strict=True))
        ]

    def outcomes(self) -> Iterator[tuple[tuple[Context, ...], float]]:
        """What every sequence commits, with its chance."""
        scripts: list[list[int]] = [[]]
        self.walk.begin([])
        self.verified(self.drafted())  # captures, where that is done: it makes choices, too
        while scripts:
            self.walk.begin(scripts.pop())
            packed = self.verified(self.drafted())
            scripts += [[*prefix, other] for prefix, other in self.walk.open]
            yield tuple(tuple(row[1 : 1 + row[0]]) for row in packed), self.walk.chance

    def verified(self, drafts: Sequence[Draft]) -> list[list[int]]:
        given = []
        for at, draft in enumerate(drafts):
            rows = [self.context(at, row, draft.tokens[0].tolist()) for row in range(len(draft) + 1)]
            logits = torch.stack([self.target.logits(row) for row in rows])[None]
            given.append(SamplerInputs(logits, draft, None))
        packed: list[list[int]] = self.executor.run(self.op, stacked(given), lambda _: None).packed.tolist()
        return packed

    def distribution(self, n: int) -> dict[tuple[Context, ...], float]:
        """Of the first n tokens of all sequences; what a round lacks follows the target."""
        found: dict[tuple[Context, ...], float] = {}
        for made, chance in self.outcomes():
            missing = (
                exact_distribution(self.target, Sampling(1.0), max(0, n - len(own)), (*prompt, *own))
                for own, prompt in zip(made, self.prompts, strict=True)
            )
            for ends in product(*(each.items() for each in missing)):
                key = tuple((*own, *end)[:n] for own, (end, _) in zip(made, ends, strict=True))
                found[key] = found.get(key, 0.0) + chance * prod(share for _, share in ends)
        return found

    def exact(self, n: int) -> dict[tuple[Context, ...], float]:
        """As if each sequence were decoded token by token."""
        each = [exact_distribution(self.target, Sampling(1.0), n, prompt).items() for prompt in self.prompts]
        return {
            tuple(made for made, _ in pairs): prod(share for _, share in pairs) for pairs in product(*each)
        }
