"""The only acceptance rule in the program (speculative sampling, arXiv 2211.17192; TriForce, Alg. 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.engine.draft import Draft
from triforce_chat.engine.sampling import Sampler


def verify(draft: Draft, target: Tensor, sampler: Sampler) -> Draft:
    """Judge a draft and add one token; the result is distributed exactly as ``target`` demands.

    target: [n+1, V], the verifying level's distribution at every drafted position and behind the last.
    Returns the accepted tokens followed by one recovered (after a rejection) or bonus token, k+1 in all,
    together with target's own rows: what comes out is a faithful draft for the level above.
    """
    n = len(draft)
    index = draft.tokens[:, None]
    p = target[:n].gather(-1, index)[:, 0]
    q = draft.probs.gather(-1, index)[:, 0]
    accepted = sampler.leading(p, q) if n else 0
    weights = target[accepted]
    if accepted < n:
        weights = residual(weights, draft.probs[accepted])
    last = sampler.draw(weights)
    return Draft(torch.cat([draft.tokens[:accepted], last[None]]), target[: accepted + 1])


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What p has above q: [V]; p itself where rounding leaves nothing."""
    rest = (p - q).clamp_min(0)
    return rest if bool(rest.any()) else p
