"""The one place with randomness: the warp from logits to probabilities, acceptance, and drawing.

Only ``Sampler.hear`` waits for what the device computed, and ``law`` and ``warp``, which no level calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.host_copy import Message
from triforce_chat.engine.sampling.executor import (
    DIRECT,
    Chances,
    Desks,
    Drawn,
    Given,
    Said,
    Words,
    Work,
)
from triforce_chat.engine.sampling.options import Sampling

NUCLEUS_GUESS = 256  # candidates sorted first; a full sort of 49K logits per row costs more than attention
WIDER = 8  # times as many candidates after a nucleus that was wider


class Nucleus:
    """Looks for the tokens that top-p keeps among the ``width`` likeliest of each row.

    Whether they are all among them is for the caller to find out, who may be in no hurry to ask the device.
    """

    def __init__(self, width: int = NUCLEUS_GUESS) -> None:
        self.width = width
        self.whole: Tensor | None = None  # [n], whether the last ones were; None: for certain

    def floor(self, probs: Tensor, top_p: float) -> Tensor:
        """The smallest probability inside each row's nucleus: [n, V] -> [n, 1].

        The nucleus is the shortest prefix of the sorted row whose mass reaches ``top_p``.
        """
        width = min(self.width, probs.shape[-1])
        ranked = probs.topk(width, -1).values
        mass = ranked.cumsum(-1)
        self.whole = None if width == probs.shape[-1] else mass[:, -1] >= top_p
        last = (mass < top_p).sum(-1, keepdim=True).clamp_max(width - 1)
        return ranked.gather(-1, last)

    def widen(self) -> None:
        self.width *= WIDER


# Judges a draft [n] under [n+1, V], the law of every place: numbers, with the sampler's own ways to draw them.
Rule = Callable[[Draft, Tensor, "Sampler", Chances], Tensor]


class Sampler:
    """Warps and draws for one answer; the same object serves every level, so p and q share one rule.

    ``answer_start`` is the index of the answer's first token in the history (for the repetition penalty),
    ``said`` how many tokens of the answer there are already: what follows them needs fresh random numbers.
    """

    def __init__(
        self, sampling: Sampling, answer_start: int = 0, said: int = 0, desks: Desks = DIRECT
    ) -> None:
        self.sampling = sampling
        self.answer_start, self.said, self.desks = answer_start, said, desks
        self.law_only = replace(sampling, seed=None)  # whatever else differs between two answers
        self.nucleus = Nucleus()
        self.cut_short = False  # the nuclei under the word that was heard last
        self.generator = self._seeded(torch.device("cpu"))

    def _seeded(self, device: torch.device) -> torch.Generator:
        generator = torch.Generator(device)
        if self.sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.sampling.seed + self.said)
        return generator

    @property
    def state(self) -> Tensor:
        """Which random numbers come next; to be set again where some were drawn in vain."""
        return self.generator.get_state()

    @state.setter
    def state(self, state: Tensor) -> None:
        self.generator.set_state(state)

    def next(self, logits: Tensor, tokens: Tensor) -> Drawn:
        """One token drawn from what logits [1, V] say follows ``tokens`` [m]; its word begins with it.

        A nucleus wider than its candidates is cut short, which drafts may be; see ``widened``.
        """
        nothing = Draft.empty(logits.shape[-1], logits.device)
        return self._made(self._draw_one, "next", logits, nothing, tokens, None)

    def judge(
        self, rule: Rule, draft: Draft, logits: Tensor, tokens: Tensor, spare: Tensor | None = None
    ) -> Drawn:
        """What ``rule`` says of a draft of n tokens, with which ``tokens`` [m] end, under logits [n+1, V].

        Behind those there may be ``spare`` [] tokens more, which do not count. Its word begins with what ``rule``
        returns.
        """
        if draft.count is not None:  # the others are drafted no less
            spare = len(draft) - draft.count + (0 if spare is None else spare)
        return self._made(partial(self._apply, rule), rule, logits, draft, tokens, spare)

    def drawing(self) -> tuple[Hashable, Callable[[Given], Drawn]]:
        """How ``next`` draws, for a graph that draws more than once, and what may not change meanwhile.

        A graph keeps the width of nuclei that it was captured with: what is cut short is a law as well.
        """
        return self.law_only, self._draw_one

    def _made(
        self,
        work: Work,
        kind: Hashable,
        logits: Tensor,
        draft: Draft,
        tokens: Tensor,
        spare: Tensor | None,
    ) -> Drawn:
        law = kind, self.law_only, self.nucleus.width
        answer = self.answer(tokens)
        desk = self.desks.lay(law, work, logits, draft, None if answer is None else Words(answer, spare))
        self.roll(desk.chances)
        return desk()

    def answer(self, tokens: Tensor) -> Tensor | None:
        """What the repetition penalty is about."""
        return None if self.sampling.repetition_penalty == 1 else tokens[self.answer_start :]

    def roll(self, chances: Chances) -> Chances:
        """Fresh uniforms in their place; the first ones on a device begin its sequence."""
        if self.sampling.greedy:
            return chances
        if self.generator.device != chances.last.device:
            self.generator = self._seeded(chances.last.device)
        for out in chances:
            if len(out):
                torch.rand(out.shape, generator=self.generator, dtype=out.dtype, device=out.device, out=out)
        return chances

    # Work: depends on nothing that changes but what is given. A replay does not come through here.

    def _draw_one(self, given: Given) -> Drawn:
        scores = self._penalized(given.logits, given.said, given.draft.count)
        if self.sampling.greedy:
            choice = scores.argmax(-1)
            return self._told(given, choice, one_hot(choice, scores.shape[-1], scores.dtype))
        probs = warped(scores, self.sampling, self.nucleus)
        return self._told(given, self.draw(probs[0], given.chances)[None], probs)

    def _apply(self, rule: Rule, given: Given) -> Drawn:
        probs = self._law(self._penalized(given.logits, given.said, given.draft.count))
        return self._told(given, rule(given.draft, probs, self, given.chances), probs)

    def _told(self, given: Given, numbers: Tensor, probs: Tensor) -> Drawn:
        whole, count = self.nucleus.whole, given.draft.count
        if whole is not None and count is not None:
            whole = whole | (torch.arange(len(whole), device=whole.device) > count)
        flag = numbers.new_ones(1) if whole is None else whole.all().long()[None]
        return Drawn(probs, torch.cat([numbers, flag]))

    def _law(self, scores: Tensor) -> Tensor:
        if self.sampling.greedy:
            return one_hot(scores.argmax(-1), scores.shape[-1], scores.dtype)
        return warped(scores, self.sampling, self.nucleus)

    def _penalized(self, logits: Tensor, said: Said | None, count: Tensor | None = None) -> Tensor:
        """At least fp32. Touches the answer's few tokens only, not the vocabulary.

        Row ``count`` [], or the last, follows all that was said; each before it a token less.
        """
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if said is None:
            return logits
        (n, vocabulary), answer = logits.shape, said.tokens
        at = torch.arange(len(answer), device=logits.device)
        first = torch.full((vocabulary,), len(answer), device=logits.device)  # where each token came up
        first = first.scatter_reduce_(0, answer, at, "amin")[answer]
        # What is behind ``length`` tokens comes up too late for every row.
        missing = (torch.arange(n, device=logits.device) - (n - 1 if count is None else count)).clamp_max(0)
        seen = first < (missing + said.length)[:, None]  # [n, m]
        factor, found = self.sampling.repetition_penalty, logits[:, answer]
        damped = torch.where(found > 0, found / factor, found * factor)
        # A token that was said twice is written twice, with the same value.
        return logits.scatter(1, answer.expand(n, -1), torch.where(seen, damped, found))

    def leading(self, p: Tensor, q: Tensor, chances: Chances) -> Tensor:
        """How many leading drafted tokens pass ``U < p/q``; shape [].

        p, q: [n], the probabilities of the drafted tokens under the verifying and the drafting distribution.
        One fresh fp32 uniform in [0, 1) per token; the test is strict, so p = 0 never passes.
        """
        if self.sampling.greedy:  # p is 0 or 1
            return (p > 0).cumprod(0).sum()
        return (chances.tests * q < p).cumprod(0).sum()

    def draw(self, weights: Tensor, chances: Chances) -> Tensor:
        """One index drawn in proportion to ``weights`` [V] (non-negative, not all zero); shape []."""
        heaviest = weights.argmax()
        if self.sampling.greedy:  # all weight lies on one token
            return heaviest
        cumulative = weights.cumsum(0, dtype=torch.float64)
        level = chances.last * cumulative[-1]
        index = torch.searchsorted(cumulative, level, right=True).clamp_max(len(weights) - 1)
        # Only rounding, of the product to the total or of a parallel sum, leads to an index without weight.
        return torch.where(weights[index] > 0, index, heaviest)[0]

    # What is asked outside of decoding

    def probs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Distributions of the tokens that follow.

        logits: [n, V]; the last row follows all of ``tokens`` [m], the first row follows ``tokens[:m-n+1]``.
        Returns [n, V], at least fp32, rows sum to 1; at temperature 0 one-hot at the first maximum.
        """
        return self._law(self.scores(logits, tokens))

    def law(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """``probs`` with every nucleus whole, which takes asking the device."""
        scores = self.scores(logits, tokens)
        return self._law(scores) if self.sampling.greedy else warp(scores, self.sampling)

    def scores(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Logits after the repetition penalty, at least fp32; shapes as in ``probs``."""
        answer = self.answer(tokens)
        return self._penalized(logits, None if answer is None else Words(answer).counted)

    def tell(self, word: Tensor) -> Message:
        """Send the word of what was drawn to the host."""
        return Message(word)

    def hear(self, message: Message) -> list[int]:
        """The numbers; waits for them."""
        *numbers, whole = message.read()
        self.cut_short = not whole
        return numbers

    def widened(self) -> bool:
        """Whether what was heard came of nuclei that were cut short; from now on there are more candidates."""
        if self.cut_short:
            self.nucleus.widen()
        return self.cut_short


def one_hot(index: Tensor, vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """All mass on one token: index [n] -> [n, V]."""
    zeros = torch.zeros(len(index), vocabulary, dtype=dtype, device=index.device)
    return zeros.scatter_(-1, index[:, None], 1)


def warp(scores: Tensor, sampling: Sampling) -> Tensor:
    """The law of a sampled token (temperature above 0): scores [n, V] -> probs [n, V]."""
    nucleus = Nucleus()
    while True:
        probs = warped(scores, sampling, nucleus)
        if nucleus.whole is None or bool(nucleus.whole.all()):
            return probs
        nucleus.widen()


def warped(scores: Tensor, sampling: Sampling, nucleus: Nucleus) -> Tensor:
    """``warp`` as far as ``nucleus`` reaches."""
    below = scores - scores.amax(-1, keepdim=True)  # the quotient of a tiny temperature must not overflow
    return truncate(torch.softmax(below / sampling.temperature, -1), sampling, nucleus)


def truncate(probs: Tensor, sampling: Sampling, nucleus: Nucleus) -> Tensor:
    """Apply top-k, top-p and min-p to probs [n, V] and renormalize.

    Each filter is a threshold on the unfiltered probability, so equal tokens stay or go together and the
    result does not depend on the order of a sort.
    """
    floors = []
    if 0 < sampling.top_k < probs.shape[-1]:
        floors.append(probs.topk(sampling.top_k, -1).values[:, -1:])
    if sampling.top_p < 1:
        floors.append(nucleus.floor(probs, sampling.top_p))
    if sampling.min_p > 0:
        floors.append(sampling.min_p * probs.amax(-1, keepdim=True))
    if not floors:
        return probs
    kept = torch.where(probs >= torch.cat(floors, -1).amax(-1, keepdim=True), probs, 0)
    return kept / kept.sum(-1, keepdim=True)
