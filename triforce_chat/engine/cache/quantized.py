"""A full cache's keys and values in 8 or 4 bits, a group of tokens at a time.

What a token attends to is a function of positions alone: the tokens of its own group, up to itself, in 16 bits, and all
earlier groups quantized. So the same tokens give the same numbers however they are fed: in chunks of a prefill, one by
one, or as a draft of which some are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import torch
from torch import Tensor

from triforce_chat.engine.cache.quantization import BITS, GROUP, group_start
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import Held, KVBuffer, KVStorage, QuantizedGroups, WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.kernels_available import kernels_run

# Tokens that are kept in 16 bits, too: more than any draft, so that a rejected one leaves its group as it was.
NEWEST = 256


class QuantizedKV:
    """A ``KVStorage`` that quantizes every group of tokens once it is full, from the newest tokens in 16 bits.

    These lie in a ring: position p in slot p % NEWEST. A group whose tokens it has lost can only be dropped as a whole.
    """

    streams = False
    on_device = None

    def __init__(self, shape: Shape, capacity: int) -> None:
        self.shape, self.capacity = shape, capacity
        self.newest = KVBuffer(shape, NEWEST)
        self.held = 0  # the ring has all tokens from this position on
        # One thread may restore tokens while another one captures forwards, which write behind them.
        self.moving = Lock()
        self.bits = BITS[shape.kv_format]
        self.groups = QuantizedGroups(shape, capacity, self.bits)

    def slot(self, at: int) -> None:
        """None: tokens of one group share their scales."""

    def write_slot(self, at: int) -> WriteSlot | None:
        if not kernels_run(self.shape.device):
            return None
        return WriteSlot(self.newest, at, before=self.groups, grouped=True)

    def wrote(self, at: int, n: int) -> None:
        with self.moving:
            self.held = max(self.held, at + n - NEWEST)

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        """See ``KVStorage``. Raises ValueError where the capacity does not suffice."""
        n, first = k.shape[2], group_start(at)
        end = at + n
        if end > self.capacity:
            raise ValueError(f"cache overflow: slot {end} of {self.capacity}")
        self.wrote(at, n)  # before anything is overwritten
        keys, values = self._extended(layer, first, at, k, v)
        full = group_start(end) - first
        if full:
            self.groups.first(layer, end).write(first, keys[:, :full], values[:, :full])
        before = self.groups.first(layer, group_start(end - 1))
        return KVView(keys[None], values[None], end - first, before=before, repeated=before.tokens - first)

    def view(self, layer: int, end: int) -> KVView:
        """See ``KVStorage``; the last group quantized, too, where its tokens in 16 bits are lost."""
        first = group_start(end) if self.held <= group_start(end) else end
        keys, values = self._latest(layer, first, end)
        return KVView(keys[None], values[None], end - first, before=self.groups.first(layer, first))

    def truncate(self, length: int) -> None:
        self.held = min(self.held, length)

    def rewound(self, length: int) -> int:
        start = group_start(length)
        return length if self.held <= start else start

    def parts(self, layer: int, start: int, end: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """See ``KVStorage``: the groups that end here, copies of the tokens after them in 16 bits, and filling."""
        first, last = group_start(start), group_start(end)
        rows, whole = (
            slice(first * self.bits // 8, last * self.bits // 8),
            slice(first // GROUP, last // GROUP),
        )
        groups = self.groups
        keys = [groups.keys[layer, :, rows], groups.key_scales[layer, :, whole]]
        values = [groups.values[layer, :, whole], groups.value_scales[layer, :, first:last]]
        for each, newest in zip((keys, values), self._latest(layer, last, end), strict=True):
            each.append(newest.clone())
        sizes = [sum(part.nbytes for part in each) for each in (keys, values)]
        for each, size in zip((keys, values), sizes, strict=True):
            each.append(torch.zeros(1, max(sizes) - size, dtype=torch.uint8))
        return keys, values

    def restored(self, end: int, parts: Held) -> None:
        first = group_start(end)
        with self.moving:
            self.held = first
        for layer, kinds in enumerate(parts):
            for newest, kind in zip(self._latest(layer, first, end), kinds, strict=True):
                newest.copy_(kind[2])

    def _latest(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """The slots of positions of one group in the ring: [Hkv, end - first, D] each."""
        at = first % NEWEST
        slots = slice(at, at + end - first)
        return self.newest.keys[layer, :, slots], self.newest.values[layer, :, slots]

    def _extended(self, layer: int, first: int, at: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put k, v [1, Hkv, n, D] from position ``at`` on into the ring: all from ``first`` on, [Hkv, m, D] each."""
        n, start = k.shape[2], first % NEWEST
        wraps = start + at - first + n > NEWEST
        if not wraps:
            self.newest.write(layer, start + at - first, k, v)
            return self._latest(layer, first, at + n)
        fresh = k[0].to(self.shape.kv_dtype), v[0].to(self.shape.kv_dtype)
        own = tuple(
            torch.cat([old, new], 1) for old, new in zip(self._latest(layer, first, at), fresh, strict=True)
        )
        kept = min(n, NEWEST)
        places = torch.arange(at + n - kept, at + n) % NEWEST
        for ring, new in zip((self.newest.keys, self.newest.values), fresh, strict=True):
            ring[layer, :, places] = new[:, n - kept :]
        return own[0], own[1]


def storage_for(shape: Shape, capacity: int) -> KVStorage:
    """The storage of a full cache on the device, in the format of ``shape``."""
    make: Callable[[Shape, int], KVStorage] = QuantizedKV if shape.kv_format in BITS else KVBuffer
    return make(shape, capacity)
