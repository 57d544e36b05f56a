"""Runs verifications: dozens of small kernels, which a GPU replays as one CUDA graph.

A graph reads static input buffers: inputs are copied and random numbers are drawn into them before each replay. Drafts
may have any length; graphs have a few sizes, each captured ahead of its use or at the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from triforce_chat.engine.cuda_graph import SIZES, TREE_SIZES, Graph, Preparation, fill, fitting, pool_of
from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.branching import penalized_paths, verify_tree
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
from triforce_chat.engine.tree import LONGEST_PATH, Family, Parents, families

MOST = 1 << 30  # bytes of static buffers that are kept between answers
LARGE_STEP = 16  # rows between two sizes beyond those that are listed
# Where a verification waits for host memory, unneeded rows cost nothing beside that, but each size that is
# captured in the midst of an answer costs as much as several tokens.
FEW_SIZES = (1, 2, 4, 8, 16, 32, 64)
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
    # if a top-p nucleus was cut short, NOT_FINITE if a committed token was drawn from no distribution; then the rows.
    packed: Tensor
    # Of trees: the rows [B, n+1] that the committed tokens come from, the last one repeated; None: the first ones.
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The function from logits and a draft to a verdict; equal instances share a captured graph.

    ``candidates`` is the number of likeliest tokens that are sorted to find a top-p nucleus. With an empty draft this
    is plain sampling of one token.
    """

    sampling: Sampling
    candidates: int
    forced: bool = False  # the inputs say which tokens the output is going to be

    @property
    def draws_by_kernels(self) -> bool:
        """Whether kernels may draw the tokens of a draft: they know no filters, which sort the vocabulary."""
        return not self.sampling.filters

    def __call__(self, inputs: SamplerInputs, random: Randomness) -> SamplerOutput:
        draft, rows = inputs.draft, None
        scores = self._penalized(inputs)
        if inputs.allowed is not None:
            scores = scores.masked_fill(~inputs.allowed, -torch.inf)
        probs, complete = warp(scores, self.sampling, self.candidates)
        if not draft.branching:
            numbers = verify(draft, probs, random, inputs.forced)
        else:
            numbers, rows = verify_tree(draft, probs, random, inputs.forced)
        if complete is None:
            flag = numbers.new_ones(len(numbers), 1)
        else:
            if draft.count is not None:  # rows after the last drafted token do not matter
                places = torch.arange(complete.shape[-1], device=complete.device)
                complete = complete | (places > draft.count[:, None])
            flag = complete.all(-1, keepdim=True).long()
        finite = self._finite(scores, probs, numbers[:, :1], rows)
        flag = torch.where(finite, flag, NOT_FINITE)
        path = [] if rows is None else [rows]
        packed = torch.cat([numbers[:, :1] + 1, numbers[:, 1:], draft.counted[:, None], flag, *path], -1)
        return SamplerOutput(probs, packed, rows)

    def _penalized(self, inputs: SamplerInputs) -> Tensor:
        logits, draft, context, *_ = inputs
        penalty, shape = self.sampling.repetition_penalty, draft.family
        if shape is None:
            return penalized(logits, context, draft.count, penalty)
        return penalized_paths(logits, context, draft.tokens, shape.lines, penalty)

    def _finite(self, scores: Tensor, probs: Tensor, accepted: Tensor, rows: Tensor | None) -> Tensor:
        """Whether the model's scores made sense for all committed tokens: [B, 1].

        A row with a score that is no number, or infinite, has no distribution: all of its probabilities are NaN.
        """
        sane = (scores.amax(-1) if self.sampling.greedy else probs[..., 0]).isfinite()
        if rows is not None:
            return sane.gather(1, rows).all(-1, keepdim=True)
        places = torch.arange(sane.shape[-1], device=sane.device)
        return (sane | (places > accepted)).all(-1, keepdim=True)

    def randomness(self, uniforms: Uniforms) -> Randomness:
        return GREEDY if self.sampling.greedy else uniforms


class Executor(Protocol):
    """Runs verifications; ``fill`` draws fresh random numbers into the given uniforms."""

    def run(
        self, op: Verification, inputs: SamplerInputs, fill: Callable[[Uniforms], None]
    ) -> SamplerOutput: ...

    def unprepared(self, op: Verification, like: SamplerInputs, room: int, rows: int) -> list[Preparation]:
        """What is to be captured before verifications of ``rows`` rows of logits are one replay.

        ``like`` has the shapes and dtypes of the inputs, but for the rows, and no penalty; ``room``: of the sampler.
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
        room: int,  # noqa: ARG002
        rows: int,  # noqa: ARG002
    ) -> list[Preparation]:
        return []


class GraphExecutor:
    """Replays one CUDA graph per verification and size; the least recently used graphs are dropped.

    ``sizes``: rows of chains that are captured; those of trees are the same everywhere.
    """

    def __init__(self, sizes: Sequence[int] = SIZES, most: int = MOST) -> None:
        self.sizes, self.most = sizes, most
        self.made: dict[Hashable, dict[int, StaticVerification]] = {}  # in order of last use; then by rows

    def run(self, op: Verification, inputs: SamplerInputs, fill: Callable[[Uniforms], None]) -> SamplerOutput:
        static = self._static(op, inputs)
        static.copy_in(inputs)
        n = len(inputs.draft)
        fill(Uniforms(static.uniforms.tests[:, :n], static.uniforms.last))
        return static()

    def unprepared(self, op: Verification, like: SamplerInputs, room: int, rows: int) -> list[Preparation]:
        rows = self._rows(like.draft, rows)
        if rows in self.made.get(key_of(op, like, room), {}):
            return []
        return [partial(self._sized, op, like, room, rows)]

    def _static(self, op: Verification, inputs: SamplerInputs) -> StaticVerification:
        rows, penalty = inputs.logits.shape[1], inputs.penalty
        room = 0 if penalty is None else rounded_up(penalty.tokens.shape[1])
        return self._sized(op, inputs, room, self._rows(inputs.draft, rows))

    def _rows(self, draft: Draft, rows: int) -> int:
        """The rows of the graph that verifies so many: one of the sizes, beyond those a coarser step."""
        sizes = TREE_SIZES if draft.branching else self.sizes
        return fitting(rows, sizes) or -(-rows // LARGE_STEP) * LARGE_STEP

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
    kind = like.allowed is not None, like.draft.branching, like.draft.independent
    return op, len(logits), logits.shape[-1], logits.dtype, like.draft.probs.dtype, room, kind


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
                    shape=empty_trees(batch, rows - 1, device) if draft.branching else None,
                    independent=draft.independent,
                ),
                PenaltyContext(answer, self.counts[1]) if room else None,
                draft.tokens.new_zeros(batch, rows) if op.forced else None,
                None if like.allowed is None else like.allowed.new_ones(batch, rows, vocabulary),
            )
            self.uniforms = Uniforms.empty(batch, rows - 1, device)
        self.filled: int | None = 0  # the host's number of drafted tokens in ``counts``; None: the device's
        self.trees: tuple[Parents, ...] = ()  # the latest
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
        self._shape(draft)
        if static.penalty is not None and penalty is not None:
            static.penalty.tokens[:, : penalty.tokens.shape[1]] = penalty.tokens
            self.counts[1] = penalty.length
        if static.forced is not None and forced is not None:
            static.forced[:, : n + 1] = forced
        if static.allowed is not None and allowed is not None:
            static.allowed[:, : n + 1] = allowed

    def _shape(self, draft: Draft) -> None:
        """Take the shapes of trees; most are those of the last ones."""
        mine = self.inputs.draft.shape
        if mine is None or draft.trees == self.trees:
            return
        for static, given in zip(mine, families(draft.trees, *mine.room), strict=True):
            fill(static, given)
        self.trees = draft.trees

    def __call__(self) -> SamplerOutput:
        return self.graph(self._work)

    def _work(self) -> SamplerOutput:
        return self.op(self.inputs, self.random)

    @property
    def nbytes(self) -> int:
        """Bytes of the static buffers and of the resulting distributions."""
        logits = self.inputs.logits
        return logits.nbytes + self.inputs.draft.probs.nbytes + logits.numel() * torch.float32.itemsize


def empty_trees(trees: int, n: int, device: torch.device) -> Family:
    """The shapes of trees without nodes, with room for up to n in each."""
    return Family(*(each.to(device) for each in families(trees * [()], n, min(n, LONGEST_PATH))))


def rounded_up(tokens: int) -> int:
    """Capacity for an answer of that many tokens: a power of two."""
    return max(LEAST_ROOM, 1 << tokens.bit_length())
