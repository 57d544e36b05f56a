"""Trees that a small model drafts, each draft as one CUDA graph, for one sequence or for several at once.

A graph serves every tree of its depth that nowhere has more tokens with children of one depth than the graph: the
shape is one of its inputs. A graph is equally wide at every depth, as more rows cost a small model next to nothing, and
planned trees are no wider: so there is one graph for each depth, whatever is learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import (
    MARGIN,
    TREE_WIDTHS,
    Graph,
    Preparation,
    fill,
    pool_of,
)
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward.loops import LoopForward
from triforce_chat.engine.forward.runner import feed
from triforce_chat.engine.sampling.executor import Verification, rounded_up
from triforce_chat.engine.sampling.sampler import Sampler
from triforce_chat.engine.speculation.draft_model import DraftInputs, DraftModel, SequenceInputs, split
from triforce_chat.engine.speculation.tree_draft import Draws, Growth, Widths, grown, growths, widths_of
from triforce_chat.engine.tree import ROOT, Parents, depth_of

KEPT = 24  # graphs
WIDE = 8  # rows of a graph at each depth for trees of up to 64 tokens, if a narrower one suffices and there is room
WIDE_SHARE = 8  # of larger trees: so many of their tokens are worth a row at every depth
LARGEST_NARROW = 64  # tokens of a tree up to which all rows with children are bits of one word


class GraphCache:
    """Captured drafts of trees, by what they serve; the least recently used ones are dropped."""

    def __init__(self) -> None:
        self.made: dict[Hashable, TreeGraph] = {}  # by their last use

    def of(self, key: Hashable, make: Callable[[], TreeGraph]) -> TreeGraph:
        """The graph of that key, made if it is missing; it is now the most recently used."""
        graph = self.made[key] = self.made.pop(key) if key in self.made else make()
        while len(self.made) > KEPT:
            del self.made[next(iter(self.made))]
        return graph

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for each in self.made.values())


class TreeGraphs:
    """The captured drafts of one draft model's trees of up to ``most`` tokens."""

    def __init__(self, drafter: DraftModel, most: int, independent: bool) -> None:
        self.drafter, self.most, self.independent = drafter, most, independent
        self.own = GraphCache()

    @property
    def captured(self) -> GraphCache:
        """The graphs of this sequence, or of all sequences of its pool."""
        model = self.drafter.model
        return self.own if model.captures else model.in_common(self.drafter.cache, GraphCache)

    def draft(self, seq: TokenBuffer, parents: Parents, sampler: Sampler) -> Draft:
        """``grow`` as one graph; nothing where the history is too short."""
        drafter, fed = self.drafter, depth_of(parents) + 1
        if seq.known < fed:
            return drafter.nothing
        penalty = sampler.penalty_context(seq, drafter.nothing)
        room = 0 if penalty is None else rounded_up(penalty.tokens.shape[1])
        widths = graph_widths(parents, self.most)
        # The capture writes as much as a draft, from the end of the history on.
        more = seq.slack + fed + sum(widths) + MARGIN
        feed(drafter.model, drafter.cache, drafter.cache.pending(seq.tokens, more))
        offset = seq.length - (drafter.cache.length + fed)
        given = SequenceInputs(
            drafter.cache, seq.read(-fed, fed), offset, penalty, seq.read_forced(fed - 1), sampler.fill
        )
        tokens, probs = self._drafted(sampler.op, room, widths, parents, given)
        n = len(parents)
        return Draft(tokens[:, :n], probs[:, :n], parents=parents, independent=self.independent)

    def _drafted(
        self, op: Verification, room: int, widths: Widths, parents: Parents, given: SequenceInputs
    ) -> tuple[Tensor, Tensor]:
        """The tokens [1, most] and distributions [1, most, V] of a tree, drafted with those of other sequences."""

        def together(each: Sequence[tuple[Parents, SequenceInputs]]) -> list[tuple[Tensor, Tensor]]:
            return split(self._graph(op, room, widths)(each), len(each))

        model = self.drafter.model
        if model.captures:
            return self._graph(op, room, widths)([(parents, given)])
        drafts: tuple[Tensor, Tensor] = model.together(
            self.drafter.cache, ("tree", *self._key(op, room, widths)), together, (parents, given)
        )
        return drafts

    def _key(self, op: Verification, room: int, widths: Widths) -> tuple[Hashable, ...]:
        return op, room, widths, self.most, self.independent

    def unprepared(self, parents: Parents, op: Verification, room: int) -> list[Preparation]:
        """What is to be captured before a tree of that shape can be drafted; ``room``: of the sampler."""
        feeding = self.drafter.feeding()
        widths = graph_widths(parents, self.most)
        if self._key(op, room, widths) in self.captured.made:
            return feeding
        return [partial(self._capture, op, room, widths), *feeding]

    def _capture(self, op: Verification, room: int, widths: Widths) -> None:
        cache = self.drafter.cache
        slot, needed = cache.vacant(), len(widths) + 1 + sum(widths)
        if slot and (not self.drafter.model.captures or slot.start + needed <= slot.storage.capacity):
            self._graph(op, room, widths).capture(cache)

    def _graph(self, op: Verification, room: int, widths: Widths) -> TreeGraph:
        captured, drafter = self.captured, self.drafter

        def made() -> TreeGraph:
            loop = drafter.model.loop(drafter.cache, len(widths) + 1)
            return TreeGraph(
                loop, widths, self.most, op, room, self.independent, drafter.nothing, captured.pool
            )

        return captured.of(self._key(op, room, widths), made)


def rows_for(most: int) -> int:
    """Rows with children below the root's that a graph has room for, where trees have up to ``most`` tokens."""
    return LARGEST_NARROW if most <= LARGEST_NARROW else 2 * most


def widest(depth: int, most: int = LARGEST_NARROW) -> int:
    """Rows at each depth but the root's in the usual graph of that depth for trees of up to ``most`` tokens."""
    wanted = min(max(WIDE, most // WIDE_SHARE), rows_for(most) // max(1, depth - 1))
    return next(width for width in reversed(TREE_WIDTHS) if width <= wanted)


def graph_widths(parents: Parents, most: int = LARGEST_NARROW) -> Widths:
    """The widths of the graph that drafts a tree: the usual ones, or wider ones as far as there is room."""
    own = widths_of(parents)
    wanted = max(own[1:], default=0), widest(len(own), most)
    width = next(each for each in TREE_WIDTHS if each >= max(wanted))
    below = len(own) - 1
    return (1, *below * (width,)) if below * width <= rows_for(most) else own


class TreeGraph:
    """The CUDA graph of drafts of trees with up to ``widths`` rows with children by depth, and ``room`` tokens.

    It drafts a tree for each sequence of ``forward``.
    """

    def __init__(
        self,
        forward: LoopForward,
        widths: Widths,
        most: int,
        op: Verification,
        room: int,
        independent: bool,
        nothing: Draft,
        pool: Callable[[], Any],
    ) -> None:
        self.forward, self.widths, self.most, self.op = forward, widths, most, op
        self.independent, self.vocabulary = independent, nothing.probs.shape[-1]
        device = nothing.tokens.device
        self.inputs = DraftInputs(forward, device, len(widths), most, op, room)
        # Which ``how`` describes; at first chains.
        self.trees: tuple[Parents, ...] = forward.sequences * (tuple(range(ROOT, len(widths) - 1)),)
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            self.how = Growth(*(each.to(device, copy=True) for each in self._growths()))
        self.graph: Graph[tuple[Tensor, Tensor]] = Graph(device, pool)

    def _growths(self) -> Growth:
        return growths(self.trees, self.widths, self.most)

    def capture(self, cache: StreamingCache) -> None:
        """Capture ahead of the first use; a single sequence's overwrites a draft's slots after what its cache holds."""
        self.forward.aim_at_nothing(cache)
        self.graph.prepare(self._work)

    def __call__(self, given: Sequence[tuple[Parents, SequenceInputs]]) -> tuple[Tensor, Tensor]:
        """The tokens [B, most] and distributions [B, most, V] of trees; the first rows are those of ``given``."""
        self.inputs.take([each for _, each in given])
        trees = (*(parents for parents, _ in given), *self.trees[len(given) :])
        if trees != self.trees:
            self.trees = trees
            for mine, new in zip(self.how, self._growths(), strict=True):
                fill(mine, new)
        return self.graph(self._work)

    @torch.inference_mode()
    def _work(self) -> tuple[Tensor, Tensor]:
        given = self.inputs
        root, starts = given.ids.shape[1] - 1, [0, *accumulate(self.widths[1:])]

        def feed_depth(depth: int, ids: Tensor) -> Tensor:
            if not depth:
                return self.forward(given.ids, 0)
            first, last = starts[depth - 1 : depth + 1]
            masks = self.how.masks[:, 1 + first : 1 + last]
            return self.forward.branch(ids, root + 1 + first, root, depth, masks)

        by = Draws(self.op, given.penalty, given.uniforms, self.independent, given.forced, self.vocabulary)
        return grown(self.how, self.widths, feed_depth, by)
