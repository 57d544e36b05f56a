"""Toy stacks whose draft model drafts trees of a given shape, and wrong rules for trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from support.toys import Stack, ToyCache, ToyModel, drafting, nothing
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.branching import PathVerdict, verify_tree
from triforce_chat.engine.sampling.ops import Randomness
from triforce_chat.engine.speculation.arm import Arm
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.lookup import NgramLookup
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.speculative import Speculative
from triforce_chat.engine.speculation.tree_plan import RoundCosts, TreeOptions, TreePlan
from triforce_chat.engine.tree import Parents

SHAPES: dict[str, Parents] = {
    "one": (-1,),
    "chain": (-1, 0, 1),
    "siblings": (-1, -1, -1),
    "fork": (-1, -1, 0),
    "deep": (-1, -1, 0, 0, 2),
}


class GivenShape(TreePlan):
    """Trees of one shape, however little of the answer is left."""

    def __init__(self, parents: Parents, drafter: DraftModel, kind: str) -> None:
        super().__init__(TreeOptions(kind), drafter, fixed=True)
        self.parents = parents

    def shape(self, most: int, costs: RoundCosts) -> Parents:  # noqa: ARG002
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
