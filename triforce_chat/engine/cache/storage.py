"""Preallocated storage for keys and values, and the interface of the caches built on it."""

from __future__ import annotations

import ctypes
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from triforce_chat.engine.cache.chunk_mass import ChunkMass, FadingMass
from triforce_chat.engine.cache.quantization import (
    BITS,
    GROUP,
    SCALE,
    QuantizedTokens,
    bytes_of,
    group_start,
    narrowed,
)
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.kernels_available import kernels_run

PAGE = 4096  # bytes; pinned memory must not share a page with anything else
HUGE_PAGES, SMALL_PAGES = 14, 15  # MADV_HUGEPAGE and MADV_NOHUGEPAGE of Linux
GRAIN = 64  # slots; kernels compiled for one width serve this many lengths
UNLIMITED = 1 << 62  # tokens
# For each layer what holds some keys, and their values.
Held = Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of one model's keys and values, or of one rank's share of them.

    ``kv``: the format that they are kept in, if that is not the model's dtype: another one, or ``torch.int8`` or
    ``torch.int4`` for quantized ones.
    """

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    kv: torch.dtype | None = None

    @staticmethod
    def of(
        config: Any,
        dtype: torch.dtype,
        device: torch.device,
        ranks: int = 1,
        kv: torch.dtype | None = None,
    ) -> Shape:
        """Read from a transformers configuration; the heads are split evenly between ``ranks``."""
        heads = config.num_attention_heads
        return Shape(
            layers=config.num_hidden_layers,
            query_heads=heads // ranks,
            kv_heads=(getattr(config, "num_key_value_heads", None) or heads) // ranks,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype,
            device=device,
            kv=kv,
        )

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def kv_format(self) -> torch.dtype:
        """The format of keys and values in the full cache."""
        return self.kv or self.dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        """The dtype of unquantized keys and values: 16 bits for those kept beside quantized ones."""
        if self.kv_format in BITS:
            return self.dtype if self.dtype.itemsize == 2 else torch.float16
        return self.kv_format

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers of the full cache."""
        if self.kv_format in BITS:
            return self.layers * self.kv_heads * bytes_of(1, self.head_dim, BITS[self.kv_format])
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_dtype.itemsize


class KVView(NamedTuple):
    """What one layer's attention reads: the stored tokens, the newest last, then finite padding."""

    keys: Tensor  # [1, Hkv, S, D]
    values: Tensor  # [1, Hkv, S, D]
    length: int  # tokens; S is the next multiple of GRAIN, or more
    shared: SharedView | None = None  # what comes before, and where these lie among other sequences'
    slots: Tensor | None = None  # [Hkv, length], int32: where the tokens lie; None: in the first slots
    masses: tuple[ChunkMass, ...] = ()  # where attention adds what it pays to chunks of the tokens
    # [n, t], which of the last t each new token sees, as in a tree; None: causal
    visible: Tensor | None = None
    before: QuantizedTokens | None = None  # what comes before them, quantized
    # Of the quantized tokens, how many of the last ones are among the others, too: groups that the new tokens fill.
    repeated: int = 0

    @property
    def gathered(self) -> KVView:
        """A view with the tokens in the first slots: itself, or a copy of those that lie elsewhere."""
        if self.slots is None:
            return self
        places = pad(self.slots, (0, rounded_up(self.length) - self.length))
        keys, values = (
            torch.stack([part.index_select(0, at) for part, at in zip(each[0], places, strict=True)])[None]
            for each in (self.keys, self.values)
        )
        return self._replace(keys=keys, values=values, slots=None)

    @property
    def total(self) -> int:
        """Keys that attention reads, without a shared prefix: quantized ones come first."""
        return self.length + (self.before.tokens if self.before else 0)

    @property
    def end(self) -> int:
        """Tokens in all, a shared prefix included."""
        return self.total - self.repeated + (self.shared.prefix.end if self.shared else 0)

    def of_head(self, head: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and values of one KV head that attention reads, then padding: [S, D] each, in ``dtype``."""
        own = self.keys[0, head].to(dtype), self.values[0, head].to(dtype)
        if self.before is None or not self.before.tokens:
            return own
        before = self.before.of_head(head, dtype)
        return torch.cat([before[0], own[0]]), torch.cat([before[1], own[1]])

    @property
    def whole(self) -> tuple[Tensor, Tensor]:
        """All keys and all values, a prefix included, without padding: [1, Hkv, end, D] each; copies two parts."""
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        if self.before is not None:
            quantized = self.before._replace(tokens=self.before.tokens - self.repeated)
            return KVView(keys, values, self.length, before=quantized).all_heads(keys.dtype)
        if self.shared is None:
            return keys, values
        before = self.shared.prefix.whole
        return torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)

    def all_heads(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and values that attention reads, without padding: [1, Hkv, total, D] each, in ``dtype``."""
        keys, values = self.keys[:, :, : self.length].to(dtype), self.values[:, :, : self.length].to(dtype)
        if self.before is None:
            return keys, values
        all_keys, all_values = (part[None] for part in self.before.all_heads(dtype, self.length))
        all_keys[:, :, self.before.tokens :], all_values[:, :, self.before.tokens :] = keys, values
        return all_keys, all_values

    def masked(self, n: int) -> KVView:
        """The view with what its last n tokens see of the groups that they fill, if they fill any; see ``seen_by``."""
        if not self.repeated:
            return self
        return self._replace(visible=seen_by(self.length - n, n).to(self.keys.device))


@lru_cache(maxsize=64)
def seen_by(before: int, n: int) -> Tensor:
    """Which keys n tokens see that follow ``before`` tokens of their group and cross its border: bool [n, t].

    The keys are those of the groups that the tokens fill, quantized, then of all tokens from the first group's start
    on, in 16 bits. A token sees the quantized groups before its own, and its own up to itself.
    """
    position = torch.arange(before, before + n)[:, None]
    start = position // GROUP * GROUP
    quantized, newest = torch.arange(group_start(before + n - 1)), torch.arange(before + n)
    return torch.cat([quantized < start, (newest >= start) & (newest <= position)], 1)


class SharedView(NamedTuple):
    """One layer of several sequences with the same first tokens, the later ones of which lie side by side."""

    prefix: KVView
    keys: Tensor  # [sequences, Hkv, S, D], after the prefix
    values: Tensor  # [sequences, Hkv, S, D]
    place: int  # of the sequence whose view this belongs to


class KVStorage(Protocol):
    """Where a full cache keeps its keys and values, layer by layer."""

    capacity: int  # tokens
    streams: bool  # reading fetches layers from host memory

    @property
    def on_device(self) -> KVBuffer | None:
        """Slots of some layers, of any meaning, to rehearse what reads them; None if tokens have no slots."""
        ...

    def slot(self, at: int) -> WriteSlot | None:
        """The slots from ``at`` on, if each token has one of its own on the device; else None."""
        ...

    def write_slot(self, at: int) -> WriteSlot | None:
        """Where forwards write tokens from slot ``at`` on by themselves; None if they cannot."""
        ...

    def wrote(self, at: int, n: int) -> None:
        """A forward has written n tokens from slot ``at`` on by itself, which may be of no meaning."""
        ...

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        """Store k, v [1, Hkv, n, D] in slots ``at`` .. ``at+n-1``; returns a view of slots 0 .. ``at+n-1``."""
        ...

    def view(self, layer: int, end: int) -> KVView:
        """The first ``end`` slots of a layer, where attention can read them."""
        ...

    def truncate(self, length: int) -> None:
        """Invalidate the slots after the first ``length``, which ``rewound`` returned: they will be written again."""
        ...

    def rewound(self, length: int) -> int:
        """How many of the first ``length`` tokens can be kept when all later ones are dropped."""
        ...

    def parts(self, layer: int, start: int, end: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """What one layer's keys, and values, of tokens ``start`` .. ``end-1`` are restored from: to read and to fill.

        Both have as many bytes. They stay the same until the slots are written again.
        """
        ...

    def restored(self, end: int, parts: Held) -> None:
        """The ``parts`` of all layers, of tokens up to ``end``, were filled."""
        ...


class SlotStorage(ABC):
    """A storage that keeps every token in a slot of its own."""

    @abstractmethod
    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values where they are kept, to read and to fill: [Hkv, capacity, D] each."""

    @abstractmethod
    def slot(self, at: int) -> WriteSlot | None:
        """See ``KVStorage``."""

    @property
    def on_device(self) -> KVBuffer | None:
        """See ``KVStorage``."""
        slot = self.slot(0)
        return slot and slot.storage

    def write_slot(self, at: int) -> WriteSlot | None:
        return self.slot(at)

    def wrote(self, at: int, n: int) -> None:  # noqa: B027
        """Nothing to do."""

    def truncate(self, length: int) -> None:  # noqa: B027
        """Nothing to do: later tokens overwrite the slots."""

    def rewound(self, length: int) -> int:
        return length

    def parts(self, layer: int, start: int, end: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        keys, values = self.layer(layer)
        return [keys[:, start:end]], [values[:, start:end]]

    def restored(self, end: int, parts: Held) -> None:  # noqa: B027
        """Nothing to do: the slots themselves were filled."""


class KVPool:
    """Room for the keys and values of several sequences side by side, ``capacity`` tokens each."""

    def __init__(self, shape: Shape, sequences: int, capacity: int) -> None:
        self.shape, self.capacity = shape, capacity
        size = (shape.layers, sequences, shape.kv_heads, rounded_up(capacity), shape.head_dim)
        # Zeros, because padding is read: a NaN times a weight of zero is a NaN.
        self.keys, self.values = zeros(size, shape), zeros(size, shape)

    @property
    def count(self) -> int:
        """How many sequences there is room for."""
        return self.keys.shape[1]


class KVBuffer(SlotStorage):
    """Keys and values of all layers in two tensors [layers, Hkv, capacity, D] on the model's device.

    They are those of ``place`` in ``pool``, if one is given.
    """

    streams = False

    def __init__(self, shape: Shape, capacity: int, pool: KVPool | None = None, place: int = 0) -> None:
        self.shape, self.capacity, self.pool, self.place = shape, capacity, pool, place
        whole = pool or KVPool(shape, 1, capacity)
        self.keys, self.values = whole.keys[:, place], whole.values[:, place]

    def slot(self, at: int) -> WriteSlot:
        return WriteSlot(self, at)

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        """See ``KVStorage``. Raises ValueError where the capacity does not suffice."""
        n = k.shape[2]
        end = at + n
        if end > self.capacity:
            raise ValueError(f"cache overflow: slot {end} of {self.capacity}")
        self.keys[layer, :, at:end] = narrowed(k[0], self.keys.dtype)
        self.values[layer, :, at:end] = narrowed(v[0], self.values.dtype)
        return self.view(layer, end)

    def view(self, layer: int, end: int) -> KVView:
        width = rounded_up(end)
        return KVView(self.keys[layer, None, :, :width], self.values[layer, None, :, :width], end)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]

    def keep(self, start: Tensor, path: Tensor) -> None:
        """Move slots ``start + path[i]`` to ``start + i``; a path [m] ascends, ``start`` [1] is on the device."""
        if self.keys.is_cuda:
            from triforce_chat.engine import kernels

            kernels.keep_slots(self.keys, self.values, start, path)
            return
        for part in (self.keys, self.values):
            part[:, :, int(start) :][:, :, : len(path)] = part[:, :, start + path]


class QuantizedGroups:
    """Room for the quantized keys and values of all layers, ``capacity`` tokens each; see ``QuantizedTokens``.

    ``turned``: whether they are laid out for the kernels of a GPU; by default on one.
    """

    def __init__(self, shape: Shape, capacity: int, bits: int, turned: bool | None = None) -> None:
        self.capacity = capacity
        slots, heads = rounded_up(capacity), (shape.layers, shape.kv_heads)
        dtype, numbers = (torch.int8, 1) if bits == 8 else (torch.uint8, 2)
        rows, dim = GROUP * bits // 8, shape.head_dim
        self.keys = zeros((*heads, slots // GROUP * rows, dim), shape, dtype)
        turned = kernels_run(shape.device) if turned is None else turned
        last = (dim, rows) if turned else (rows, dim)
        values = zeros((*heads, slots // GROUP, *last), shape, dtype)
        self.values = values.transpose(-1, -2) if turned else values
        self.key_scales = zeros((*heads, slots // GROUP, numbers, shape.head_dim), shape, SCALE)
        self.value_scales = zeros((*heads, slots, numbers), shape, SCALE)

    def first(self, layer: int, tokens: int) -> QuantizedTokens:
        """The first ``tokens`` of a layer."""
        scales = self.key_scales[layer], self.value_scales[layer]
        return QuantizedTokens(self.keys[layer], self.values[layer], *scales, tokens)


class QueryRing:
    """The queries of the latest positions, which select what a retrieval cache keeps.

    Position p is kept in slot p % size of ``data`` [layers, Hq, size, D].
    """

    def __init__(self, shape: Shape, size: int) -> None:
        self.size = size
        dimensions = (shape.layers, shape.query_heads, size, shape.head_dim)
        self.data = torch.empty(dimensions, dtype=shape.dtype, device=shape.device)
        self.positions = [-1] * size  # the position that each slot holds; -1: none

    def write(self, layer: int | slice, position: int, q: Tensor) -> None:
        """Store queries q [..., Hq, n, D] of positions ``position`` .. ``position+n-1``, of one layer or several."""
        given = q.shape[-2]
        n = min(given, self.size)
        first = position + given - n
        fresh, start = q[..., given - n :, :], first % self.size
        fitting = min(n, self.size - start)  # slots before the ring wraps around
        kept = self.data[layer]
        kept[..., start : start + fitting, :] = fresh[..., :fitting, :]
        kept[..., : n - fitting, :] = fresh[..., fitting:, :]
        self.mark_written(first, n)

    def mark_written(self, position: int, n: int, lost: int = 0) -> None:
        """The slots of n positions from ``position`` on were filled, and the ``lost`` after them overwritten."""
        for at in range(position, position + n + lost):
            self.positions[at % self.size] = at if at < position + n else -1

    def keep(self, start: int, path: Sequence[int]) -> None:
        """The queries of ``start + path[i]`` belong to position ``start + i``, as far as they are there."""
        there = [self.positions[(start + at) % self.size] == start + at for at in path]
        from_, to = ([(start + at) % self.size for at in each] for each in (path, range(len(path))))
        self.data[:, :, to] = self.data[:, :, from_]
        for slot, position, known in zip(to, range(start, start + len(path)), there, strict=True):
            self.positions[slot] = position if known else -1

    def forget(self) -> None:
        """Let ``latest`` find no queries: other tokens are at these positions now."""
        self.positions = [-1] * self.size

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Have the same queries after the block as before it."""
        data, positions = self.data.clone(), self.positions.copy()
        try:
            yield
        finally:
            # Graphs read this very tensor.
            self.data.copy_(data)
            self.positions = positions

    def since(self, layer: int, position: int, n: int) -> Tensor:
        """Queries [Hq, n, D] of n positions from ``position`` on, all of which were written; forgotten ones, too."""
        kept, start = self.data[layer], position % self.size
        fitting = min(n, self.size - start)  # slots before the ring wraps around
        return torch.cat([kept[:, start : start + fitting], kept[:, : n - fitting]], 1)

    def latest(self, layer: int | slice, length: int, most: int) -> Tensor:
        """Queries of up to ``most`` consecutive positions that end at ``length - 1``, the latest first.

        Returns [Hq, m, D], or [layers, Hq, m, D] for a slice of layers.
        """
        slots: list[int] = []
        for position in range(length - 1, max(length - 1 - most, -1), -1):
            slot = position % self.size
            if self.positions[slot] != position:
                break
            slots.append(slot)
        if slots and slots[0] - slots[-1] == len(slots) - 1:
            # The ring does not wrap between them: so a GPU waits for no list.
            return self.data[layer][..., slots[-1] : slots[0] + 1, :].flip(-2)
        return self.data[layer][..., slots, :]


@dataclass(frozen=True, eq=False)
class SlotList:
    """The slots of a buffer that each KV head reads in each layer, those of tokens to come at its end."""

    slots: Tensor  # [layers, Hkv, m], int32


class WriteSlot(NamedTuple):
    """Where a forward writes the keys and values of new tokens itself.

    It reads all slots before them, or the first ``read`` that are listed.
    """

    storage: KVBuffer
    start: int  # slot of the first new token
    queries: QueryRing | None = None  # where to write the queries too
    prefix: KVBuffer | None = (
        None  # what comes before the storage's first slot: this one's first ``shared`` slots
    )
    shared: int = 0
    listed: SlotList | None = None
    before: QuantizedGroups | None = None  # its first ``read`` tokens come before the storage's first slot
    read: int = 0
    # The storage is a ring of the newest groups, and ``start`` counts all tokens: a token reads its own group there,
    # all earlier ones in ``before``, where the forward puts those that it fills.
    grouped: bool = False
    mass: FadingMass | None = None  # where to add what the tokens pay
    counted: Tensor | None = None  # [1], the first tokens that pay, if only the device knows it; None: all

    @property
    def room(self) -> int:
        """Slots from that of the first new token on."""
        if self.grouped and self.before is not None:
            return self.before.capacity - self.start
        room = self.storage.capacity - self.start
        return room if self.listed is None else min(room, self.listed.slots.shape[2] - self.read)

    def written(self, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first n of the new tokens, after a forward: [layers, Hkv, n, D] each."""
        keys, values = self.storage.keys, self.storage.values
        if not self.grouped:
            slots = slice(self.start, self.start + n)
            return keys[:, :, slots], values[:, :, slots]
        places = torch.arange(self.start, self.start + n, device=keys.device) % self.storage.capacity
        return keys.index_select(2, places), values.index_select(2, places)

    @property
    def owner(self) -> object:
        """What a captured forward through this slot is of no use without."""
        return self.listed or self.mass or self.storage


class KVCache:
    """The keys and values that a forward reads and extends.

    ``length`` counts the tokens of the history that the cache covers, from the first one on and in order; subclasses
    override what they count differently. It is a number of the host: forwards that run ahead of the host take an
    offset on the device instead.
    """

    length = 0
    verifies = False  # its forwards are the last ones that a round of the top level waits for
    forgotten = 0  # of these tokens, those that were evicted

    @property
    def position(self) -> int:
        """The position (for RoPE) of the next token."""
        return self.length

    @property
    def limit(self) -> int:
        """The length that the next forward may not exceed."""
        return UNLIMITED

    def kept(self, length: int) -> int:
        """How many tokens of a history of so many it will hold at most."""
        return length

    def ready(self, more: int) -> bool:  # noqa: ARG002
        """Whether proposals can be drawn from it now that feed it ``more`` tokens after those that it covers."""
        return True

    def pending(self, tokens: Tensor) -> Tensor:
        """The ids to feed so that the cache covers all of ``tokens`` [m]; may make room first."""
        self.make_room()
        return tokens[self.length :]

    def make_room(self) -> None:
        """The next tokens are about to be fed: evict what has to go before them."""

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:
        """Append one layer's k, v [1, Hkv, n, D]; q [1, Hq, n, D] are the queries of the same tokens."""
        raise NotImplementedError

    def write_slot(self) -> WriteSlot | None:
        """Where a forward may write the next tokens itself; None if it has to call ``update`` for each layer."""
        return None

    def vacant(self) -> WriteSlot | None:
        """The slot from which on nothing is kept between rounds, so that a capture may write there; None as above."""
        return self.write_slot()

    def completes_prompt(self) -> None:
        """The next forward completes a prompt: an answer follows."""

    def preparations(self) -> list[Preparation]:
        """What is worth doing once before the cache is used; only where forwards are captured."""
        return []

    def overwrote(self, size: int) -> None:
        """A capture wrote to ``size`` slots from ``vacant`` on."""

    def wrote(self, n: int, size: int) -> None:
        """A forward wrote n tokens to ``write_slot`` instead of calling ``update``, and touched ``size`` slots."""

    def drafted(self, certain: int, count: Tensor) -> None:
        """The next forward's tokens after the first ``certain + count`` are padding; ``count`` [1] is on the device."""

    def reach(self, n: int) -> int:
        """The length after n more tokens, which are the last ones that it will cover then."""
        return self.length + n

    def advance(self, n: int) -> None:
        """Count n tokens as stored; called once per forward, after its last layer."""
        self.length = self.reach(n)

    def truncate(self, length: int) -> None:
        """Drop everything after the first ``length`` tokens of the history."""
        self.length = min(self.length, length)

    def keep(self, length: int, path: Tensor) -> None:
        """Of a tree that was fed after the first ``length`` tokens, keep only those of ``path`` [m], moved together.

        Only where all keys and values lie in one buffer.
        """
        self.truncate(length)
        slot = self.write_slot()
        assert slot, "a tree needs its keys and values in one buffer"
        slot.storage.keep(path.new_full((1,), slot.start), path)
        if slot.queries is not None and path.is_cuda:
            slot.queries.mark_written(
                self.position - 1, 0, len(path) + 1
            )  # its graphs write none, nor the root's
        elif slot.queries is not None:
            slot.queries.keep(self.position, path.tolist())
        self.length = length + len(path)

    def keep_beyond(self, offset: Tensor, path: Tensor) -> None:
        """``keep`` of a tree that was fed ``offset`` [1] slots further on and is not counted; the device knows how far.

        Entries of ``path`` after the last one that passed may be any slots of the tree.
        """
        slot = self.write_slot()
        assert slot, "a tree needs its keys and values in one buffer"
        slot.storage.keep(offset + slot.start, path)

    def confirmed(self, length: int) -> None:
        """The first ``length`` tokens were fed, the last of them as scratch data: they count from now on."""
        self.length = max(self.length, length)

    def restart(self) -> None:
        """Return to the initial state."""
        self.truncate(0)

    def judged(self, proposed: int, accepted: int) -> None:
        """The level above accepted the first ``accepted`` of ``proposed`` tokens drawn from this cache."""


def zeros(size: tuple[int, ...], shape: Shape, dtype: torch.dtype | None = None) -> Tensor:
    """A zero tensor for keys or values of ``shape``; ``dtype``: not that of unquantized ones.

    In main memory it occupies only the pages that are written: torch.zeros would fill all of it, 6 GB for 131,072
    tokens of a small model, while the system's own zero pages are allocated at their first use.
    """
    dtype = dtype or shape.kv_dtype
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=shape.device)
    pages = zero_pages(size, dtype)
    advise(pages, SMALL_PAGES)
    return pages


def zero_pages(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A zero tensor in main memory that shares no page with anything else; see ``zeros``."""
    count = math.prod(size) * dtype.itemsize
    pages = np.zeros(count + 2 * PAGE, np.uint8)
    start = -pages.ctypes.data % PAGE
    return torch.from_numpy(pages[start : start + count]).view(dtype).view(size)


def advise(pages: Tensor, advice: int) -> None:
    """Tell the system how to allocate memory made by ``zero_pages``; where it has no such advice, nothing happens.

    With ``HUGE_PAGES`` that is done 2 MB at a time: quick, but the first token of each layer's and head's keys takes as
    much, some 400 MB in all for a small model.
    """
    if sys.platform == "linux":
        size = ctypes.c_size_t(pages.nbytes)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(pages.data_ptr()), size, advice)


def rounded_up(slots: int) -> int:
    """The next multiple of GRAIN."""
    return -(-slots // GRAIN) * GRAIN
