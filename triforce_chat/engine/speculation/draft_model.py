"""A small model that drafts token by token.

If its forwards can be captured, all steps of a draft are one CUDA graph, because launching a step takes longer than
running it; each graph is captured ahead of its use or at the first one. Otherwise the same loop runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import MARGIN, SIZES, USUAL, Graph, Preparation, fitting, pool_of
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward.runner import Forward, feed
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.sampling.executor import SamplerInputs, SamplerOutput, Verification, rounded_up
from triforce_chat.engine.sampling.ops import PenaltyContext, Uniforms
from triforce_chat.engine.sampling.sampler import Sampler

KEPT = 4  # combinations of sampling settings and answer lengths that graphs are kept for


class DraftModel:
    """A ``Drafter``. ``lengths`` are the drafts that are captured as CUDA graphs; other lengths are made of several.

    Without ``lengths``, each draft is one graph.
    """

    name = "draft"

    def __init__(
        self, model: Forward, cache: StreamingCache, lengths: Sequence[int] = (), group: RankGroup = SINGLE
    ) -> None:
        self.model, self.cache, self.lengths, self.group = model, cache, lengths, group
        self.graphs: dict[Hashable, dict[int, DraftGraph]] = {}  # by their last use; then by length
        self.nothing = Draft.empty(model.vocabulary, model.device)
        self.device_side = model.places_on_device

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        if self.device_side:
            n = min(n, seq.known - 1)  # the last n+1 tokens are fed again
        if n < 1:
            return self.nothing
        if self.model.captures:
            return self._replay(seq, n, sampler)
        return (self._ahead if self.device_side else self._step)(seq, n, sampler)

    def _step(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft eagerly; the first forward also feeds what the cache lacks."""

        def feed(ids: Tensor, step: int) -> Tensor:
            return self.model(ids if step else self.cache.pending(seq.tokens, n - 1)[None], self.cache, 1)

        return self._drawn(seq, n, sampler, feed)

    def _ahead(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft by forwards that run together with other sequences'; the host need not know where ``seq`` ends."""
        more = max(seq.slack, 2 * n + 1) + MARGIN
        feed(self.model, self.cache, self.cache.pending(seq.tokens, more))
        offset = seq.length - (self.cache.length + n + 1)

        def fed(ids: Tensor, step: int) -> Tensor:
            given, ahead = (ids, offset + n + step) if step else (seq.read(-n - 1, n + 1), offset)
            return self.model(given, self.cache, 1, ahead)

        return self._drawn(seq, n, sampler, fed)

    def _drawn(
        self, seq: TokenBuffer, n: int, sampler: Sampler, feed: Callable[[Tensor, int], Tensor]
    ) -> Draft:
        def sample(inputs: SamplerInputs, step: int) -> SamplerOutput:  # noqa: ARG001
            probs, packed = sampler.run(inputs)
            return SamplerOutput(probs.clone(), packed)

        penalty = sampler.penalty_context(seq, self.nothing, n)
        return self._agreed(draft_tokens(n, feed, sample, penalty, self.nothing, seq.read_forced(n)))

    def _agreed(self, draft: Draft) -> Draft:
        """All ranks take rank 0's tokens."""
        return Draft(self.group.broadcast_tokens(draft.tokens), draft.probs)

    def _replay(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft n tokens with as few graphs as possible."""
        parts = self._parts(n)
        # A graph that is captured ahead of the next draft writes to twice as many slots as it drafts tokens.
        more = max(seq.slack, n + max(parts[0], *self.lengths, 0) + 1) + MARGIN
        feed(self.model, self.cache, self.cache.pending(seq.tokens, more))
        if len(parts) == 1:
            return self._part(seq, n, sampler)
        ahead, made = seq.fork(seq.slack), []
        for part in parts:
            draft = self._part(ahead, part, sampler)
            made.append(Draft(draft.tokens.clone(), draft.probs.clone()))
            ahead.commit(draft.tokens, part)
            ahead.known += part
        return Draft(
            torch.cat([each.tokens for each in made], 1), torch.cat([each.probs for each in made], 1)
        )

    def _parts(self, n: int) -> list[int]:
        """Lengths of graphs that add up to n tokens, longest first."""
        parts: list[int] = []
        while self.lengths and sum(parts) < n:
            parts.append(max(length for length in self.lengths if length <= n - sum(parts)))
        return parts or [n]

    def _part(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft by one graph; it feeds the last n+1 tokens again, as the cache may hold rejected ones instead."""
        graph = self._graph(seq, n, sampler)
        sampler.fill(graph.uniforms)
        offset = seq.length - (self.cache.length + n + 1)
        return self._agreed(
            graph(
                seq.read(-n - 1, n + 1),
                offset,
                sampler.penalty_context(seq, self.nothing),
                seq.read_forced(n),
            )
        )

    def _graph(self, seq: TokenBuffer, n: int, sampler: Sampler) -> DraftGraph:
        context = sampler.penalty_context(seq, self.nothing)
        room = 0 if context is None else rounded_up(context.tokens.shape[1] + n)
        return self._sized(sampler.op, room, n)

    def _sized(self, op: Verification, room: int, n: int) -> DraftGraph:
        key = op, room
        graphs = self.graphs[key] = self.graphs.pop(key, {})  # now the most recently used
        if len(self.graphs) > KEPT:
            del self.graphs[next(iter(self.graphs))]
        if n not in graphs:
            graphs[n] = DraftGraph(self, n, op, room)
        return graphs[n]

    def longest(self, length: int, n: int) -> int:  # noqa: ARG002
        return n

    def unprepared(self, length: int, n: int, sampler: Sampler) -> list[Preparation]:
        if not self.model.captures or n < 1:
            return []
        # The graphs of the draft, then the forwards that feed what its last verdict and a restart committed.
        answer = sampler.penalized_tokens(length + n)
        room = rounded_up(answer) if answer else 0
        made = self.graphs.get((sampler.op, room), {})
        parts = sorted({*self._parts(n)} - made.keys(), reverse=True)
        drafts = [partial(self._prepare, sampler.op, room, part) for part in parts]
        sizes = sorted({fitting(rows) or rows for rows in range(1, n + 2)})
        return [*drafts, *self._feeding([*sizes, USUAL])]

    def preparations(self, length: int, sampler: Sampler) -> Iterator[Preparation]:
        for n in sorted(self.lengths, reverse=True):
            yield from self.unprepared(length, n, sampler)
        if self.lengths:
            yield from self._feeding([size for size in SIZES if size <= USUAL])

    def _feeding(self, sizes: Sequence[int]) -> list[Preparation]:
        """Captures of the forwards of so many tokens."""
        return [each for rows in sizes for each in self.model.unprepared(self.cache, rows)]

    def _prepare(self, op: Verification, room: int, n: int) -> None:
        slot = self.cache.vacant()
        if slot and slot.start + 2 * n <= slot.storage.capacity:
            self._sized(op, room, n).capture()

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for graphs in self.graphs.values() for each in graphs.values())

    def rollback(self, length: int) -> None:
        self.cache.truncate(length)

    def judged(self, proposed: int, accepted: int) -> None:
        pass


class DraftGraph:
    """The CUDA graph of a draft of n tokens, with its static input buffers."""

    def __init__(self, drafter: DraftModel, n: int, op: Verification, room: int) -> None:
        self.n, self.op, self.nothing = n, op, drafter.nothing
        self.forward = drafter.model.loop(drafter.cache, 2 * n)
        device = drafter.model.device
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            self.ids = torch.zeros(1, n + 1, dtype=torch.long, device=device)
            answer = torch.zeros(1, room, dtype=torch.long, device=device)
            length = torch.zeros(1, dtype=torch.long, device=device)
            last = torch.zeros(1, n, dtype=torch.float64, device=device)
            self.forced = torch.zeros(1, n, dtype=torch.long, device=device) if op.forced else None
        self.penalty = PenaltyContext(answer, length) if room else None
        self.uniforms = Uniforms.empty(1, 0, device)._replace(last=last)
        self.graph: Graph[tuple[Tensor, Tensor]] = Graph(device, drafter.pool)

    def capture(self) -> None:
        """Capture ahead of the first use; overwrites 2n slots after what the cache holds."""
        self.forward.aim(torch.zeros_like(self.ids[:, 0]))
        self.graph.prepare(self._work)

    def __call__(
        self, ids: Tensor, offset: Tensor, penalty: PenaltyContext | None, forced: Tensor | None
    ) -> Draft:
        """Draft after ids [1, n+1], the end of the history; the first goes ``offset`` [1] slots after the cache."""
        self.forward.aim(offset)
        self.ids.copy_(ids)
        if self.penalty is not None and penalty is not None:
            self.penalty.tokens[:, : penalty.tokens.shape[1]] = penalty.tokens
            self.penalty.length.copy_(penalty.length)
        if self.forced is not None and forced is not None:
            self.forced.copy_(forced)
        return Draft(*self.graph(self._work))

    @torch.inference_mode()
    def _work(self) -> tuple[Tensor, Tensor]:
        def feed(ids: Tensor, step: int) -> Tensor:
            return self.forward(ids, self.n + step) if step else self.forward(self.ids, 0)

        def sample(inputs: SamplerInputs, step: int) -> SamplerOutput:
            uniforms = self.uniforms._replace(last=self.uniforms.last[:, step : step + 1])
            return self.op(inputs, self.op.randomness(uniforms))

        draft = draft_tokens(self.n, feed, sample, self.penalty, self.nothing, self.forced)
        return draft.tokens, draft.probs


def draft_tokens(
    n: int,
    feed: Callable[[Tensor, int], Tensor],
    sample: Callable[[SamplerInputs, int], SamplerOutput],
    penalty: PenaltyContext | None,
    nothing: Draft,
    forced: Tensor | None = None,
) -> Draft:
    """The draft loop: n times feed the last token and sample the next one.

    ``feed(ids, step)`` returns logits [B, 1, V]; at step 0 it feeds the end of the history instead of ids. The drafted
    tokens are written after the valid tokens of ``penalty``, which must have room for them. Tokens of ``forced`` [B, n]
    take the place of drawn ones, whose distributions stay as they are.
    """
    tokens: list[Tensor] = []
    rows: list[Tensor] = []
    last = nothing.tokens
    for step in range(n):
        logits = feed(last, step)
        context = None if penalty is None else penalty._replace(length=penalty.length + step)
        given = None if forced is None else forced[:, step : step + 1]
        probs, packed = sample(SamplerInputs(logits, nothing, context, given), step)
        last = packed[:, 1:2].clone()
        if context is not None:
            context.tokens.scatter_(1, context.length[:, None], last)
        tokens.append(last)
        rows.append(probs)
    return Draft(torch.cat(tokens, 1), torch.cat(rows, 1))
