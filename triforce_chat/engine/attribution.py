"""Attention attribution: which prompt tokens an answer attended to, found by feeding the answer's tokens again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.events import Retraced
from triforce_chat.engine.forward.attention import causal_tail
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE, RankGroup

ROWS = 32  # tokens fed at a time
BLOCK = 4096  # keys whose logits exist at a time, at least
LOGITS = 1 << 24  # of them on a GPU, where every block takes a dozen launches

Watch = Callable[
    [Tensor, Tensor], None
]  # queries [Hq, n, D], keys [Hkv, S, D], the last n of them the queries' own


class AttributionCache(KVCache):
    """A read-only view of ``source`` that passes each layer's queries and keys to ``watch``.

    The tokens fed must be those that ``source`` holds from position ``start`` on; nothing is written.
    """

    def __init__(self, source: FullCache, start: int, watch: Watch) -> None:
        self.source, self.length, self.watch = source, start, watch

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        view = self.source.storage.view(layer, self.length + q.shape[2])
        self.watch(q[0], view.whole[0][0])
        return view


class SharpAttention:
    """Sums the squared attention weights that each position gets, over all layers, heads and tokens.

    Squaring favours heads that look at few tokens: those are the ones that retrieve something, and a plain sum would
    drown them in the many heads that look at everything a little.
    """

    def __init__(self, positions: int, device: torch.device) -> None:
        self.total = torch.zeros(positions, device=device)

    def __call__(self, queries: Tensor, keys: Tensor) -> None:
        rows = queries.unflatten(0, (keys.shape[0], -1)).flatten(1, 2) * queries.shape[-1] ** -0.5
        norm = torch.full(rows.shape[:2], float("-inf"), device=rows.device)
        for _, logits in blocks(rows, keys, queries.shape[1]):
            norm = torch.logaddexp(norm, logits.logsumexp(-1))
        for start, logits in blocks(rows, keys, queries.shape[1]):
            weights = (logits - norm[:, :, None]).exp_()[:, :, : max(0, len(self.total) - start)]
            self.total[start : start + weights.shape[2]] += weights.square_().sum((0, 1))


def blocks(rows: Tensor, keys: Tensor, n: int) -> Iterator[tuple[int, Tensor]]:
    """Causal fp32 logits of n tokens in blocks of keys: (position of the first key, logits [Hkv, G*n, block]).

    rows: [Hkv, G*n, D], the scaled queries of n tokens times a group of heads; keys: [Hkv, S, D], the last n theirs.
    """
    length = keys.shape[1]
    tail = causal_tail(n, rows.shape[1] // n, torch.float32, rows.device)
    size = max(BLOCK, LOGITS // rows[..., 0].numel()) if rows.is_cuda else BLOCK
    for start in range(0, length, size):
        end = min(start + size, length)
        logits = rows.float() @ keys[:, start:end].transpose(1, 2).float()
        own = max(start, length - n)  # the first key of the new tokens in this block
        if own < end:
            logits[:, :, own - start :] += tail[:, own - (length - n) : end - (length - n)]
        yield start, logits


def attribute(
    target: Runner, full: FullCache, tokens: Tensor, first: int, positions: int, group: RankGroup = SINGLE
) -> Generator[Retraced, None, list[float]]:
    """The summed squared attention that ``tokens[first:]`` paid to each of the first ``positions`` tokens.

    All of ``tokens`` must be in ``full``, which stays unchanged. Costs about one verification per ``ROWS`` tokens; may
    be closed after any of them.
    """
    sharp = SharpAttention(positions, target.device)
    cache = AttributionCache(full, first, sharp)
    while cache.length < len(tokens):
        target.prefill(tokens[cache.length :][:ROWS], cache)
        yield Retraced(cache.length - first, len(tokens) - first)
    weights: list[float] = group.all_reduce_sum(sharp.total).tolist()  # over the heads of all ranks
    return weights
