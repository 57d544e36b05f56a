"""The one place with randomness: the warp from logits to probabilities, acceptance, and drawing."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.engine.options import Sampling

NUCLEUS_GUESS = 256  # candidates sorted first; a full sort of 49K logits per row costs more than attention


class Sampler:
    """Warps and draws for one answer; the same object serves every level, so p and q share one rule.

    ``answer_start`` is the index of the answer's first token in the history (for the repetition penalty),
    ``said`` how many tokens of the answer there are already: what follows them needs fresh random numbers.
    """

    def __init__(self, sampling: Sampling, answer_start: int = 0, said: int = 0) -> None:
        self.sampling = sampling
        self.answer_start = answer_start
        self.generator = torch.Generator()
        if sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(sampling.seed + said)

    def probs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Distributions of the tokens that follow.

        logits: [n, V]; the last row follows all of ``tokens`` [m], the first row follows ``tokens[:m-n+1]``.
        Returns [n, V], at least fp32, rows sum to 1; at temperature 0 one-hot at the first maximum.
        """
        scores = self.scores(logits, tokens)
        if self.sampling.greedy:
            return one_hot(scores.argmax(-1), scores.shape[-1], scores.dtype)
        return warp(scores, self.sampling)

    def scores(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Logits after the repetition penalty, at least fp32; shapes as in ``probs``."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.sampling.repetition_penalty == 1 else self._penalize(logits, tokens)

    def _penalize(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Touches the answer's few different tokens only, not the vocabulary."""
        n = logits.shape[0]
        before = len(tokens) - n + 1
        answer = tokens[self.answer_start :]
        ids, which = answer.unique(return_inverse=True)  # [k]
        at = torch.arange(len(tokens) - len(answer), len(tokens), device=tokens.device)
        first = torch.full_like(ids, len(tokens)).scatter_reduce_(0, which, at, "amin")  # where each came up
        seen = first < torch.arange(before, before + n, device=tokens.device)[:, None]  # [n, k]
        factor, found = self.sampling.repetition_penalty, logits[:, ids]
        damped = torch.where(found > 0, found / factor, found * factor)
        return logits.index_copy(1, ids, torch.where(seen, damped, found))

    def leading(self, p: Tensor, q: Tensor) -> int:
        """How many leading drafted tokens pass ``U < p/q``.

        p, q: [n], the probabilities of the drafted tokens under the verifying and the drafting distribution.
        One fresh fp32 uniform in [0, 1) per token; the test is strict, so p = 0 never passes.
        """
        u = torch.rand(p.shape, generator=self.generator, dtype=torch.float32).to(p.device)
        return int((u * q < p).long().cumprod(0).sum())

    def draw(self, weights: Tensor) -> Tensor:
        """One index drawn in proportion to ``weights`` [V] (non-negative, not all zero); shape []."""
        if self.sampling.greedy:  # all weight lies on one token
            return weights.argmax()
        cumulative = weights.double().cumsum(0)
        u = torch.rand((), generator=self.generator, dtype=torch.float64).to(weights.device)
        # A weightless index never comes first above u; the clamp guards u * total rounding up to total.
        index = torch.searchsorted(cumulative, u * cumulative[-1], right=True)
        return torch.minimum(index, weights.nonzero()[-1, 0])


def one_hot(index: Tensor, vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """All mass on one token: index [n] -> [n, V]."""
    zeros = torch.zeros(len(index), vocabulary, dtype=dtype, device=index.device)
    return zeros.scatter_(-1, index[:, None], 1)


def warp(scores: Tensor, sampling: Sampling) -> Tensor:
    """The law of a sampled token (temperature above 0): scores [n, V] -> probs [n, V]."""
    below = scores - scores.amax(-1, keepdim=True)  # the quotient of a tiny temperature must not overflow
    return truncate(torch.softmax(below / sampling.temperature, -1), sampling)


def truncate(probs: Tensor, sampling: Sampling) -> Tensor:
    """Apply top-k, top-p and min-p to probs [n, V] and renormalize.

    Each filter is a threshold on the unfiltered probability, so equal tokens stay or go together and the
    result does not depend on the order of a sort.
    """
    floor = torch.zeros_like(probs[:, :1])
    if 0 < sampling.top_k < probs.shape[-1]:
        floor = torch.maximum(floor, probs.topk(sampling.top_k, -1).values[:, -1:])
    if sampling.top_p < 1:
        floor = torch.maximum(floor, nucleus_floor(probs, sampling.top_p))
    if sampling.min_p > 0:
        floor = torch.maximum(floor, sampling.min_p * probs.amax(-1, keepdim=True))
    kept = torch.where(probs >= floor, probs, 0)
    return kept / kept.sum(-1, keepdim=True)


def nucleus_floor(probs: Tensor, top_p: float) -> Tensor:
    """The smallest probability inside each row's nucleus: [n, V] -> [n, 1].

    The nucleus is the shortest prefix of the sorted row whose mass reaches ``top_p``.
    """
    vocabulary = probs.shape[-1]
    width = min(NUCLEUS_GUESS, vocabulary)
    while True:
        ranked = probs.topk(width, -1).values
        mass = ranked.cumsum(-1)
        if width == vocabulary or bool((mass[:, -1] >= top_p).all()):
            break
        width = min(width * 8, vocabulary)
    last = (mass < top_p).sum(-1, keepdim=True).clamp(max=width - 1)
    return ranked.gather(-1, last)
