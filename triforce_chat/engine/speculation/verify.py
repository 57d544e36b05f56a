"""The only acceptance rule in the program (speculative sampling, arXiv 2211.17192; TriForce, Alg. 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling.executor import Chances
from triforce_chat.engine.sampling.sampler import Sampler


def verify(draft: Draft, target: Tensor, sampler: Sampler, chances: Chances) -> Tensor:
    """Judge a draft of n tokens and add one; the result is distributed exactly as ``target`` demands.

    target: [n+1, V], the verifying level's distribution at every drafted position and behind the last.
    Returns [n+2] without waiting for anything: k, the k accepted tokens followed by one recovered (after a
    rejection) or bonus token, and n-k numbers of no meaning. Together with target's first k+1 rows the tokens
    are a faithful draft for the level above. Where fewer than n tokens count, what is behind them counts for nothing.
    """
    n = len(draft)
    accepted = torch.zeros((), dtype=torch.long, device=target.device)
    if n:
        index = draft.tokens[:, None]
        p, q = target[:n].gather(-1, index)[:, 0], draft.probs.gather(-1, index)[:, 0]
        accepted = sampler.leading(p, q, chances)
        if draft.count is not None:
            accepted = torch.minimum(accepted, draft.count)
    last = sampler.draw(remainder(draft, target, accepted), chances)
    passed = torch.arange(n, device=target.device) < accepted
    return torch.cat([accepted[None], torch.where(passed, draft.tokens, last), last[None]])


def remainder(draft: Draft, target: Tensor, accepted: Tensor) -> Tensor:
    """What the token behind ``accepted`` [] ones is drawn from: a draft of n, target [n+1, V] -> [V]."""
    p = target.index_select(0, accepted[None])[0]
    n = len(draft)
    if not n:
        return p
    q = draft.probs.index_select(0, accepted[None].clamp_max(n - 1))[0]
    drafted = accepted < (n if draft.count is None else draft.count)
    return residual(p, torch.where(drafted, q, 0))  # a bonus token has no rival


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What p has above q: [V]; p itself where rounding leaves nothing."""
    rest = (p - q).clamp_min(0)
    return torch.where(rest.amax() > 0, rest, p)
