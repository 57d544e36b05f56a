"""Verifications of several sequences as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.draft import FREE, Draft
from triforce_chat.engine.gathered import Gathering, Task
from triforce_chat.engine.sampling.executor import Executor, SamplerInputs, SamplerOutput, Verification
from triforce_chat.engine.sampling.ops import PenaltyContext, Uniforms

FIRST = (False, 0, 0)  # order of verifications: they are cheap, and their logits last until the next forward


class SequenceInputs(NamedTuple):
    """What one sequence verifies; ``fill`` draws its random numbers, see ``Executor``."""

    inputs: SamplerInputs
    fill: Callable[[Uniforms], None]


class BatchedExecutor:
    """An ``Executor`` for one of several sequences, whose verifications by ``executor`` run together.

    Drafts of different lengths are padded, trees of different shapes with unreachable nodes, and every sequence
    has random numbers of its own generator, so each gets the tokens that it would get alone. Batches have at least
    ``rows`` rows, so that one CUDA graph serves any number of them; unused rows cost their arithmetic only.
    """

    def __init__(self, executor: Executor, gathering: Gathering, rows: int = 1) -> None:
        self.executor, self.gathering, self.rows = executor, gathering, rows

    def run(self, op: Verification, inputs: SamplerInputs, fill: Callable[[Uniforms], None]) -> SamplerOutput:
        draft = inputs.draft
        like = inputs.logits.shape[-1], inputs.logits.dtype, inputs.forced is None, inputs.allowed is None
        alike = op, bool(len(draft)), draft.branching, draft.independent, *like
        made: SamplerOutput = self.gathering.done(
            Task(FIRST, alike, partial(self._together, op), SequenceInputs(inputs, fill), lasting=True)
        )
        return made

    def unprepared(self, op: Verification, like: SamplerInputs, room: int, rows: int) -> list[Preparation]:
        logits, draft, *_ = like
        tokens, probs = draft.tokens.expand(self.rows, -1), draft.probs.expand(self.rows, -1, -1)
        nothing = replace(draft, tokens=tokens, probs=probs)
        several = like._replace(logits=logits.expand(self.rows, -1, -1), draft=nothing)
        return self.executor.unprepared(op, several, room, rows)

    def _together(self, op: Verification, given: Sequence[SequenceInputs]) -> list[SamplerOutput]:
        def fill(uniforms: Uniforms) -> None:
            for place, each in enumerate(given):
                tests = uniforms.tests[place : place + 1, : len(each.inputs.draft)]
                each.fill(Uniforms(tests, uniforms.last[place : place + 1]))

        unused = (self.rows - len(given)) * [given[0].inputs]
        inputs = stacked([*(each.inputs for each in given), *unused])
        made = self.executor.run(op, inputs, fill)
        mine = zip(*(part.clone().split(1) for part in made if part is not None), strict=True)
        return [SamplerOutput(*each) for each in mine][: len(given)]


def stacked(inputs: Sequence[SamplerInputs]) -> SamplerInputs:
    """The inputs of sequences, all with or all without trees and each optional part, as those of one batch."""
    drafts = [each.draft for each in inputs]
    n = max(len(draft) for draft in drafts)
    ragged = any(draft.count is not None or len(draft) < n for draft in drafts)
    penalties = [each.penalty for each in inputs if each.penalty is not None]
    forced = [each.forced for each in inputs if each.forced is not None]
    allowed = [each.allowed for each in inputs if each.allowed is not None]
    return SamplerInputs(
        # Rows after the last drafted token look like the one before, so that they need no more candidates.
        rows_of([each.logits for each in inputs], n + 1, None),
        Draft(
            rows_of([draft.tokens for draft in drafts], n, 0),
            rows_of([draft.probs for draft in drafts], n, 0),
            torch.cat([draft.counted for draft in drafts]) if ragged else None,
            forest=tuple(tree for draft in drafts for tree in draft.trees),
            independent=drafts[0].independent,
        ),
        penalty_of(penalties) if penalties else None,
        rows_of(forced, n + 1, FREE) if forced else None,
        rows_of(allowed, n + 1, 1) if allowed else None,
    )


def penalty_of(each: Sequence[PenaltyContext]) -> PenaltyContext:
    room = max(context.tokens.shape[1] for context in each)
    tokens = rows_of([context.tokens for context in each], room, 0)
    return PenaltyContext(tokens, torch.cat([context.length for context in each]))


def rows_of(parts: Sequence[Tensor], width: int, pad: int | None) -> Tensor:
    """Parts [1, m, ...] of different lengths m one below the other: [B, width, ...].

    What is missing is filled with ``pad``, or with the part's last row if that is None.
    """
    pieces: list[Tensor] = []
    for part in parts:
        missing = width - part.shape[1]
        pieces.append(part[0])
        if missing:
            last = part[0, -1:] if pad is None else part.new_full((1, *part.shape[2:]), pad)
            pieces.append(last.expand(missing, *part.shape[2:]))
    joined = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    return joined.view(len(parts), width, *parts[0].shape[2:])
