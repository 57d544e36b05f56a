"""Runs verifications: dozens of small kernels, which a GPU replays as one CUDA graph.

A graph reads static input buffers: inputs are copied and random numbers are drawn into them before each replay. Drafts
may have any length; graphs have a few sizes, each captured ahead of its use or at the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from triforce_chat.engine.cuda_graph import Graph, Preparation, fitting, pool_of
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.branching import penalized_paths, tokens_before, verify_tree
from triforce_chat.engine.sampling.ops import (
    GREEDY,
    PenaltyContext,
    Randomness,
    Uniforms,
    penalized,
    verify,
    warp,
)
from triforce_chat.engine.sampling.options import Sampling

MOST = 1 << 30  # bytes of static buffers that are kept between answers
LARGE_STEP = 16  # rows between two sizes beyond those of captured forwards
NOT_FINITE = -1
LEAST_ROOM = 2048  # tokens of an answer; each doubling needs another capture


class SamplerInputs(NamedTuple):
    """Everything that the next tokens depend on, except for random numbers."""

    logits: Tensor  # [B, n+1, V]
    draft: Draft  # n tokens per row
    penalty: PenaltyContext | None  # None without a repetition penalty
    forced: Tensor | None = None  # [B, n+1], for ``verify``
    allowed: Tensor | None = (
        None  # [B, n+1, V], bool: the tokens that a constrained answer may have; None: all
    )


class SamplerOutput(NamedTuple):
    """The result of a verification; the next one overwrites it, as graphs share their memory."""

    probs: Tensor  # [B, n+1, V], the warped distributions
    # [B, n+4]: number of tokens to commit, the tokens of ``verify``, number of drafted tokens, and 1 if all is well, 0
    # if a top-p nucleus was cut short, NOT_FINITE if a committed token was drawn from no distribution.
    packed: Tensor
    rows: list[int] | None = (
        None  # of a tree: those that the committed tokens come from; None: the first ones
    )


@dataclass(frozen=True, slots=True)
class Verification:
    """The function from logits and a draft to a verdict; equal instances share a captured graph.

    ``candidates`` is the number of likeliest tokens that are sorted to find a top-p nucleus. With an empty draft this
    is plain sampling of one token.
    """

    sampling: Sampling
    candidates: int
    forced: bool = False  # the inputs say which tokens the output is going to be

    def __call__(self, inputs: SamplerInputs, random: Randomness) -> SamplerOutput:
        draft = inputs.draft
        scores = self._penalized(inputs)
        if inputs.allowed is not None:
            scores = scores.masked_fill(~inputs.allowed, -torch.inf)
        probs, complete = warp(scores, self.sampling, self.candidates)
        if draft.parents is None:
            numbers, rows = verify(draft, probs, random, inputs.forced), None
        else:
            numbers, rows = verify_tree(draft, probs, random)
        if complete is None:
            flag = numbers.new_ones(len(numbers), 1)
        else:
            if draft.count is not None:  # rows after the last drafted token do not matter
                places = torch.arange(complete.shape[-1], device=complete.device)
                complete = complete | (places > draft.count[:, None])
            flag = complete.all(-1, keepdim=True).long()
        finite = self._finite(scores, probs, numbers[:, :1], rows)
        flag = torch.where(finite, flag, NOT_FINITE)
        packed = torch.cat([numbers[:, :1] + 1, numbers[:, 1:], draft.counted[:, None], flag], -1)
        return SamplerOutput(probs, packed, rows)

    def _penalized(self, inputs: SamplerInputs) -> Tensor:
        logits, draft, context, *_ = inputs
        if draft.parents is None or context is None:
            return penalized(logits, context, draft.count, self.sampling.repetition_penalty)
        answer, seen = context.tokens[0, : int(context.length)], tokens_before(draft)
        return penalized_paths(logits[0], answer, seen, self.sampling.repetition_penalty)[None]

    def _finite(self, scores: Tensor, probs: Tensor, accepted: Tensor, rows: list[int] | None) -> Tensor:
        """Whether the model's scores made sense for all committed tokens: [B, 1].

        A row with a score that is no number, or infinite, has no distribution: all of its probabilities are NaN.
        """
        sane = (scores.amax(-1) if self.sampling.greedy else probs[..., 0]).isfinite()
        if rows is not None:
            return sane[:, rows].all(-1, keepdim=True)
        places = torch.arange(sane.shape[-1], device=sane.device)
        return (sane | (places > accepted)).all(-1, keepdim=True)

    def randomness(self, uniforms: Uniforms) -> Randomness:
        return GREEDY if self.sampling.greedy else uniforms


class Executor(Protocol):
    """Runs verifications; ``fill`` draws fresh random numbers into the given uniforms."""

    def run(
        self, op: Verification, inputs: SamplerInputs, fill: Callable[[Uniforms], None]
    ) -> SamplerOutput: ...

    def unprepared(self, op: Verification, like: SamplerInputs, answer: int, rows: int) -> list[Preparation]:
        """What is to be captured before verifications of ``rows`` rows of logits are one replay.

        ``like`` has the shapes and dtypes of the inputs, but for the rows, and no penalty; ``answer`` is the number of
        tokens for a penalty to count, 0 without one.
        """
        ...


class EagerExecutor:
    """Runs each operation as it comes."""

    def run(self, op: Verification, inputs: SamplerInputs, fill: Callable[[Uniforms], None]) -> SamplerOutput:
        rows, n = inputs.draft.tokens.shape
        uniforms = Uniforms.empty(rows, n, inputs.logits.device)
        fill(uniforms)
        return op(inputs, op.randomness(uniforms))

    def unprepared(
        self,
        op: Verification,  # noqa: ARG002
        like: SamplerInputs,  # noqa: ARG002
        answer: int,  # noqa: ARG002
        rows: int,  # noqa: ARG002
    ) -> list[Preparation]:
        return []


def padded(rows: int) -> int:
    """The rows of the graph that takes so many: one of the usual sizes, or of few larger ones."""
    return fitting(rows) or -(-rows // LARGE_STEP) * LARGE_STEP


class GraphExecutor:
    """Replays one CUDA graph per verification and size; the least recently used graphs are dropped."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.made: dict[Hashable, dict[int, StaticVerification]] = {}  # in order of last use; then by rows

    def run(self, op: Verification, inputs: SamplerInputs, fill: Callable[[Uniforms], None]) -> SamplerOutput:
        static = self._static(op, inputs)
        static.copy_in(inputs)
        n = len(inputs.draft)
        fill(Uniforms(static.uniforms.tests[:, :n], static.uniforms.last))
        return static()

    def unprepared(self, op: Verification, like: SamplerInputs, answer: int, rows: int) -> list[Preparation]:
        room, rows = rounded_up(answer) if answer else 0, padded(rows)
        if rows in self.made.get(key_of(op, like, room), {}):
            return []
        return [partial(self._sized, op, like, room, rows)]

    def _static(self, op: Verification, inputs: SamplerInputs) -> StaticVerification:
        rows, penalty = inputs.logits.shape[1], inputs.penalty
        room = 0 if penalty is None else rounded_up(penalty.tokens.shape[1])
        return self._sized(op, inputs, room, padded(rows))

    def _sized(self, op: Verification, like: SamplerInputs, room: int, rows: int) -> StaticVerification:
        key = key_of(op, like, room)
        sizes = self.made[key] = self.made.pop(key, {})  # now the most recently used
        if rows not in sizes:
            sizes[rows] = StaticVerification(op, rows, like, room, self.pool)
            sizes[rows].capture()
            self._forget(key)
        return sizes[rows]

    def _forget(self, but: Hashable) -> None:
        """Drop the least recently used graphs until the others fit, but never those of ``but``."""
        for key in list(self.made):
            if key == but or sum(each.nbytes for each in self._all()) <= self.most:
                break
            del self.made[key]

    def _all(self) -> Iterator[StaticVerification]:
        return chain.from_iterable(sizes.values() for sizes in self.made.values())

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for each in self._all())


def key_of(op: Verification, like: SamplerInputs, room: int) -> Hashable:
    """What the graphs of all sizes have in common."""
    logits = like.logits
    constrained = like.allowed is not None
    return op, len(logits), logits.shape[-1], logits.dtype, like.draft.probs.dtype, room, constrained


class StaticVerification:
    """The CUDA graph of a verification of a fixed number of rows; shorter drafts leave some rows unused."""

    def __init__(
        self, op: Verification, rows: int, like: SamplerInputs, room: int, pool: Callable[[], Any]
    ) -> None:
        logits, draft = like.logits, like.draft
        device, (batch, _, vocabulary) = logits.device, logits.shape
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            # Number of drafted tokens, and of the answer's tokens, in each row.
            self.counts = torch.zeros(2, batch, dtype=torch.long, device=device)
            # Zeros, as unused rows are computed, too.
            answer = torch.zeros(batch, room, dtype=torch.long, device=device)
            self.inputs = SamplerInputs(
                logits.new_zeros(batch, rows, vocabulary),
                Draft(
                    draft.tokens.new_zeros(batch, rows - 1),
                    draft.probs.new_zeros(batch, rows - 1, vocabulary),
                    self.counts[0],
                ),
                PenaltyContext(answer, self.counts[1]) if room else None,
                draft.tokens.new_zeros(batch, rows) if op.forced else None,
                None if like.allowed is None else like.allowed.new_ones(batch, rows, vocabulary),
            )
            self.uniforms = Uniforms.empty(batch, rows - 1, device)
        self.filled: int | None = 0  # the host's number of drafted tokens in ``counts``; None: the device's
        self.op, self.random = op, op.randomness(self.uniforms)
        self.graph: Graph[SamplerOutput] = Graph(device, pool)

    def capture(self) -> None:
        self.graph.prepare(self._work)

    def copy_in(self, inputs: SamplerInputs) -> None:
        logits, draft, penalty, forced, allowed = inputs
        n = len(draft)
        static = self.inputs
        static.logits[:, : n + 1] = logits
        if n + 1 < static.logits.shape[1]:
            # So that unused rows need no more candidates than the others.
            static.logits[:, n + 1 :] = logits[:, -1:]
        if n:
            static.draft.tokens[:, :n] = draft.tokens
            static.draft.probs[:, :n] = draft.probs
        if draft.count is not None:
            self.counts[0], self.filled = draft.count, None
        elif self.filled != n:
            self.counts[0], self.filled = n, n
        if static.penalty is not None and penalty is not None:
            static.penalty.tokens[:, : penalty.tokens.shape[1]] = penalty.tokens
            self.counts[1] = penalty.length
        if static.forced is not None and forced is not None:
            static.forced[:, : n + 1] = forced
        if static.allowed is not None and allowed is not None:
            static.allowed[:, : n + 1] = allowed

    def __call__(self) -> SamplerOutput:
        return self.graph(self._work)

    def _work(self) -> SamplerOutput:
        return self.op(self.inputs, self.random)

    @property
    def nbytes(self) -> int:
        """Bytes of the static buffers and of the resulting distributions."""
        logits = self.inputs.logits
        return logits.nbytes + self.inputs.draft.probs.nbytes + logits.numel() * torch.float32.itemsize


def rounded_up(tokens: int) -> int:
    """Capacity for an answer of that many tokens: a power of two."""
    return max(LEAST_ROOM, 1 << tokens.bit_length())
