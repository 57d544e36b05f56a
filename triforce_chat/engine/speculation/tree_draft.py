"""Drafts that are trees: a small model drafts a whole level per forward, and lookup adds a branch.

Where its forwards can be captured, all levels are one CUDA graph (``tree_graph.py``); otherwise the loop runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft, TokenBuffer, one_hot
from triforce_chat.engine.sampling.branching import draw_children, penalized_paths
from triforce_chat.engine.sampling.executor import Verification
from triforce_chat.engine.sampling.ops import PenaltyContext, Uniforms, imposed, warp
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.tree import (
    ROOT,
    Family,
    Parents,
    bits,
    branches,
    children,
    depths,
    extended,
    family,
    levels,
    paths,
)

Widths = tuple[int, ...]  # of each level from the root's on: its rows with children


class Growth(NamedTuple):
    """How a tree of up to n tokens is drawn, level by level.

    family: its shape. rows: [m], those with children, one level after the other; -1 where a level has fewer than its
    width. masks: [m], int64, which of the rows after the root's each of them sees, itself included, as bits.
    """

    links: Tensor
    lines: Tensor
    rows: Tensor
    masks: Tensor

    @property
    def family(self) -> Family:
        return Family(self.links, self.lines)

    @property
    def deep(self) -> Tensor:
        """How many tokens come before each one on its path: [n]."""
        return ((self.lines[1:] < len(self.lines) - 1).sum(-1) - 1).clamp_min(0)


def inner_levels(parents: Parents) -> list[list[int]]:
    """The rows with children, from the root's level on."""
    following, deep = children(parents), (0, *depths(parents))
    found: list[list[int]] = [[] for _ in range(levels(parents))]
    for row, depth in enumerate(deep):
        if row - 1 in following:
            found[depth].append(row)
    return found


def widths_of(parents: Parents) -> Widths:
    return tuple(len(level) for level in inner_levels(parents))


@lru_cache(maxsize=16)
def growth(parents: Parents, widths: Widths, n: int) -> Growth:
    """For levels of these widths, at least those of the tree, and room for n tokens."""
    rows = [
        row
        for level, width in zip(inner_levels(parents), widths, strict=True)
        for row in (*level, *(width - len(level)) * (-1,))
    ]
    seen, lines = torch.zeros(len(rows), max(len(rows) - 1, 1), dtype=torch.bool), paths(parents)
    place = {row: at - 1 for at, row in enumerate(rows) if row > 0}
    for at, row in enumerate(rows):
        if row > 0:
            seen[at, [place[node + 1] for node in lines[row - 1]]] = True
    return Growth(*family(parents, n, len(widths)), torch.tensor(rows), bits(seen))


def grown(
    how: Growth,
    widths: Widths,
    feed_level: Callable[[int, Tensor], Tensor],
    op: Verification,
    answer: PenaltyContext | None,
    numbers: Uniforms,
    independent: bool,
    forced: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw the tokens [n] of a tree and their distributions [n, V], by one forward for each level that has children.

    ``feed_level`` returns the logits [m, V] after a level's rows, whose ids [m] it is given; at the root's there are
    none. Children are drawn without replacement, or independently of one another. ``forced`` [d]: the tokens that take
    the place of those drawn at each depth, as of ``verify_tree``; the distributions stay as they are.
    """
    n, random = len(how.lines) - 1, op.randomness(numbers)
    tokens = how.rows.new_zeros(n)
    probs: Tensor | None = None
    for depth, (first, last) in enumerate(pairwise((0, *accumulate(widths)))):
        rows = how.rows[first:last]
        logits = feed_level(depth, tokens[(rows - 1).clamp_min(0)])
        lines = how.lines[rows.clamp_min(0)]
        scores = penalized_paths(logits, answer, tokens, lines, op.sampling.repetition_penalty)
        laws = warp(scores, op.sampling, op.candidates)[0]
        probs = laws.new_zeros(n, laws.shape[1]) if probs is None else probs
        draw_children(
            laws,
            scores.clone(memory_format=torch.contiguous_format),
            random,
            numbers,
            how.family,
            rows,
            tokens,
            probs,
            independent,
        )
        if forced is not None:
            tokens.copy_(imposed(forced[how.deep], tokens))
    assert probs is not None
    return tokens, probs


def grow(
    drafter: DraftModel, seq: TokenBuffer, parents: Parents, sampler: Sampler, independent: bool = False
) -> Draft:
    """Draft a tree of that shape after ``seq``; children are drawn without replacement, or ``independent``.

    What the draft's cache then holds is the history alone: the accepted path is fed again together with the token that
    follows it.
    """
    n, widths = len(parents), widths_of(parents)
    cache, model = drafter.cache, drafter.model
    inner = tuple(row - 1 for level in inner_levels(parents)[1:] for row in level)
    pending, ends = cache.pending(seq.tokens, len(inner)), [0, *accumulate(widths[1:])]

    def feed_level(depth: int, ids: Tensor) -> Tensor:
        if not depth:
            return model(pending[None], cache, 1)[0]
        tree = branches(parents, inner[: ends[depth]], ends[depth - 1])
        return model(ids[None], cache, len(ids), tree=tree)[0]

    numbers = Uniforms(torch.empty(1, 0), torch.empty(1, n, dtype=torch.float64))
    sampler.fill(numbers)
    answer = sampler.penalty_context(seq, drafter.nothing)
    forced = seq.read_forced(len(widths))
    how = growth(parents, widths, n), widths, feed_level, sampler.op, answer, numbers, independent
    tokens, probs = grown(*how, None if forced is None else forced[0])
    cache.truncate(seq.known)
    return Draft(tokens[None], probs[None], parents=parents, independent=independent)


def grafted(draft: Draft, branch: Tensor) -> Draft:
    """The tree with the looked-up tokens ``branch`` [m] as a further path, where they leave those that it has.

    They are certain, and come after all siblings that were drawn.
    """
    assert draft.parents is not None
    ids, wanted = draft.tokens[0].tolist(), branch.tolist()
    node = ROOT
    while wanted:
        same = [each for each in children(draft.parents).get(node, ()) if ids[each] == wanted[0]]
        if not same:
            break
        node = same[0]
        del wanted[0]
    if not wanted:
        return draft
    new = branch[len(branch) - len(wanted) :][None]
    certain = one_hot(new, draft.probs.shape[-1], draft.probs.dtype)
    return replace(
        draft,
        tokens=torch.cat([draft.tokens, new], 1),
        probs=torch.cat([draft.probs, certain], 1),
        parents=extended(draft.parents, node, len(wanted)),
    )
