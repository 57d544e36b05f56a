"""What tokens that are in the full cache attend to, seen by feeding them again; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.storage import KVCache, KVView
from triforce_chat.engine.events import Retraced
from triforce_chat.engine.forward.attention import causal_tail
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE, RankGroup

ROWS = 32  # tokens that are fed at a time
BLOCK = 4096  # keys whose logits exist at a time

Watch = Callable[[Tensor, Tensor], None]  # queries [Hq, n, D], keys [Hkv, S, D]; the last n keys are theirs


class AttributionCache(KVCache):
    """Shows a forward the first tokens of ``source``, and ``watch`` what each layer asks of their keys.

    What is fed must be the tokens that ``source`` holds from position ``at`` on.
    """

    def __init__(self, source: FullCache, at: int, watch: Watch) -> None:
        self.source, self.length, self.watch = source, at, watch

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        view = self.source.storage.view(layer, self.length + q.shape[2])
        self.watch(q[0], view.keys[0, :, : view.length])
        return view


class SharpAttention:
    """Adds up, position by position, the squares of the attention weights of all layers, heads and tokens.

    A square counts for little unless a head looks at few tokens, and such heads are the ones that fetch
    something; the many that look at everything a little would drown them in a plain sum.
    """

    def __init__(self, positions: int, device: torch.device) -> None:
        self.total = torch.zeros(positions, device=device)

    def __call__(self, queries: Tensor, keys: Tensor) -> None:
        rows = queries.unflatten(0, (keys.shape[0], -1)).flatten(1, 2) * queries.shape[-1] ** -0.5
        norm = torch.full(rows.shape[:2], float("-inf"), device=rows.device)
        for _, logits in blocks(rows, keys, queries.shape[1]):
            norm = torch.logaddexp(norm, logits.logsumexp(-1))
        for place, logits in blocks(rows, keys, queries.shape[1]):
            weights = (logits - norm[:, :, None]).exp_()[:, :, : max(0, len(self.total) - place)]
            self.total[place : place + BLOCK] += weights.square_().sum((0, 1))


def blocks(rows: Tensor, keys: Tensor, n: int) -> Iterator[tuple[int, Tensor]]:
    """Causal logits of n tokens in fp32, block by block: the first key's position and [Hkv, G*n, block].

    rows: [Hkv, G*n, D], the queries of n tokens times a group of heads; keys: [Hkv, S, D], the last n theirs.
    """
    length = keys.shape[1]
    tail = causal_tail(n, rows.shape[1] // n, torch.float32, rows.device)
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        logits = rows.float() @ keys[:, start:end].transpose(1, 2).float()
        own = max(start, length - n)  # the first of the new tokens' keys in this block
        if own < end:
            logits[:, :, own - start :] += tail[:, own - (length - n) : end - (length - n)]
        yield start, logits


def attended(
    target: Runner,
    full: FullCache,
    tokens: Tensor,
    first: int,
    positions: int,
    group: RankGroup = SINGLE,
) -> Generator[Retraced, None, list[float]]:
    """How sharply ``tokens[first:]`` attend to each of the first ``positions`` tokens.

    All of ``tokens`` must be in ``full``, which stays as it is. Costs about one verification of every
    ``ROWS`` tokens; may be closed between them.
    """
    sharp = SharpAttention(positions, target.device)
    cache = AttributionCache(full, first, sharp)
    while cache.length < len(tokens):
        target.prefill(tokens[cache.length :][:ROWS], cache)
        yield Retraced(cache.length - first, len(tokens) - first)
    found: list[float] = group.all_reduce_sum(sharp.total).tolist()  # of the heads of all ranks
    return found
