"""A copy of the full cache in 4 bits, small enough for the device where the full cache is not.

The target over this copy is a level between those over a retrieval cache and over the full cache. The newest tokens are
copied as they are, and quantized when no verification can reject them any more (QuantSpec, arXiv 2502.10424).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.chunk_mass import ChunkMass
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.quantization import GROUP, bytes_of, group_start
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, QuantizedGroups, WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import Preparation

COPY_BITS = 4
UNQUANTIZED = 128  # newest tokens that are not quantized yet: more than one verification feeds
PROPOSED = 256  # room for tokens of proposals
LATEST = UNQUANTIZED + GROUP + PROPOSED  # slots of tokens as they are
PIECE = 4096  # tokens that are quantized at once: the fp32 numbers take memory


def copy_bytes(shape: Shape, capacity: int) -> int:
    """Bytes of a copy for so many tokens."""
    heads, latest = shape.layers * shape.kv_heads, 2 * LATEST * shape.head_dim * shape.kv_dtype.itemsize
    return heads * (bytes_of(rounded_up(capacity), shape.head_dim, COPY_BITS) + latest)


class Update(NamedTuple):
    """What the copy takes from a forward through its source; in slots of the source."""

    quantized: int  # afterwards: from there on tokens are copied as they are
    start: int  # of the tokens as they are, the first that is missing
    end: int


class QuantizedCopy(KVCache):
    """Reads the quantized groups of ``source``'s first tokens, then its newest tokens and provisional ones as they are.

    Proposals are drawn from it, and the keys and values that they leave are provisional: what the full cache stores for
    the verified tokens replaces them. It follows every forward through the source that has the layers on the device one
    by one, and catches up with others when a proposal is next requested. A history that is cut within the quantized
    tokens loses a part of a group, whose other tokens are then copied again.
    """

    fading = None  # it selects nothing by attention

    def __init__(self, source: FullCache) -> None:
        self.source = source
        self.groups = QuantizedGroups(source.shape, source.storage.capacity, COPY_BITS)
        self.latest = KVBuffer(source.shape, LATEST)
        self.quantized = 0  # slots of the source
        self.filled = 0  # of them those that are copied at all, quantized or as they are
        self.update_due: Update | None = None  # by the present forward through the source
        source.observers.add(self)

    @property
    def position(self) -> int:
        return self.source.position + self.length - self.source.length

    @property
    def limit(self) -> int:
        return self.source.forgotten + self.quantized + LATEST

    def restart(self) -> None:
        """What it holds follows from the source alone."""

    def ready(self, more: int) -> bool:
        self.length = max(self.length, self.source.length)
        if self.filled < self.source.held:
            self._catch_up(self.source.held)
        return self.length + more <= self.limit

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        at = self.length - self.source.forgotten - self.quantized
        view = self.latest.write(layer, at, k, v)
        return view._replace(before=self.groups.first(layer, self.quantized)) if self.quantized else view

    def write_slot(self) -> WriteSlot | None:
        start = self.length - self.source.forgotten - self.quantized
        return WriteSlot(self.latest, start, before=self.groups, read=self.quantized)

    def vacant(self) -> WriteSlot | None:
        kept = max(self.filled, self.length - self.source.forgotten)  # with what is proposed so far
        return WriteSlot(self.latest, kept - self.quantized, before=self.groups)

    def truncate(self, length: int) -> None:
        super().truncate(length)
        held = max(0, length - self.source.forgotten)
        if held < self.quantized:
            self.quantized = self.filled = group_start(held)
        self.filled = min(self.filled, held)

    def on_layer(self, layer: int, k: Tensor, v: Tensor, view: KVView) -> ChunkMass | None:  # noqa: ARG002
        if layer == 0:
            self._begin(view.end)
        self._copy(layer, view)
        return None

    def on_graph_forward(self, slot: WriteSlot, n: int) -> None:  # noqa: ARG002
        """The next call of ``ready`` copies what came."""
        self.update_due = None

    def on_forward(self) -> None:
        if self.update_due is not None:
            self.quantized, _, self.filled = self.update_due
            self.update_due = None
        self.length = self.source.length

    def preparations(self) -> list[Preparation]:
        return []

    def _catch_up(self, end: int) -> None:
        self._begin(end)
        for layer in range(self.source.shape.layers):
            self._copy(layer, self.source.storage.view(layer, end))
        self.on_forward()

    def _begin(self, end: int) -> None:
        quantized = max(self.quantized, group_start(max(0, end - UNQUANTIZED)))
        start = self.filled if quantized == self.quantized else quantized
        self.update_due = Update(quantized, start, end)
        # An interrupt may come at any line: then the tokens as they are lie anywhere, and are copied again.
        self.filled = self.quantized

    def _copy(self, layer: int, view: KVView) -> None:
        assert self.update_due is not None
        quantized, start, end = self.update_due
        keys, values = view.whole
        groups = self.groups.first(layer, quantized)
        for first in range(self.quantized, quantized, PIECE):
            piece = slice(first, min(first + PIECE, quantized))
            groups.write(first, keys[0, :, piece], values[0, :, piece])
        self.latest.write(layer, start - quantized, keys[:, :, start:end], values[:, :, start:end])
