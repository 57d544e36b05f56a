"""A small model that drafts token by token.

If its forwards can be captured, all steps of a draft are one CUDA graph, because launching a step takes longer than
running it; each graph is captured ahead of its use or at the first one. Otherwise the same loop runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import FEEDING, MARGIN, Graph, Preparation, pool_of
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.forward.forward import Forward
from triforce_chat.engine.forward.loops import LoopForward
from triforce_chat.engine.forward.runner import feed, joined
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.sampling.batched import penalty_of
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
        self.own = DraftGraphs()
        self.nothing = Draft.empty(model.vocabulary, model.device)
        self.device_side = model.places_on_device

    def propose(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        if self.device_side:
            n = min(n, seq.known - 1)  # the last n+1 tokens are fed again
        if n < 1:
            return self.nothing
        return (self._replay if self.device_side else self._step)(seq, n, sampler)

    def _step(self, seq: TokenBuffer, n: int, sampler: Sampler) -> Draft:
        """Draft eagerly; the first forward also feeds what the cache lacks."""

        def feed(ids: Tensor, step: int) -> Tensor:
            return self.model(ids if step else self.cache.pending(seq.tokens, n - 1)[None], self.cache, 1)

        def sample(inputs: SamplerInputs, step: int) -> SamplerOutput:  # noqa: ARG001
            probs, packed, _ = sampler.run(inputs)
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
        offset = seq.length - (self.cache.length + n + 1)
        penalty = sampler.penalty_context(seq, self.nothing)
        given = SequenceInputs(
            self.cache, seq.read(-n - 1, n + 1), offset, penalty, seq.read_forced(n), sampler.fill
        )
        room = 0 if penalty is None else rounded_up(penalty.tokens.shape[1] + n)
        if self.model.captures:
            return self._agreed(Draft(*self._graph(sampler.op, room, n)([given])))
        run = partial(self._together, sampler.op, room, n)
        return Draft(*self.model.together(self.cache, (sampler.op, room, n), run, given))

    def _together(
        self, op: Verification, room: int, n: int, given: Sequence[SequenceInputs]
    ) -> list[tuple[Tensor, Tensor]]:
        return split(self._graph(op, room, n)(given), len(given))

    @property
    def graphs(self) -> DraftGraphs:
        """The graphs of this sequence, or of all sequences of its pool."""
        return self.own if self.model.captures else self.model.in_common(self.cache, DraftGraphs)

    def _graph(self, op: Verification, room: int, n: int) -> DraftGraph:
        graphs = self.graphs
        made = graphs.of(op, room)
        if n not in made:
            made[n] = DraftGraph(self.model.loop(self.cache, 2 * n), self.nothing, n, op, room, graphs.pool)
        return made[n]

    def longest(self, length: int, n: int) -> int:  # noqa: ARG002
        return n

    def unprepared(self, length: int, n: int, sampler: Sampler) -> list[Preparation]:
        if not self.device_side or n < 1:
            return []
        room = sampler.room(length + n)
        made = self.graphs.made.get((sampler.op, room), {})
        parts = sorted({*self._parts(n)} - made.keys(), reverse=True)
        return [*(partial(self._prepare, sampler.op, room, part) for part in parts), *self.feeding()]

    def preparations(self, length: int, sampler: Sampler) -> Iterator[Preparation]:
        for n in sorted(self.lengths, reverse=True):
            yield from self.unprepared(length, n, sampler)

    def feeding(self) -> list[Preparation]:
        """Captures of the forwards by which the cache is brought up to date, after a restart or any verdict."""
        return [each for rows in reversed(FEEDING) for each in self.model.unprepared(self.cache, rows)]

    def _prepare(self, op: Verification, room: int, n: int) -> None:
        slot = self.cache.vacant()
        if slot and (not self.model.captures or slot.start + 2 * n <= slot.storage.capacity):
            self._graph(op, room, n).capture(self.cache)

    def rollback(self, length: int) -> None:
        self.cache.truncate(length)

    def judged(self, proposed: int, accepted: int) -> None:
        pass


def split(drafts: tuple[Tensor, Tensor], count: int) -> list[tuple[Tensor, Tensor]]:
    """The tokens and distributions of the first ``count`` sequences, in memory of their own."""
    tokens, probs = drafts
    return [*zip(tokens.clone().split(1), probs.clone().split(1), strict=True)][:count]


class SequenceInputs(NamedTuple):
    """What one sequence drafts after; the shapes are those of a single sequence."""

    cache: StreamingCache
    ids: Tensor  # [1, n+1], the end of the history
    offset: Tensor  # [1], slots from the end of the cache to the first of them
    penalty: PenaltyContext | None
    forced: Tensor | None  # [1, n]
    fill: Callable[[Uniforms], None]  # draws its random numbers


class DraftGraphs:
    """Captured drafts, by sampling settings and length; the least recently used settings are dropped."""

    def __init__(self) -> None:
        self.made: dict[Hashable, dict[int, DraftGraph]] = {}  # by their last use; then by length

    def of(self, op: Verification, room: int) -> dict[int, DraftGraph]:
        """The graphs of one setting, now the most recently used; ``room``: tokens of an answer for a penalty."""
        graphs = self.made[op, room] = self.made.pop((op, room), {})
        if len(self.made) > KEPT:
            del self.made[next(iter(self.made))]
        return graphs

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for graphs in self.made.values() for each in graphs.values())


class DraftInputs:
    """Static inputs of captured drafts: a row for each sequence of ``forward``.

    Every draft feeds the last token and ``depth`` before it, and draws ``numbers`` random numbers.
    """

    def __init__(
        self,
        forward: LoopForward,
        device: torch.device,
        depth: int,
        numbers: int,
        op: Verification,
        room: int,
    ) -> None:
        self.forward, rows = forward, forward.sequences
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            self.ids = torch.zeros(rows, depth + 1, dtype=torch.long, device=device)
            answer = torch.zeros(rows, room, dtype=torch.long, device=device)
            length = torch.zeros(rows, dtype=torch.long, device=device)
            last = torch.zeros(rows, numbers, dtype=torch.float64, device=device)
            self.forced = torch.zeros(rows, depth, dtype=torch.long, device=device) if op.forced else None
        self.penalty = PenaltyContext(answer, length) if room else None
        self.uniforms = Uniforms.empty(rows, 0, device)._replace(last=last)

    def take(self, given: Sequence[SequenceInputs]) -> None:
        """Fill the first rows."""
        count = len(given)
        self.forward.aim([each.cache for each in given], joined([each.offset for each in given]))
        self.ids[:count] = joined([each.ids for each in given])
        if self.penalty is not None:
            context = penalty_of([each.penalty for each in given if each.penalty is not None])
            self.penalty.tokens[:count, : context.tokens.shape[1]] = context.tokens
            self.penalty.length[:count] = context.length
        if self.forced is not None:
            self.forced[:count] = joined([each.forced for each in given if each.forced is not None])
        for row, each in enumerate(given):
            each.fill(self.uniforms.of(row))


class DraftGraph:
    """The CUDA graph of drafts of n tokens by each sequence of ``forward``."""

    def __init__(
        self,
        forward: LoopForward,
        nothing: Draft,
        n: int,
        op: Verification,
        room: int,
        pool: Callable[[], Any],
    ) -> None:
        self.n, self.op, self.forward = n, op, forward
        device, rows = nothing.tokens.device, forward.sequences
        self.inputs = DraftInputs(forward, device, n, n, op, room)
        with torch.inference_mode(False):
            self.nothing = Draft(nothing.tokens.expand(rows, 0), nothing.probs.expand(rows, -1, -1))
        self.graph: Graph[tuple[Tensor, Tensor]] = Graph(device, pool)

    def capture(self, cache: StreamingCache) -> None:
        """Capture ahead of the first use; a single sequence's overwrites 2n slots after what its cache holds."""
        self.forward.aim_at_nothing(cache)
        self.graph.prepare(self._work)

    def __call__(self, given: Sequence[SequenceInputs]) -> tuple[Tensor, Tensor]:
        """The drafted tokens [B, n] and distributions [B, n, V]; the first rows are those of ``given``."""
        self.inputs.take(given)
        return self.graph(self._work)

    @torch.inference_mode()
    def _work(self) -> tuple[Tensor, Tensor]:
        return self._by_kernels() if self.op.draws_by_kernels else self._by_operations()

    def _by_kernels(self) -> tuple[Tensor, Tensor]:
        """Two kernels draw a token where operations launch thirty; without filters, which sort the vocabulary."""
        from triforce_chat.engine import kernels

        sampling, (rows, _, vocabulary) = self.op.sampling, self.nothing.probs.shape
        given, penalty = self.inputs, sampling.repetition_penalty
        since = None if given.penalty is None else kernels.since_written(*given.penalty, vocabulary)
        how = kernels.Drawing(sampling.temperature, given.uniforms.last, penalty, since, given.forced)
        tokens = given.ids.new_empty(rows, self.n)
        probs = self.nothing.probs.new_empty(rows, self.n, vocabulary)
        last = given.ids
        for step in range(self.n):
            logits = self.forward(last, self.n + step if step else 0)
            kernels.draw_token(logits[:, 0], how, step, tokens, probs)
            last = tokens[:, step : step + 1]
        return tokens, probs

    def _by_operations(self) -> tuple[Tensor, Tensor]:
        given = self.inputs

        def feed(ids: Tensor, step: int) -> Tensor:
            return self.forward(ids, self.n + step) if step else self.forward(given.ids, 0)

        def sample(inputs: SamplerInputs, step: int) -> SamplerOutput:
            return self.op(inputs, self.op.randomness(given.uniforms.only(step)))

        draft = draft_tokens(self.n, feed, sample, given.penalty, self.nothing, given.forced)
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
        probs, packed, _ = sample(SamplerInputs(logits, nothing, context, given), step)
        last = packed[:, 1:2].clone()
        if context is not None:
            context.tokens.scatter_(1, context.length[:, None], last)
        tokens.append(last)
        rows.append(probs)
    return Draft(torch.cat(tokens, 1), torch.cat(rows, 1))
