"""StreamingLLM (arXiv 2309.17453): attention sinks and a recent window, positions counted inside the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.engine.cache.storage import KVBuffer, KVView, Shape, WriteSlot

SINKS, WINDOW, HOP = 16, 240, 128  # tokens


class StreamingCache:
    """Covers a history of any length with ``sinks`` first and at least ``window`` latest tokens.

    The window grows by up to ``hop`` tokens; then the cache starts again: the next forward is fed the sinks
    and the latest ``window`` tokens at positions 0, 1, 2, ... So keys never need another rotation, and
    what is stored always equals a fresh encoding of the tokens it holds.
    """

    def __init__(self, shape: Shape, sinks: int = SINKS, window: int = WINDOW, hop: int = HOP) -> None:
        self.sinks, self.window = sinks, window
        self.storage = KVBuffer(shape, sinks + window + hop)
        self.start = sinks  # history[:sinks] and history[start:length] are held
        self.length = 0

    @property
    def position(self) -> int:
        return self.length if self.length <= self.sinks else self.sinks + self.length - self.start

    def ready(self, more: int) -> bool:  # noqa: ARG002
        return True

    def pending(self, tokens: Tensor, more: int = 0) -> Tensor:
        """``more`` tokens may follow them before the window begins again."""
        if self._serves(len(tokens) + more):
            return tokens[self.length :]
        self.length = 0
        self.start = max(self.sinks, len(tokens) - self.window)
        return torch.cat([tokens[: self.sinks], tokens[self.start :]])

    def _serves(self, m: int) -> bool:
        """Whether feeding the rest of m tokens fits, and the window did not shrink to a remnant."""
        fits = min(m, self.sinks) + max(0, m - self.start) <= self.storage.capacity
        remnant = self.start > self.sinks and self.length - self.start < self.window // 2
        return fits and not remnant

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        return self.storage.write(layer, self.position, k, v)

    def write_slot(self) -> WriteSlot | None:
        return WriteSlot(self.storage, self.position)

    def wrote(self, n: int, size: int) -> None:
        pass

    def advance(self, n: int) -> None:
        if self.length == 0 and n > self.sinks:  # the jump from the sinks to the window
            self.length = self.start + n - self.sinks
        else:
            self.length += n

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)
        if self.start > self.sinks and self.length < self.start:
            self.length = 0
            self.start = self.sinks

    def judged(self, proposed: int, accepted: int) -> None:
        pass
