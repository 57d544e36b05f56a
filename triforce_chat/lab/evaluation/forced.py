"""What each level says at every position of a text that is already there (teacher forcing)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.forward.forward import Forward
from triforce_chat.engine.speculation.lookup import CUTOFF, NgramLookup, longest_match


def forced(model: Forward, cache: KVCache, history: Tensor, n: int) -> Tensor:
    """Logits [n, V] of the last n tokens of history [m], in one forward of n rows.

    The cache covers the tokens before the one that precedes them, and is put back there.
    """
    logits = model(cache.pending(history[:-1])[None], cache, n)[0]
    cache.truncate(len(history) - n - 1)
    return logits


def drafted(model: Forward, cache: StreamingCache, history: Tensor, n: int) -> Tensor:
    """Logits [n, V] of the last n tokens as a drafter has them that is fed token by token from a fresh cache.

    Between two restarts of the cache all tokens go in one forward: each row reads just what it would alone.
    """
    rows, at = [], len(history) - n  # the next row predicts history[at]
    while at < len(history):
        fed = cache.pending(history[:at])
        room = cache.storage.capacity - cache.position - len(fed)
        more = history[at : min(at + room, len(history) - 1)]
        rows.append(model(torch.cat([fed, more])[None], cache, 1 + len(more))[0].clone())
        at += 1 + len(more)
    return torch.cat(rows)


@dataclass(frozen=True, slots=True)
class Lookups:
    """What lookup predicts for each of n tokens."""

    tokens: Tensor  # [n]; 0 where it knows nothing
    match: Tensor  # [n], length of the match
    proposed: Tensor  # [n], whether it trusts the match enough to propose


def looked_up(history: Tensor, n: int) -> Lookups:
    """Lookup's predictions for the last n tokens of history [m], one token ahead each, learning as it goes."""
    known, lookup = history.cpu(), NgramLookup()
    tokens, match = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
    proposed = torch.zeros(n, dtype=torch.bool)
    for row, at in enumerate(range(len(known) - n, len(known))):
        place, length = longest_match(known[:at].numpy())
        if length:
            tokens[row], match[row] = known[place], length
            proposed[row] = lookup.survival(length, 1)[0] >= CUTOFF
            lookup.learn(length, int(known[place] == known[at]), 1)
    device = history.device
    return Lookups(tokens.to(device), match.to(device), proposed.to(device))
