"""Pure functions from logits to tokens: repetition penalty, warping, drawing, and the acceptance rule.

All take tensors with a leading batch dimension B and never synchronize with the device, so that a CUDA graph can hold
them. Random numbers are arguments.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from triforce_chat.engine.draft import FREE, Draft, one_hot
from triforce_chat.engine.sampling.options import Sampling

CANDIDATES = 256  # sorted for top-p; a full sort of 49K logits per row costs more than attention


class Randomness(Protocol):
    """The two random decisions of speculative sampling."""

    def accepts(self, p: Tensor, q: Tensor) -> Tensor:
        """Number of leading drafted tokens that pass: [B].

        p, q: [B, n], the drafted tokens' probabilities under the verifying and the drafting distribution.
        """
        ...

    def draw(self, weights: Tensor) -> Tensor:
        """One index per row, in proportion to weights [B, V] (non-negative, not all zero): [B]."""
        ...

    def rejected(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
        """The same by what the test of p, q [B, 1] has left open, given that it was not passed."""
        ...

    def only(self, i: int) -> Randomness:
        """The decisions on drafted token i alone: for p, q [B, 1], and to draw it where drawn tokens have numbers."""
        ...

    def of(self, row: int) -> Randomness:
        """The decisions on one sequence's tokens alone."""
        ...


class Uniforms(NamedTuple):
    """Uniform random numbers in [0, 1)."""

    tests: Tensor  # [B, n], fp32, one for each drafted token
    last: Tensor  # [B, 1], fp64, for the token after the accepted ones; [B, n] for the tokens of a draft

    @staticmethod
    def empty(rows: int, n: int, device: torch.device) -> Uniforms:
        """Uninitialized tensors, to be filled."""
        tests = torch.empty(rows, n, dtype=torch.float32, device=device)
        return Uniforms(tests, torch.empty(rows, 1, dtype=torch.float64, device=device))

    def only(self, i: int) -> Uniforms:
        return Uniforms(self.tests[:, i : i + 1], self.last[:, i : i + 1])

    def of(self, row: int) -> Uniforms:
        return Uniforms(self.tests[row : row + 1], self.last[row : row + 1])

    def accepts(self, p: Tensor, q: Tensor) -> Tensor:
        """Accept where ``U < p/q``; strictly, so that p = 0 never passes."""
        return (self.tests * q < p).long().cumprod(-1).sum(-1)

    def draw(self, weights: Tensor) -> Tensor:
        """Draw by inverting the cumulative distribution in fp64."""
        cumulative = weights.cumsum(-1, dtype=torch.float64)
        index = torch.searchsorted(cumulative, self.last * cumulative[:, -1:], right=True)
        index = index.clamp_max(weights.shape[-1] - 1)
        # Rounding, of the product to the total or in a parallel sum, may lead to an index without weight.
        heaviest = weights.argmax(-1)
        return torch.where(weights.gather(-1, index)[:, 0] > 0, index[:, 0], heaviest)

    def rejected(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
        """By how far the tested number is above the chance to pass, which is as random."""
        p, q = p.double(), q.double()
        beyond = (self.tests * q - p) / (q - p).clamp_min(torch.finfo(q.dtype).tiny)
        return self._replace(last=beyond.clamp(0, 1)).draw(weights)


class Greedy:
    """Decisions at temperature 0, where all distributions are one-hot: no random numbers are needed."""

    def only(self, i: int) -> Greedy:  # noqa: ARG002
        return self

    def of(self, row: int) -> Greedy:  # noqa: ARG002
        return self

    def accepts(self, p: Tensor, q: Tensor) -> Tensor:  # noqa: ARG002
        return (p > 0).long().cumprod(-1).sum(-1)

    def draw(self, weights: Tensor) -> Tensor:
        return weights.argmax(-1)

    def rejected(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG002
        return weights.argmax(-1)


GREEDY = Greedy()


class PenaltyContext(NamedTuple):
    """The tokens that the repetition penalty applies to: the answer so far with its pending draft."""

    tokens: Tensor  # [B, m]
    length: Tensor  # [B], number of valid tokens in each row


def verify(draft: Draft, target: Tensor, random: Randomness, forced: Tensor | None = None) -> Tensor:
    """The acceptance rule of chains (speculative sampling, arXiv 2211.17192; TriForce, Alg. 1).

    ``verify_tree`` is the same rule where tokens have siblings.

    target: [B, n+1, V], the verifying level's distribution at every drafted position and after the last one. Returns
    [B, n+2]: k, then the k accepted tokens and one recovered token (after a rejection) or bonus token, then n-k
    meaningless numbers. With the first k+1 rows of target these tokens are an exact draft for the level above. Drafted
    tokens from ``draft.count`` on are neither accepted nor rejected.

    ``forced`` [B, n+1], for benchmarks of several stacks on one text: the tokens that the output is going to be, FREE
    where it is drawn as usual. A token drawn from q passes with probability min(1, p/q) and the output is distributed
    as p, so an output y came from an accepted draft with probability min(p(y), q(y)) / p(y) = min(1, q(y)/p(y)). So
    often y is accepted, and otherwise committed as the recovered token; a looked-up token, whose q is one-hot, passes
    if it is y. Where the top level rejects, the levels below were forced along y, too, instead of along a token that it
    would reject: of such wasted work the acceptance and the cost are approximated, and the queries by which chunks may
    be selected. The last token is drawn as usual before y replaces it, so that a forced round takes as long.
    """
    rows, n = draft.tokens.shape
    tokens = draft.tokens if forced is None else imposed(forced[:, :n], draft.tokens)
    accepted = torch.zeros(rows, dtype=torch.long, device=target.device)
    if n:
        index = tokens[..., None]
        p, q = target[:, :n].gather(-1, index)[..., 0], draft.probs.gather(-1, index)[..., 0]
        if forced is not None:
            free = forced[:, :n] == FREE
            p, q = torch.where(free, p, q), torch.where(free, q, p)
        accepted = random.accepts(p, q)
        if draft.count is not None:
            accepted = torch.minimum(accepted, draft.count)
    last = random.draw(remainder(draft, target, accepted))[:, None]
    if forced is not None:
        last = imposed(forced.gather(1, accepted[:, None]), last)
    passed = torch.arange(n, device=target.device) < accepted[:, None]
    return torch.cat([accepted[:, None], torch.where(passed, tokens, last), last], -1)


def imposed(forced: Tensor, drawn: Tensor) -> Tensor:
    """The forced tokens, and the drawn ones where those are FREE; all of the same shape."""
    return torch.where(forced == FREE, drawn, forced)


def remainder(draft: Draft, target: Tensor, accepted: Tensor) -> Tensor:
    """Weights for the token after ``accepted`` [B] drafted ones: a draft of n and target [B, n+1, V] -> [B, V]."""
    p = row_of(target, accepted)
    n = len(draft)
    if not n:
        return p
    q = row_of(draft.probs, accepted.clamp_max(n - 1))
    rejected = accepted < (n if draft.count is None else draft.count)
    return residual(p, torch.where(rejected[:, None], q, 0))  # a bonus token follows the target alone


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The part of p above q: [B, V]; p itself where rounding leaves nothing."""
    rest = (p - q).clamp_min(0)
    return torch.where(rest.amax(-1, keepdim=True) > 0, rest, p)


def row_of(probs: Tensor, index: Tensor) -> Tensor:
    """Row ``index`` [B] of each sequence: [B, n, V] -> [B, V]."""
    return probs.gather(1, index[:, None, None].expand(-1, 1, probs.shape[-1]))[:, 0]


def penalized(logits: Tensor, context: PenaltyContext | None, count: Tensor | None, penalty: float) -> Tensor:
    """Apply the repetition penalty to logits [B, R, V]; returns at least fp32.

    Row ``count`` [B] of a sequence (None: its last row) follows the whole context, each earlier row one token less.
    Reads and writes the logits of the context's tokens only, not of the whole vocabulary.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if context is None:
        return logits
    (rows, n, vocabulary), answer = logits.shape, context.tokens
    m = answer.shape[1]
    at = torch.arange(m, device=logits.device).expand(rows, m)
    first = torch.full(
        (rows, vocabulary), m, device=logits.device
    )  # position of each token's first occurrence
    first = first.scatter_reduce_(1, answer, at, "amin").gather(1, answer)
    last = torch.full((rows,), n - 1, device=logits.device) if count is None else count
    # A token after the context's length occurs too late for every row.
    missing = (torch.arange(n, device=logits.device) - last[:, None]).clamp_max(0)
    seen = first[:, None] < (missing + context.length[:, None])[..., None]  # [B, R, m]
    index = answer[:, None].expand(rows, n, m)
    found = logits.gather(2, index)
    damped = torch.where(found > 0, found / penalty, found * penalty)
    # A token that occurs twice is written twice, with the same value.
    return logits.scatter(2, index, torch.where(seen, damped, found))


def warp(scores: Tensor, sampling: Sampling, candidates: int = CANDIDATES) -> tuple[Tensor, Tensor | None]:
    """Temperature, top-k, top-p and min-p: scores [..., V] -> (probs [..., V], complete [...]).

    ``complete``: whether each row's top-p nucleus lay within the sorted candidates; None if that is certain.
    """
    if sampling.greedy:
        return one_hot(scores.argmax(-1), scores.shape[-1], scores.dtype), None
    below = scores - scores.amax(-1, keepdim=True)  # the quotient of a tiny temperature must not overflow
    return truncate(torch.softmax(below / sampling.temperature, -1), sampling, candidates)


def warp_fully(scores: Tensor, sampling: Sampling) -> Tensor:
    """``warp`` with as many candidates as each nucleus needs; synchronizes with the device."""
    candidates = CANDIDATES
    while True:
        probs, complete = warp(scores, sampling, candidates)
        if complete is None or bool(complete.all()):
            return probs
        candidates *= 8


def truncate(probs: Tensor, sampling: Sampling, candidates: int) -> tuple[Tensor, Tensor | None]:
    """Apply top-k, top-p and min-p to probs [..., V] and renormalize; returns what ``warp`` does.

    Each filter is a threshold on the unfiltered probability, so equal tokens stay or go together and the
    result does not depend on the order of a sort.
    """
    floors, complete = [], None
    if 0 < sampling.top_k < probs.shape[-1]:
        floors.append(probs.topk(sampling.top_k, -1).values[..., -1:])
    if sampling.top_p < 1:
        floor, complete = nucleus_floor(probs, sampling.top_p, candidates)
        floors.append(floor)
    if sampling.min_p > 0:
        floors.append(sampling.min_p * probs.amax(-1, keepdim=True))
    if not floors:
        return probs, None
    kept = torch.where(probs >= torch.cat(floors, -1).amax(-1, keepdim=True), probs, 0)
    return kept / kept.sum(-1, keepdim=True), complete


def nucleus_floor(probs: Tensor, top_p: float, candidates: int) -> tuple[Tensor, Tensor | None]:
    """The smallest probability inside each row's nucleus: [..., V] -> ([..., 1], complete [...]).

    The nucleus is the shortest prefix of the sorted row whose mass reaches ``top_p``; only the likeliest ``candidates``
    are sorted.
    """
    width = min(candidates, probs.shape[-1])
    ranked = probs.topk(width, -1).values
    mass = ranked.cumsum(-1)
    last = (mass < top_p).sum(-1, keepdim=True).clamp_max(width - 1)
    complete = None if width == probs.shape[-1] else mass[..., -1] >= top_p
    return ranked.gather(-1, last), complete
