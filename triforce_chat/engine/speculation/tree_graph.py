"""Trees that a small model drafts, all levels as one CUDA graph.

A graph serves every tree with as many levels, none of which has more tokens with children than the graph's own: the
shape is one of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import MARGIN, TREE_SIZES, USUAL, Graph, Preparation, fitting, pool_of
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward.loops import LoopForward
from triforce_chat.engine.forward.runner import feed
from triforce_chat.engine.sampling.executor import Verification, rounded_up
from triforce_chat.engine.sampling.ops import PenaltyContext, Uniforms
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftModel
from triforce_chat.engine.speculation.stack_specs import MAX_TREE
from triforce_chat.engine.speculation.tree_draft import Growth, Widths, grown, growth, widths_of
from triforce_chat.engine.tree import Parents, levels

KEPT = 6  # graphs
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MAX_TREE)  # of a graph's levels
Size = tuple[Widths, int]  # of a graph: its levels, and its tokens


class TreeGraphs:
    """The captured drafts of one draft model's trees; the least recently used ones are dropped."""

    def __init__(self, drafter: DraftModel, independent: bool) -> None:
        self.drafter, self.independent = drafter, independent
        self.made: dict[tuple[Verification, int, Widths, int], TreeGraph] = {}  # by their last use

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
        tokens, probs = graph(drafter.cache, seq.read(-fed, fed), offset, parents, penalty, sampler)
        n = len(parents)
        return Draft(tokens[None, :n], probs[None, :n], parents=parents)

    def unprepared(self, parents: Parents, sampler: Sampler, answer: int) -> list[Preparation]:
        """What is to be captured before a tree of that shape can be drafted in an answer of so many tokens."""
        room = rounded_up(answer) if answer else 0
        sizes = sorted({fitting(rows) or rows for rows in range(1, levels(parents) + 2)})
        feeding = self.drafter.feeding([*sizes, USUAL])
        if self._found(sampler.op, room, parents) is not None:
            return feeding
        return [partial(self._capture, sampler.op, room, parents), *feeding]

    def _capture(self, op: Verification, room: int, parents: Parents) -> None:
        graph, cache = self._graph(op, room, parents), self.drafter.cache
        slot = cache.vacant()
        if slot and slot.start + levels(parents) + 1 + sum(graph.widths) <= slot.storage.capacity:
            graph.capture(cache)

    def _found(self, op: Verification, room: int, parents: Parents) -> Size | None:
        """The smallest graph that serves a tree."""
        widths, n = widths_of(parents), len(parents)
        able = [
            key
            for key in self.made
            if key[:2] == (op, room)
            and len(key[2]) == len(widths)
            and key[3] >= n
            and all(has >= needs for has, needs in zip(key[2], widths, strict=True))
        ]
        return min((key[2:] for key in able), key=lambda size: (sum(size[0]), size[1]), default=None)

    def _graph(self, op: Verification, room: int, parents: Parents) -> TreeGraph:
        found = self._found(op, room, parents)
        widths, n = found or (roomy(widths_of(parents)), (fitting(len(parents) + 1, TREE_SIZES) or 0) - 1)
        key, drafter = (op, room, widths, n), self.drafter
        if key not in self.made:
            loop = drafter.model.loop(drafter.cache, len(widths) + 1)
            how = growth(parents, widths, n)
            made = TreeGraph(loop, widths, how, op, room, self.independent, drafter.nothing, self.pool)
            self.made[key] = made
        graph = self.made[key] = self.made.pop(key)
        while len(self.made) > KEPT:
            del self.made[next(iter(self.made))]
        return graph

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for each in self.made.values())


def roomy(widths: Widths) -> Widths:
    """Widths that serve other trees, too, as far as bits suffice."""
    wider = tuple(next(width for width in WIDTHS if width >= each) for each in widths)
    return wider if sum(wider) - 1 <= MAX_TREE else widths


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
        device, fed = nothing.tokens.device, len(widths) + 1
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            self.ids = torch.zeros(1, fed, dtype=torch.long, device=device)
            self.how = Growth(*(each.to(device, copy=True) for each in how))
            answer = torch.zeros(1, room, dtype=torch.long, device=device)
            length = torch.zeros(1, dtype=torch.long, device=device)
            last = torch.zeros(1, len(how.lines) - 1, dtype=torch.float64, device=device)
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
        ids: Tensor,
        offset: Tensor,
        parents: Parents,
        penalty: PenaltyContext | None,
        sampler: Sampler,
    ) -> tuple[Tensor, Tensor]:
        """The tokens and distributions of a tree after ids [1, fed], the first of which goes ``offset`` slots after the
        cache's end."""
        self.forward.aim([cache], offset)
        self.ids.copy_(ids)
        if parents != self.parents:
            for mine, given in zip(self.how, growth(parents, self.widths, self.room), strict=True):
                mine.copy_(given)
            self.parents = parents
        if self.penalty is not None and penalty is not None:
            self.penalty.tokens[:, : penalty.tokens.shape[1]] = penalty.tokens
            self.penalty.length.copy_(penalty.length)
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

        answer, numbers = self.penalty, self.numbers
        return grown(self.how, self.widths, feed_level, self.op, answer, numbers, self.independent)
