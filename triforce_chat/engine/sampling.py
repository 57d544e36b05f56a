"""The one place with randomness: the warp from logits to probabilities, acceptance, and drawing.

Only ``Sampler.hear`` waits for what the device computed, and ``law`` and ``warp``, which no level calls.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.message import Message
from triforce_chat.engine.options import Sampling

NUCLEUS_GUESS = 256  # candidates sorted first; a full sort of 49K logits per row costs more than attention
WIDER = 8  # times as many candidates after a nucleus that was wider


class Nucleus:
    """Looks for the tokens that top-p keeps among the ``width`` likeliest of each row.

    Whether they are all among them is for the caller to find out, who may be in no hurry to ask the device.
    """

    def __init__(self, width: int = NUCLEUS_GUESS) -> None:
        self.width = width
        self.whole: Tensor | None = None  # [], whether the last ones were; None: for certain

    def floor(self, probs: Tensor, top_p: float) -> Tensor:
        """The smallest probability inside each row's nucleus: [n, V] -> [n, 1].

        The nucleus is the shortest prefix of the sorted row whose mass reaches ``top_p``.
        """
        width = min(self.width, probs.shape[-1])
        ranked = probs.topk(width, -1).values
        mass = ranked.cumsum(-1)
        self.whole = None if width == probs.shape[-1] else (mass[:, -1] >= top_p).all()
        last = (mass < top_p).sum(-1, keepdim=True).clamp_max(width - 1)
        return ranked.gather(-1, last)

    def widen(self) -> None:
        self.width *= WIDER


class Sampler:
    """Warps and draws for one answer; the same object serves every level, so p and q share one rule.

    ``answer_start`` is the index of the answer's first token in the history (for the repetition penalty),
    ``said`` how many tokens of the answer there are already: what follows them needs fresh random numbers.
    """

    def __init__(self, sampling: Sampling, answer_start: int = 0, said: int = 0) -> None:
        self.sampling = sampling
        self.answer_start, self.said = answer_start, said
        self.nucleus = Nucleus()
        self.cut_short = False  # the nuclei under the number that was read last
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

    def uniforms(self, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
        """Fresh uniforms in [0, 1), made where ``like`` is: the first ones on a device begin its sequence."""
        if self.generator.device != like.device:
            self.generator = self._seeded(like.device)
        return torch.rand(shape, generator=self.generator, dtype=dtype, device=like.device)

    def probs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Distributions of the tokens that follow.

        logits: [n, V]; the last row follows all of ``tokens`` [m], the first row follows ``tokens[:m-n+1]``.
        Returns [n, V], at least fp32, rows sum to 1; at temperature 0 one-hot at the first maximum.
        A nucleus wider than its candidates is cut short, which drafts may be; see ``widened``.
        """
        scores = self.scores(logits, tokens)
        if self.sampling.greedy:
            return one_hot(scores.argmax(-1), scores.shape[-1], scores.dtype)
        return warped(scores, self.sampling, self.nucleus)

    def law(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """``probs`` with every nucleus whole, which takes asking the device."""
        if self.sampling.greedy:
            return self.probs(logits, tokens)
        return warp(self.scores(logits, tokens), self.sampling)

    def next(self, logits: Tensor, tokens: Tensor) -> Draft:
        """One token drawn from what logits [1, V] say follows ``tokens`` [m]."""
        if self.sampling.greedy:
            scores = self.scores(logits, tokens)
            choice = scores.argmax(-1)
            return Draft(choice, one_hot(choice, scores.shape[-1], scores.dtype))
        probs = self.probs(logits, tokens)
        return Draft(self.draw(probs[0])[None], probs)

    def scores(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Logits after the repetition penalty, at least fp32; shapes as in ``probs``."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.sampling.repetition_penalty == 1 else self._penalize(logits, tokens)

    def _penalize(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Touches the answer's few tokens only, not the vocabulary."""
        n, vocabulary = logits.shape
        before = len(tokens) - n + 1
        answer = tokens[self.answer_start :]  # [k]
        at = torch.arange(len(tokens) - len(answer), len(tokens), device=tokens.device)
        first = torch.full((vocabulary,), len(tokens), device=tokens.device)  # where each token came up
        first = first.scatter_reduce_(0, answer, at, "amin")[answer]
        seen = first < torch.arange(before, before + n, device=tokens.device)[:, None]  # [n, k]
        factor, found = self.sampling.repetition_penalty, logits[:, answer]
        damped = torch.where(found > 0, found / factor, found * factor)
        # A token that was said twice is written twice, with the same value.
        return logits.scatter(1, answer.expand(n, -1), torch.where(seen, damped, found))

    def leading(self, p: Tensor, q: Tensor) -> Tensor:
        """How many leading drafted tokens pass ``U < p/q``; shape [].

        p, q: [n], the probabilities of the drafted tokens under the verifying and the drafting distribution.
        One fresh fp32 uniform in [0, 1) per token; the test is strict, so p = 0 never passes.
        """
        if self.sampling.greedy:  # p is 0 or 1
            return (p > 0).cumprod(0).sum()
        return (self.uniforms(p.shape, p, torch.float32) * q < p).cumprod(0).sum()

    def draw(self, weights: Tensor) -> Tensor:
        """One index drawn in proportion to ``weights`` [V] (non-negative, not all zero); shape []."""
        heaviest = weights.argmax()
        if self.sampling.greedy:  # all weight lies on one token
            return heaviest
        cumulative = weights.cumsum(0, dtype=torch.float64)
        level = self.uniforms((1,), weights, torch.float64) * cumulative[-1]
        index = torch.searchsorted(cumulative, level, right=True).clamp_max(len(weights) - 1)
        # Only rounding, of the product to the total or of a parallel sum, leads to an index without weight.
        return torch.where(weights[index] > 0, index, heaviest)[0]

    def read(self, number: Tensor) -> int:
        """A number [] that the device has computed; waits for it."""
        return self.hear(self.tell(number[None]))

    def tell(self, number: Tensor) -> Message:
        """Send a number [1] to the host, and whether the nuclei under it were whole."""
        whole = self.nucleus.whole
        return Message(number if whole is None else torch.cat([number, whole.long()[None]]))

    def hear(self, message: Message) -> int:
        """The number; waits for it."""
        number, *whole = message.read()
        self.cut_short = 0 in whole
        return number

    def widened(self) -> bool:
        """Whether what was read came of nuclei that were cut short; from now on there are more candidates."""
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
        if nucleus.whole is None or bool(nucleus.whole):
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
