"""Trees that a small model drafts, all levels as one CUDA graph.

A graph serves every tree with as many levels, none of which has more tokens with children than the graph's own: the
shape is one of its inputs. All levels of a graph are equally wide, as more rows cost a small model next to nothing, and
planned trees are no wider: so there is one graph for each number of levels, whatever is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import (
    MARGIN,
    TREE_WIDTHS,
    USUAL,
    Graph,
    Preparation,
    fill,
    fitting,
    pool_of,
)
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward.loops import LoopForward
from triforce_chat.engine.forward.runner import feed
from triforce_chat.engine.sampling.executor import Verification, rounded_up
from triforce_chat.engine.sampling.ops import PenaltyContext, Uniforms
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.stack_specs import MAX_TREE
from triforce_chat.engine.speculation.tree_draft import Draws, Growth, Widths, grown, growth, widths_of
from triforce_chat.engine.tree import Parents, levels

KEPT = 24  # graphs
WIDE = 8  # rows of a graph's level, if a narrower one suffices and bits do


class TreeGraphs:
    """The captured drafts of one draft model's trees of up to ``most`` tokens; the least recently used are dropped."""

    def __init__(self, drafter: DraftModel, most: int, independent: bool) -> None:
        self.drafter, self.most, self.independent = drafter, most, independent
        self.made: dict[tuple[Verification, int, Widths], TreeGraph] = {}  # by their last use

    def draft(self, seq: TokenBuffer, parents: Parents, sampler: Sampler) -> Draft:
        """``grow`` as one graph; nothing where the history is too short."""
        drafter, fed = self.drafter, levels(parents) + 1
        if seq.known < fed:
            return drafter.nothing
        penalty = sampler.penalty_context(seq, drafter.nothing)
        room = 0 if penalty is None else rounded_up(penalty.tokens.shape[1])
        graph = self._graph(sampler.op, room, parents)
        # The capture writes as much as a draft, from the end of the history on.
        more = seq.slack + fed + sum(graph.widths) + MARGIN
        feed(drafter.model, drafter.cache, drafter.cache.pending(seq.tokens, more))
        offset = seq.length - (drafter.cache.length + fed)
        given = seq.read(-fed, fed), offset, parents, penalty, seq.read_forced(fed - 1)
        tokens, probs = graph(drafter.cache, sampler, *given)
        n = len(parents)
        return Draft(tokens[None, :n], probs[None, :n], parents=parents, independent=self.independent)

    def unprepared(self, parents: Parents, sampler: Sampler, answer: int) -> list[Preparation]:
        """What is to be captured before a tree of that shape can be drafted in an answer of so many tokens."""
        room = rounded_up(answer) if answer else 0
        sizes = sorted({fitting(rows) or rows for rows in range(1, levels(parents) + 2)})
        feeding = self.drafter.feeding([*sizes, USUAL])
        if (sampler.op, room, graph_widths(parents)) in self.made:
            return feeding
        return [partial(self._capture, sampler.op, room, parents), *feeding]

    def _capture(self, op: Verification, room: int, parents: Parents) -> None:
        graph, cache = self._graph(op, room, parents), self.drafter.cache
        slot = cache.vacant()
        if slot and slot.start + levels(parents) + 1 + sum(graph.widths) <= slot.storage.capacity:
            graph.capture(cache)

    def _graph(self, op: Verification, room: int, parents: Parents) -> TreeGraph:
        widths, drafter = graph_widths(parents), self.drafter
        key = op, room, widths
        if key not in self.made:
            loop = drafter.model.loop(drafter.cache, len(widths) + 1)
            how = growth(parents, widths, self.most)
            made = TreeGraph(loop, widths, how, op, room, self.independent, drafter.nothing, self.pool)
            self.made[key] = made
        graph = self.made[key] = self.made.pop(key)
        while len(self.made) > KEPT:
            del self.made[next(iter(self.made))]
        return graph

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for each in self.made.values())


def widest(depth: int) -> int:
    """Rows of each level but the root's in the usual graph of so many levels."""
    fits = MAX_TREE // max(1, depth - 1)
    return next(width for width in reversed(TREE_WIDTHS) if width <= min(WIDE, fits))


def graph_widths(parents: Parents) -> Widths:
    """The widths of the graph that drafts a tree: the usual ones, or wider ones as far as bits suffice."""
    own = widths_of(parents)
    wanted = max(own[1:], default=0), widest(len(own))
    width = next(each for each in TREE_WIDTHS if each >= max(wanted))
    below = len(own) - 1
    return (1, *below * (width,)) if below * width <= MAX_TREE else own


class TreeGraph:
    """The CUDA graph of drafts of trees whose levels have up to ``widths`` rows with children, and n tokens in all."""

    def __init__(
        self,
        forward: LoopForward,
        widths: Widths,
        how: Growth,
        op: Verification,
        room: int,
        independent: bool,
        nothing: Draft,
        pool: Callable[[], Any],
    ) -> None:
        self.forward, self.widths, self.op, self.independent = forward, widths, op, independent
        device, fed, self.vocabulary = nothing.tokens.device, len(widths) + 1, nothing.probs.shape[-1]
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            self.ids = torch.zeros(1, fed, dtype=torch.long, device=device)
            self.how = Growth(*(each.to(device, copy=True) for each in how))
            answer = torch.zeros(1, room, dtype=torch.long, device=device)
            length = torch.zeros(1, dtype=torch.long, device=device)
            last = torch.zeros(1, len(how.lines) - 1, dtype=torch.float64, device=device)
            self.forced = torch.zeros(len(widths), dtype=torch.long, device=device) if op.forced else None
        self.penalty = PenaltyContext(answer, length) if room else None
        self.numbers = Uniforms.empty(1, 0, device)._replace(last=last)
        self.parents: Parents = ()  # of the tree that the inputs describe; unknown at first
        self.graph: Graph[tuple[Tensor, Tensor]] = Graph(device, pool)

    def capture(self, cache: StreamingCache) -> None:
        """Capture ahead of the first use; overwrites the slots of a draft after what the cache holds."""
        self.forward.aim_at_nothing(cache)
        self.graph.prepare(self._work)

    def __call__(
        self,
        cache: StreamingCache,
        sampler: Sampler,
        ids: Tensor,
        offset: Tensor,
        parents: Parents,
        penalty: PenaltyContext | None,
        forced: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The tokens and distributions of a tree after ids [1, fed], the first of which goes ``offset`` slots after the
        cache's end."""
        self.forward.aim([cache], offset)
        self.ids.copy_(ids)
        if parents != self.parents:
            for mine, given in zip(self.how, growth(parents, self.widths, self.room), strict=True):
                fill(mine, given)
            self.parents = parents
        if self.penalty is not None and penalty is not None:
            self.penalty.tokens[:, : penalty.tokens.shape[1]] = penalty.tokens
            self.penalty.length.copy_(penalty.length)
        if self.forced is not None and forced is not None:
            self.forced.copy_(forced[0])
        sampler.fill(self.numbers)
        return self.graph(self._work)

    @property
    def room(self) -> int:
        """The most tokens of a tree."""
        return self.numbers.last.shape[1]

    @torch.inference_mode()
    def _work(self) -> tuple[Tensor, Tensor]:
        root, starts = self.ids.shape[1] - 1, [0, *accumulate(self.widths[1:])]

        def feed_level(depth: int, ids: Tensor) -> Tensor:
            if not depth:
                return self.forward(self.ids, 0)[0]
            first, last = starts[depth - 1 : depth + 1]
            masks = self.how.masks[1 + first : 1 + last]
            return self.forward.branch(ids, root + 1 + first, root, depth, masks)

        given = self.op, self.penalty, self.numbers, self.independent, self.forced, self.vocabulary
        return grown(self.how, self.widths, feed_level, Draws(*given))
