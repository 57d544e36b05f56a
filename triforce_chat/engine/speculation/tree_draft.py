"""Drafts that are trees: a small model drafts all tokens of one depth per forward, and lookup adds a branch.

Where its forwards can be captured, a draft is one CUDA graph (``tree_graph.py``); otherwise the loop runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    depth_of,
    depths,
    extended,
    family,
    paths,
)

Widths = tuple[int, ...]  # for each depth from the root's on: its rows with children


class Growth(NamedTuple):
    """How B trees of up to n tokens are drawn, one depth after the other.

    family: their shapes. rows: [B, m], those with children, one depth after the other; -1 where a depth has fewer than
    its width. masks: [B, m, words], which of the rows after the root's each one sees, itself included: see ``bits``.
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
        """How many tokens come before each one on its path: [B, n]."""
        return ((self.lines[:, 1:] < self.lines.shape[1] - 1).sum(-1) - 1).clamp_min(0)


def rows_by_depth(parents: Parents) -> list[list[int]]:
    """The rows with children by their depth, from the root's on."""
    following, deep = children(parents), (0, *depths(parents))
    found: list[list[int]] = [[] for _ in range(depth_of(parents))]
    for row, depth in enumerate(deep):
        if row - 1 in following:
            found[depth].append(row)
    return found


def widths_of(parents: Parents) -> Widths:
    return tuple(map(len, rows_by_depth(parents)))


@lru_cache(maxsize=16)
def growth(parents: Parents, widths: Widths, n: int) -> Growth:
    """The growth of one tree, for these widths, at least its own, and with room for n tokens."""
    rows = [
        row
        for inner, width in zip(rows_by_depth(parents), widths, strict=True)
        for row in (*inner, *(width - len(inner)) * (-1,))
    ]
    seen, lines = torch.zeros(len(rows), max(len(rows) - 1, 1), dtype=torch.bool), paths(parents)
    place = {row: at - 1 for at, row in enumerate(rows) if row > 0}
    for at, row in enumerate(rows):
        if row > 0:
            seen[at, [place[node + 1] for node in lines[row - 1]]] = True
    return Growth(*family(parents, n, len(widths)), torch.tensor(rows)[None], bits(seen)[None])


def growths(trees: Sequence[Parents], widths: Widths, n: int) -> Growth:
    """``growth`` of several trees."""
    each = [growth(parents, widths, n) for parents in trees]
    return Growth(*(torch.cat(parts) for parts in zip(*each, strict=True)))


class Draws(NamedTuple):
    """How the tokens of trees are drawn: without replacement, or independently of one another.

    ``forced`` [B, d]: the tokens that take the place of those drawn at each depth, as of ``verify_tree``; the
    distributions stay as they are.
    """

    op: Verification
    answer: PenaltyContext | None
    numbers: Uniforms
    independent: bool
    forced: Tensor | None
    vocabulary: int


# Draws the children of one depth's rows, given the depth, which of all rows they are, the logits [B, m, V] after them,
# and the tokens [B, n] and distributions [B, n, V] so far.
Draw = Callable[[int, slice, Tensor, Tensor, Tensor], None]


def by_kernels(how: Growth, by: Draws) -> Draw:
    """Three kernels draw the children of one depth where operations launch up to 35; without filters."""
    from triforce_chat.engine import kernels

    sampling, numbers = by.op.sampling, by.numbers.last
    since = None if by.answer is None else kernels.since_written(*by.answer, by.vocabulary)
    drawing = kernels.Drawing(sampling.temperature, numbers, sampling.repetition_penalty, since, by.forced)

    def draw(depth: int, at: slice, logits: Tensor, tokens: Tensor, probs: Tensor) -> None:
        shape = how.links, how.lines, how.rows[:, at]
        kernels.draw_children(logits, drawing, *shape, depth, tokens, probs, by.independent)

    return draw


def by_operations(how: Growth, by: Draws) -> Draw:
    random, sampling = by.op.randomness(by.numbers), by.op.sampling

    def draw(_: int, at: slice, logits: Tensor, tokens: Tensor, probs: Tensor) -> None:
        rows = how.rows[:, at]
        lines = how.lines.gather(1, rows.clamp_min(0)[..., None].expand(-1, -1, how.lines.shape[2]))
        scores = penalized_paths(logits, by.answer, tokens, lines, sampling.repetition_penalty)
        dists = warp(scores, sampling, by.op.candidates)[0]
        given = random, by.numbers, how.family, rows, tokens, probs, by.independent
        draw_children(dists, scores.clone(memory_format=torch.contiguous_format), *given)
        if by.forced is not None:
            tokens.copy_(imposed(by.forced.gather(1, how.deep), tokens))

    return draw


def grown(
    how: Growth, widths: Widths, feed_depth: Callable[[int, Tensor], Tensor], by: Draws
) -> tuple[Tensor, Tensor]:
    """Draw the tokens [B, n] of trees and their distributions [B, n, V], by one forward for each depth with children.

    ``feed_depth`` returns the logits [B, m, V] after a depth's rows, whose ids [B, m] it is given; at the root's these
    mean nothing.
    """
    tokens = how.rows.new_zeros(len(how.rows), how.lines.shape[1] - 1)
    nodes = (how.rows - 1).clamp_min(0)
    draw = (by_kernels if by.op.draws_by_kernels and tokens.is_cuda else by_operations)(how, by)
    probs: Tensor | None = None
    for depth, (first, last) in enumerate(pairwise((0, *accumulate(widths)))):
        logits = feed_depth(depth, tokens.gather(1, nodes[:, first:last]))
        if probs is None:
            kind = torch.promote_types(logits.dtype, torch.float32)
            probs = logits.new_empty(*tokens.shape, by.vocabulary, dtype=kind)
        draw(depth, slice(first, last), logits, tokens, probs)
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
    inner = tuple(row - 1 for rows in rows_by_depth(parents)[1:] for row in rows)
    pending, ends = cache.pending(seq.tokens, len(inner)), [0, *accumulate(widths[1:])]

    def feed_depth(depth: int, ids: Tensor) -> Tensor:
        if not depth:
            return model(pending[None], cache, 1)
        tree = branches(parents, inner[: ends[depth]], ends[depth - 1])
        return model(ids, cache, ids.shape[1], tree=tree)

    numbers = Uniforms(torch.empty(1, 0), torch.empty(1, n, dtype=torch.float64))
    sampler.fill(numbers)
    answer = sampler.penalty_context(seq, drafter.nothing)
    forced = seq.read_forced(len(widths))
    by = Draws(sampler.op, answer, numbers, independent, forced, model.vocabulary)
    tokens, probs = grown(growth(parents, widths, n), widths, feed_depth, by)
    cache.truncate(seq.known)
    return Draft(tokens, probs, parents=parents, independent=independent)


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
