"""Preallocated storage for keys and values: slots in which forwards write tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from triforce_chat.engine.cache.allocation import rounded_up, zeros
from triforce_chat.engine.cache.chunk_mass import FadingMass
from triforce_chat.engine.cache.quantization import GROUP, SCALE, QuantizedTokens, narrowed
from triforce_chat.engine.cache.query_ring import QueryRing
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import SIZES
from triforce_chat.engine.kernels_available import kernels_run

# For each layer what holds some keys, and their values.
Held = Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]


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
    sizes: Sequence[int] = SIZES  # rows of the forwards that are captured through it, but for trees

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
