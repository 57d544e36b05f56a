"""Preallocated key/value storage, and what the attention function sees of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions that one model's keys and values have."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(config: Any, dtype: torch.dtype, device: torch.device, ranks: int = 1) -> Shape:
        """Read them off a transformers configuration; of heads that ``ranks`` share, this one has its part."""
        heads = config.num_attention_heads
        return Shape(
            layers=config.num_hidden_layers,
            query_heads=heads // ranks,
            kv_heads=(getattr(config, "num_key_value_heads", None) or heads) // ranks,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype,
            device=device,
        )

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


PAGE = 4096  # bytes; what is pinned must not share one with anything else
GRAIN = 64  # slots; kernels that are made for one width serve this many tokens


class KVView(NamedTuple):
    """What one layer's attention reads: everything stored, the new tokens last, then finite padding."""

    keys: Tensor  # [1, Hkv, S, D]
    values: Tensor  # [1, Hkv, S, D]
    length: int  # slots that hold tokens; S is the next multiple of GRAIN


class Queries(Protocol):
    """Room for the latest queries: position p's go to slot p % size of data [layers, Hq, size, D]."""

    data: Tensor
    size: int


class WriteSlot(NamedTuple):
    """Where a forward may leave the keys and values of new tokens on its own, and read all that stand before."""

    storage: KVBuffer
    start: int  # of the first new token
    queries: Queries | None = None  # where queries belong as well


class KVCache(Protocol):
    """A cache as the forward and the levels use it. ``length`` counts the tokens of the history it covers."""

    length: int

    @property
    def position(self) -> int:
        """The position (for RoPE) of the next token."""
        ...

    def ready(self, more: int) -> bool:
        """Whether proposals can be made out of it now that feed it ``more`` tokens beyond the committed ones."""
        ...

    def pending(self, tokens: Tensor) -> Tensor:
        """The ids to feed so that all of ``tokens`` [m] is covered; may first drop what must go."""
        ...

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:
        """Store k, v [1, Hkv, n, D] behind what is there; q [1, Hq, n, D] is the same tokens' queries."""
        ...

    def write_slot(self) -> WriteSlot | None:
        """Where the next tokens go; None for a cache that has to be told of them layer by layer."""
        ...

    def wrote(self, n: int, size: int) -> None:
        """Instead of updates, a forward left n tokens in that place, and ``size`` - n more of no meaning."""
        ...

    def advance(self, n: int) -> None:
        """Count n tokens as stored; once per forward, after its last layer."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything behind the first ``length`` tokens of the history."""
        ...

    def judged(self, proposed: int, accepted: int) -> None:
        """How tokens that were proposed out of this cache fared one level up."""
        ...


class Counted:
    """How a cache counts that covers the history from its first token on, in order."""

    length = 0

    @property
    def position(self) -> int:
        return self.length

    def ready(self, more: int) -> bool:  # noqa: ARG002
        return True

    def pending(self, tokens: Tensor) -> Tensor:
        return tokens[self.length :]

    def write_slot(self) -> WriteSlot | None:
        return None

    def wrote(self, n: int, size: int) -> None:
        pass

    def advance(self, n: int) -> None:
        self.length += n

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

    def judged(self, proposed: int, accepted: int) -> None:
        pass


class KVStorage(Protocol):
    """Where a full cache keeps its keys and values, layer by layer."""

    capacity: int  # tokens

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        """Store k, v [1, Hkv, n, D] in slots ``at`` .. ``at+n-1``, the last that the view holds."""
        ...

    def view(self, layer: int, end: int) -> KVView:
        """What one layer holds in its first ``end`` slots, where attention can read it."""
        ...

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values where they stay, to read and to fill: [Hkv, capacity, D] each."""
        ...

    def truncate(self, length: int) -> None:
        """The slots behind the first ``length`` are about to be written again."""
        ...


class KVBuffer:
    """The plain ``KVStorage``: all layers in two tensors [layers, Hkv, capacity, D] on the model's device."""

    def __init__(self, shape: Shape, capacity: int) -> None:
        self.shape = shape
        self.capacity = capacity
        size = (shape.layers, shape.kv_heads, rounded_up(capacity), shape.head_dim)
        # Zeros, not garbage: padding is read, and a NaN times a weight of zero is a NaN.
        self.keys, self.values = zeros(size, shape), zeros(size, shape)

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> KVView:
        n = k.shape[2]
        end = at + n
        if end > self.capacity:
            raise ValueError(f"cache overflow: slot {end} of {self.capacity}")
        self.keys[layer, :, at:end] = k[0]
        self.values[layer, :, at:end] = v[0]
        return self.view(layer, end)

    def view(self, layer: int, end: int) -> KVView:
        width = rounded_up(end)
        return KVView(self.keys[layer, None, :, :width], self.values[layer, None, :, :width], end)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]

    def truncate(self, length: int) -> None:
        pass


def zeros(size: tuple[int, ...], shape: Shape) -> Tensor:
    """A tensor of zeros of that size. In main memory it takes room only where it is written.

    torch fills what it allocates, 6 GB for 131,072 tokens of a small model; the system's own zeroed pages
    exist from their first use on.
    """
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    count = math.prod(size) * shape.dtype.itemsize
    pages = np.zeros(count + 2 * PAGE, np.uint8)
    start = -pages.ctypes.data % PAGE
    return torch.from_numpy(pages[start : start + count]).view(shape.dtype).view(size)


def rounded_up(slots: int) -> int:
    return -(-slots // GRAIN) * GRAIN
