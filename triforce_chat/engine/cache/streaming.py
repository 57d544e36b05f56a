"""StreamingLLM (arXiv 2309.17453): attention sinks and a recent window, with positions counted inside the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from triforce_chat.engine.cache.eviction import SINKS, WINDOW
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import FEEDING

HOP = 128  # tokens
LONG_HOP = 256  # the same where trees or long proposals are drafted, whose tokens all need room at once
ROOM = 64  # further tokens up to which all count as part of the window


class StreamingCache(KVCache):
    """Covers a history of any length by its first ``sinks`` and at least its latest ``window`` tokens.

    The window grows by up to ``hop`` tokens. Then the cache restarts: the next forward is fed the sinks and the
    latest ``window`` tokens at positions 0, 1, 2, ... So no key ever needs another rotation, and the stored keys and
    values always equal a fresh encoding of the tokens they belong to. The tokens of a large tree have ``scratch`` slots
    beyond that: a small model may know no longer histories, and where a tree is wide its positions are few.
    """

    def __init__(
        self,
        shape: Shape,
        sinks: int = SINKS,
        window: int = WINDOW,
        hop: int = HOP,
        buffer: Callable[[Shape, int], KVBuffer] = KVBuffer,
        scratch: int = 0,
    ) -> None:
        self.sinks, self.window, self.scratch = sinks, window, scratch
        self.storage = buffer(shape, sinks + window + hop + scratch)
        self.start = sinks  # the cache holds history[:sinks] and history[start:length]
        self.length = 0

    @property
    def position(self) -> int:
        return self.length if self.length <= self.sinks else self.sinks + self.length - self.start

    def pending(self, tokens: Tensor, more: int = 0) -> Tensor:
        """See ``KVCache``; leaves room for ``more`` further tokens before the next restart."""
        if self._fits(len(tokens) + more - min(self.scratch, max(0, more - ROOM))):
            return tokens[self.length :]
        self.length = 0
        self.start = max(self.sinks, len(tokens) - self.window)
        return torch.cat([tokens[: self.sinks], tokens[self.start :]])

    def _fits(self, m: int) -> bool:
        """Whether m tokens fit beside the scratch without a restart, and rollbacks have left at least half a window."""
        fits = min(m, self.sinks) + max(0, m - self.start) <= self.storage.capacity - self.scratch
        remnant = self.start > self.sinks and self.length - self.start < self.window // 2
        return fits and not remnant

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        return self.storage.write(layer, self.position, k, v)

    def write_slot(self) -> WriteSlot | None:
        return WriteSlot(self.storage, self.position, sizes=FEEDING)

    def reach(self, n: int) -> int:
        if self.length == 0 and n > self.sinks:  # a restart: the history between sinks and window is skipped
            return self.start + n - self.sinks
        return self.length + n

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)
        if self.start > self.sinks and self.length < self.start:
            self.length = 0
            self.start = self.sinks
