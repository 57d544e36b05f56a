"""A full cache that forgets, so that a history of any length fits: lossy, and never slower than when it is full."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from triforce_chat.engine.cache.chunk_mass import chunk_mass
from triforce_chat.engine.cache.eviction import Eviction
from triforce_chat.engine.cache.full import QUERY_WINDOW, FullCache
from triforce_chat.engine.cache.selection import best
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import SIZES

# Queries that are weighed at once: their weights take memory. A GPU would wait for so many launches.
BLOCK, GPU_BLOCK = 64, 256


class EvictingCache(FullCache):
    """Covers a history of any length by at most ``eviction.keep`` of its tokens, and those of a round.

    It forgets before a token is fed whose index in the history is a multiple of the step, if it is full by then, and
    no forward goes beyond the next such token, its ``limit``. So what a token sees depends on the tokens before it
    alone, never on drafts or on how rounds and prefills were cut: plain decoding over such a cache is a model of its
    own, relative to which speculation is exact. What was forgotten does not come back: when the history is cut to less
    than it was then, the cache is empty.
    """

    evicts = True

    def __init__(
        self,
        shape: Shape,
        eviction: Eviction,
        frequencies: Tensor,
        slack: int,
        storage: Callable[[Shape, int], KVStorage] = KVBuffer,
    ) -> None:
        """``frequencies`` [D/2]: of the model's rotary embedding. ``slack``: slots for tokens of a round."""
        super().__init__(shape, eviction.keep + slack, queries_of(eviction), storage)
        self.eviction, self.frequencies, self.weighs = eviction, frequencies, eviction.weighs
        self.settled = 0  # tokens of the history up to which tokens were weighed and forgotten
        slots = eviction.keep if eviction.weighs else 0
        # The attention that each token got, by all queries up to ``settled``.
        self.paid = torch.zeros(shape.layers, shape.kv_heads, slots, device=shape.device)

    @property
    def position(self) -> int:
        return self.held if self.eviction.renumbers else self.length

    @property
    def limit(self) -> int:
        step = self.eviction.step
        return (self.length // step + 1) * step

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:
        self._require_within_step(k.shape[2])
        return super().update(layer, q, k, v)

    def wrote(self, n: int, size: int) -> None:
        self._require_within_step(n)
        super().wrote(n, size)

    def _require_within_step(self, n: int) -> None:
        if self.length + n > self.limit:
            raise ValueError(f"a forward from token {self.length} on crosses token {self.limit}")

    def kept(self, length: int) -> int:
        return min(length, self.eviction.keep)

    def make_room(self) -> None:
        length, held, position = self.length, self.held, self.position
        if length % self.eviction.step or length <= self.settled:
            return
        self.length = 0  # an interrupt may come at any line: it leaves an empty cache
        if self.eviction.weighs:
            self._weigh(length - self.settled, held, position)
        if held + self.eviction.step > self.eviction.keep:
            self._forget(held)
            held = self.eviction.left
            self.queries.forget()  # they are of other positions
            for observer in self.observers:
                observer.truncate(0)
        self.settled, self.forgotten = length, length - held
        self.length = length

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values where they are kept: [Hkv, capacity, D] each."""
        slot = self.storage.slot(0)
        assert slot, "tokens can only be moved where each has a slot of its own"
        return slot.storage.layer(layer)

    def _weigh(self, n: int, held: int, position: int) -> None:
        """Add the attention of the n queries that have passed since the last time, all of them committed."""
        most = GPU_BLOCK if self.shape.device.type == "cuda" else BLOCK
        for layer in range(self.shape.layers):
            queries = self.queries.since(layer, position - n, n)
            keys = self.slots(layer)[0]
            for first in range(0, n, most):
                block = queries[:, first : first + most]
                end = held - n + first + block.shape[1]
                paid = chunk_mass(block, keys[:, :end].to(block.dtype), 1).sum((1, 2))
                self.paid[layer, :, :end] += paid

    def _forget(self, held: int) -> None:
        """Move the tokens that stay to the first slots, in their order."""
        for layer in range(self.shape.layers):
            slots = self._staying(layer, held)
            keys, values = self.slots(layer)
            moved = torch.arange(slots.shape[1], device=slots.device) - slots
            places = slots[..., None].expand(-1, -1, keys.shape[2])
            kept = keys.gather(1, places)
            if self.eviction.renumbers:
                kept = turned(kept, moved, self.frequencies)
            keys[:, : slots.shape[1]] = kept
            values[:, : slots.shape[1]] = values.gather(1, places)
            if self.eviction.weighs:
                paid = self.paid[layer].gather(1, slots)
                self.paid[layer].zero_()[:, : slots.shape[1]] = paid

    def _staying(self, layer: int, held: int) -> Tensor:
        """The slots of one layer whose tokens stay, in their order: [Hkv, left]."""
        rule, heads, device = self.eviction, self.shape.kv_heads, self.shape.device
        recent = torch.arange(held - rule.recent, held, device=device).expand(heads, -1)
        if rule.weighs:
            early = best(self.paid[layer, :, : held - rule.recent], rule.left - rule.recent)
        else:
            early = torch.arange(rule.left - rule.recent, device=device).expand(heads, -1)
        return torch.cat([early, recent], 1)

    def truncate(self, length: int) -> None:
        if not self.length or min(length, self.length) < self.settled:
            length = self.settled = self.forgotten = 0
            self.paid.zero_()
        super().truncate(length)


def queries_of(eviction: Eviction) -> int:
    """The latest queries that a cache keeps: those by which it weighs its tokens lie beside what fills up a graph."""
    return max(QUERY_WINDOW, eviction.step + SIZES[-1]) if eviction.weighs else QUERY_WINDOW


def turned(keys: Tensor, moved: Tensor, frequencies: Tensor) -> Tensor:
    """Keys [Hkv, n, D] after rotation, rotated on to positions that are ``moved`` [Hkv, n] further."""
    angles = moved[..., None].double() * frequencies.double()
    cos, sin = (torch.cat([part, part], -1).float() for part in (angles.cos(), angles.sin()))
    first, second = keys.float().chunk(2, -1)
    return (keys.float() * cos + torch.cat([-second, first], -1) * sin).to(keys.dtype)
