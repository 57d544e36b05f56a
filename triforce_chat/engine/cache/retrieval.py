"""The retrieval cache: for each layer and KV head, the chunks of the full cache that recent queries attend to.

TriForce, section 4.1. Layout of the slots: [sinks | selected chunks | tail | new tokens]; the tail is
everything from the last candidate chunk on, so the newest text is always present word for word.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.selection import Policy, select
from triforce_chat.engine.cache.slab import Counted, Slab, View
from triforce_chat.engine.events import Event, RebuildReason, Rebuilt


@dataclass(frozen=True, slots=True)
class Budget:
    """Sizes in tokens."""

    tokens: int = 1024  # what a build keeps: sinks, selected chunks and tail together
    chunk: int = 8
    sinks: int = 16
    tail: int = 64
    stride: int = 128  # new tokens after which the cache is built again
    scratch: int = 64  # room for proposals beyond the stride
    queries: int = 16  # latest tokens whose queries choose

    @property
    def capacity(self) -> int:
        return (
            self.tokens + 2 * self.chunk + self.stride + self.scratch
        )  # sinks and tail end on chunk borders


class FallingAcceptance:
    """Says when proposals are accepted clearly less often than they were (TriForce, section 4.1)."""

    def __init__(self, drop: float = 0.15, patience: int = 24) -> None:
        self.drop, self.patience = drop, patience
        self.usual: float | None = None
        self.reset()

    def reset(self) -> None:
        self.recent, self.tested = 1.0 if self.usual is None else self.usual, 0

    def judged(self, proposed: int, accepted: int) -> None:
        for passed in [True] * accepted + [False] * (accepted < proposed):
            self.tested += 1
            self.recent += 0.1 * (passed - self.recent)
            self.usual = float(passed) if self.usual is None else self.usual + 0.01 * (passed - self.usual)

    def __bool__(self) -> bool:
        return self.tested >= self.patience and self.recent < (self.usual or 0) - self.drop


class RetrievalCache(Counted):
    """A view of ``source`` that is small enough to read quickly; it owns no second truth.

    Tokens that the full cache has verified replace what this cache wrote for them before every use.
    """

    def __init__(
        self, source: FullCache, budget: Budget, policy: Policy, emit: Callable[[Event], None]
    ) -> None:
        self.source, self.budget, self.policy, self.emit = source, budget, policy, emit
        self.slab = Slab(source.shape, budget.capacity)
        self.base = 0  # tokens of the source that the last build covered
        self.filled = 0  # slots that hold them
        self.synced = 0  # tokens up to here hold verified keys and values
        self.due: RebuildReason | None = "first"
        self.falling = FallingAcceptance()
        self.summary: Tensor | None = None  # [layers, Hkv, complete chunks, R]

    def pending(self, tokens: Tensor) -> Tensor:
        due = self.due or self._worn()
        if due:
            self._rebuild(due)
        self._sync()
        return tokens[self.length :]

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> View:  # noqa: ARG002
        return self.slab.write(layer, self._slot(self.length), k, v)

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.synced = min(self.synced, length)
        if length < self.base:
            self.due = self.due or "rewind"
        if self.summary is not None:
            self.summary = self.summary[:, :, : length // self.budget.chunk]

    def judged(self, proposed: int, accepted: int) -> None:
        self.falling.judged(proposed, accepted)

    def _slot(self, position: int) -> int:
        return self.filled + position - self.base

    def _worn(self) -> RebuildReason | None:
        """Only what the source has committed may ask for a rebuild, never a pending proposal."""
        if self.source.length - self.base >= self.budget.stride:
            return "stride"
        return "acceptance" if self.falling and self.source.length > self.base else None

    def _sync(self) -> None:
        """Copy what was verified since the last use."""
        a, b = self.synced, self.source.length
        if b > a:
            slots = slice(self._slot(a), self._slot(b))
            self.slab.keys[:, :, slots] = self.source.slab.keys[:, :, a:b]
            self.slab.values[:, :, slots] = self.source.slab.values[:, :, a:b]
            self.synced = b
            self.length = max(self.length, b)

    def _rebuild(self, reason: RebuildReason) -> None:
        started = time.perf_counter()
        self.due = "rewind"  # until it is complete: an interrupt may come at any line
        total = self.source.length
        first = -(-self.budget.sinks // self.budget.chunk)  # candidate chunks: first .. last-1
        last = max(first, (total - self.budget.tail) // self.budget.chunk)
        room = (self.budget.tokens - self.budget.sinks - self.budget.tail) // self.budget.chunk
        if last - first <= room:
            self.filled = self._keep_all(total)
        else:
            self.filled = self._keep_best(first, last, room, total)
        self.base = self.synced = self.length = total
        self.falling.reset()
        self.due = None
        self.emit(Rebuilt(total, reason, time.perf_counter() - started))

    def _keep_all(self, total: int) -> int:
        self.slab.keys[:, :, :total] = self.source.slab.keys[:, :, :total]
        self.slab.values[:, :, :total] = self.source.slab.values[:, :, :total]
        return total

    def _keep_best(self, first: int, last: int, room: int, total: int) -> int:
        summary = self._summarized(last)[:, :, first:last]
        queries = self.source.recent_queries(self.budget.queries)
        best = first + select(self.policy, queries, summary, room)
        chunk = self.budget.chunk
        sinks, kept, tail = first * chunk, room * chunk, total - last * chunk
        for mine, theirs in (
            (self.slab.keys, self.source.slab.keys),
            (self.slab.values, self.source.slab.values),
        ):
            mine[:, :, :sinks] = theirs[:, :, :sinks]
            gather_chunks(theirs, best, chunk, mine[:, :, sinks : sinks + kept])
            mine[:, :, sinks + kept : sinks + kept + tail] = theirs[:, :, last * chunk : total]
        return sinks + kept + tail

    def _summarized(self, chunks: int) -> Tensor:
        """Summaries of the first ``chunks`` chunks; only new ones are computed."""
        done = 0 if self.summary is None else self.summary.shape[2]
        if done < chunks:
            size = self.budget.chunk
            fresh = self.source.slab.keys[:, :, done * size : chunks * size].unflatten(2, (-1, size))
            made = self.policy.summarize(fresh)
            self.summary = made if self.summary is None else torch.cat([self.summary, made], 2)
        assert self.summary is not None
        return self.summary


def gather_chunks(source: Tensor, chunks: Tensor, size: int, out: Tensor) -> None:
    """Copy chosen chunks: source [layers, Hkv, S, D], chunks [layers, Hkv, n] -> out [layers, Hkv, n*size, D]."""
    whole = source.shape[2] // size * size
    blocks = source[:, :, :whole].unflatten(2, (-1, size))
    for layer, head in torch.cartesian_prod(*map(torch.arange, chunks.shape[:2])).tolist():
        picked = blocks[layer, head].index_select(0, chunks[layer, head])
        out[layer, head] = picked.flatten(0, 1)
