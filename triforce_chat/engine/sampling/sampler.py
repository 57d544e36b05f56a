"""Sampling of one answer: its settings, its random numbers, and the position of its first token."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.draft import Draft, TokenBuffer
from triforce_chat.engine.sampling.constraint import Constraint, allowed_in_tree
from triforce_chat.engine.sampling.executor import (
    EagerExecutor,
    Executor,
    SamplerInputs,
    SamplerOutput,
    Verification,
    rounded_up,
)
from triforce_chat.engine.sampling.ops import (
    CANDIDATES,
    PenaltyContext,
    Uniforms,
    penalized,
    warp_fully,
)
from triforce_chat.engine.sampling.options import Sampling

WIDER = 8  # factor on the top-p candidates after a nucleus that did not fit


class Sampler:
    """One sampler serves all levels of a stack, so that drafts and verifications are warped alike.

    ``answer_start`` is the index of the answer's first token in the history, for the repetition penalty. ``done`` is
    the number of its tokens that exist already: the following ones need fresh random numbers. ``forced``: a benchmark
    says what the answer is going to be.
    """

    def __init__(
        self,
        sampling: Sampling,
        answer_start: int = 0,
        done: int = 0,
        executor: Executor | None = None,
        forced: bool = False,
    ) -> None:
        self.sampling, self.answer_start, self.done = sampling, answer_start, done
        self.executor = executor or EagerExecutor()
        self.op = Verification(replace(sampling, seed=None), CANDIDATES, forced)
        self.generator = self._seeded(torch.device("cpu"))

    def verify(
        self, draft: Draft, logits: Tensor, seq: TokenBuffer, constraint: Constraint | None = None
    ) -> SamplerOutput:
        """Verify a draft of n tokens, written in ``seq`` after its end, by logits [B, n+1, V].

        With a ``constraint`` the host waits for the drafted tokens, of a single sequence.
        """
        forced = seq.read_forced(len(draft) + 1)
        allowed = None
        if constraint is not None:
            drafted, vocabulary = draft.tokens[0].tolist(), logits.shape[-1]
            if draft.parents is None:
                rows = constraint.allowed(drafted, vocabulary)
            else:
                rows = allowed_in_tree(constraint, draft.parents, drafted, vocabulary)
            allowed = rows[None].to(logits.device)
        luck = seq.read_luck(len(draft)) if draft.parents is None else None
        return self.run(SamplerInputs(logits, draft, self.penalty_context(seq, draft), forced, allowed), luck)

    def run(self, inputs: SamplerInputs, luck: Tensor | None = None) -> SamplerOutput:
        """Verify; ``luck`` [1, n] are the random numbers of the tests, if they are not drawn."""

        def fill(uniforms: Uniforms) -> None:
            self.fill(uniforms)
            if luck is not None:
                uniforms.tests.copy_(luck)

        return self.executor.run(self.op, inputs, fill)

    def unprepared(self, like: SamplerInputs, length: int, rows: int) -> list[Preparation]:
        """What is to be captured before verifications of ``rows`` rows after ``length`` tokens are one replay.

        ``like``: see ``Executor``.
        """
        return self.executor.unprepared(self.op, like, self.room(length + rows - 1), rows)

    def room(self, end: int) -> int:
        """Tokens of an answer that captured work can penalize, in a history of ``end`` tokens; 0 without a penalty."""
        return rounded_up(end - self.answer_start) if self.sampling.repetition_penalty != 1 else 0

    def penalty_context(self, seq: TokenBuffer, draft: Draft, more: int = 0) -> PenaltyContext | None:
        """The answer in ``seq`` followed by the draft, and room for ``more`` tokens; None without a penalty.

        A tree does not follow it as a whole, so it is left out.
        """
        if self.sampling.repetition_penalty == 1:
            return None
        if draft.parents is not None:
            tokens = seq.ids[:, self.answer_start : seq.known + seq.slack]
            return PenaltyContext(tokens, seq.length - self.answer_start)
        end = seq.known + seq.slack + len(draft) + more
        tokens = seq.ids[:, self.answer_start : end]
        return PenaltyContext(tokens, seq.length - self.answer_start + draft.counted)

    def widen(self) -> None:
        """Search more candidates for top-p nuclei from now on."""
        self.op = replace(self.op, candidates=WIDER * self.op.candidates)

    def fill(self, uniforms: Uniforms) -> None:
        """Draw fresh random numbers; the first draw on another device restarts the generator there."""
        if self.sampling.greedy:
            return
        if self.generator.device != uniforms.last.device:
            self.generator = self._seeded(uniforms.last.device)
        for out in uniforms:
            if out.numel():
                torch.rand(out.shape, generator=self.generator, dtype=out.dtype, device=out.device, out=out)

    @property
    def state(self) -> Tensor:
        """The state of the random number generator; restore it after a draw that was discarded."""
        return self.generator.get_state()

    @state.setter
    def state(self, state: Tensor) -> None:
        self.generator.set_state(state)

    def _seeded(self, device: torch.device) -> torch.Generator:
        generator = torch.Generator(device)
        if self.sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.sampling.seed + self.done)
        return generator

    # Outside of decoding

    def scores(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Logits after the repetition penalty, at least fp32.

        logits: [n, V]; the last row follows all of ``tokens`` [m], the first row follows ``tokens[:m-n+1]``.
        """
        context = None
        if self.sampling.repetition_penalty != 1:
            answer = tokens[None, self.answer_start :]
            length = torch.full((1,), answer.shape[1], device=tokens.device)
            context = PenaltyContext(answer, length)
        return penalized(logits[None], context, None, self.sampling.repetition_penalty)[0]

    def probs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Distributions [n, V] of the next tokens, for the arguments of ``scores``; one-hot at temperature 0.

        Synchronizes with the device.
        """
        return warp_fully(self.scores(logits, tokens), self.sampling)
