"""Forwards of a fixed number of tokens over one buffer, captured as CUDA graphs once and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.storage import KVBuffer, WriteSlot
from triforce_chat.engine.cuda_graph import SIZES, USUAL, Fed, Graph, fitting, pool_of
from triforce_chat.engine.forward.attention import RotaryEmbedding
from triforce_chat.engine.forward.fused import Decoder


class Captured:
    """One forward of ``size`` tokens; which slots, positions and ids are inputs of every replay."""

    def __init__(
        self,
        forward: Callable[[Fed], Tensor],
        size: int,
        device: torch.device,
        pool: Callable[[], Any],
        again: bool,
    ) -> None:
        self.ids = torch.zeros(size, dtype=torch.long, device=device)
        self.at = torch.zeros(2, dtype=torch.long, device=device)
        self.fed = Fed(self.ids, self.at[:1], self.at[1:], torch.arange(size, device=device))
        self.forward = forward
        self.graph: Graph[Tensor] = Graph(device, pool, again)

    def __call__(self, ids: Tensor, slot: int, position: int, beyond: Tensor | None) -> Tensor:
        """Logits [size, V] behind ids [n], n up to ``size``; valid until the next forward."""
        self.ids[: len(ids)] = ids
        torch.linspace(slot, position, 2, out=self.at)  # two numbers of the host's in one launch
        if beyond is not None:
            self.at += beyond
        return self.graph(lambda: self.forward(self.fed))


class Captures:
    """The captured forwards of one model, by the buffer that they write to and their number of tokens."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self.decoder, self.device = decoder, device
        self.made: WeakKeyDictionary[KVBuffer, dict[int, Captured]] = WeakKeyDictionary()
        decoder.group.register_graphs(self)

    def size(self, n: int, slot: WriteSlot) -> int | None:
        """Tokens of the captured forward that takes n tokens; None where there is no such thing."""
        size = fitting(n)
        return size if size and slot.start + size <= slot.storage.capacity else None

    def prepare(self, ids: Tensor, slot: WriteSlot, position: int) -> int:
        """Capture the usual sizes for a buffer that is new; how many slots that touched behind ``slot.start``.

        A planner that chooses by the clock must not meet a capture, which takes ten times as long as a replay.
        """
        if slot.storage in self.made:
            return 0
        usual = [size for size in SIZES if size <= USUAL and slot.start + size <= slot.storage.capacity]
        for size in usual:
            self(ids[:1], slot, position, size)
        return max(usual, default=0)

    def __call__(
        self, ids: Tensor, slot: WriteSlot, position: int, size: int, beyond: Tensor | None = None
    ) -> Tensor:
        """Logits [n, V] behind ids [n], valid until the next forward; their keys and values are in the buffer.

        They stand ``beyond`` [] slots and positions behind the slot.
        """
        of_buffer = self.made.setdefault(slot.storage, {})
        if size not in of_buffer:
            alone = self.decoder.group.size == 1
            of_buffer[size] = Captured(self.forward(slot), size, self.device, self.pool, alone)
        return of_buffer[size](ids, slot.start, position, beyond)[: len(ids)]

    def pool(self) -> Any:
        """Where the next graph takes its memory from."""
        return pool_of(each.graph for of_buffer in self.made.values() for each in of_buffer.values())

    def forget(self) -> None:
        """Give all graphs up; what is asked for next is captured anew."""
        self.made.clear()

    def forward(self, slot: WriteSlot) -> Callable[[Fed], Tensor]:
        """What is captured: logits [n, V] behind tokens that go to the slot's buffer."""
        # Not the buffer itself: it must be free to go.
        ring, keys, values = slot.queries, slot.storage.keys, slot.storage.values
        scale, most = slot.storage.shape.head_dim**-0.5, slot.storage.capacity

        def forward(given: Fed) -> Tensor:
            positions = given.position + given.steps

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryEmbedding) -> Tensor:
                turn = rotary.positions, rotary.frequencies, rotary.factor
                kernels.rotate_and_store(q, k, v, *turn, keys[layer], values[layer], given.slot)
                if ring is not None:
                    ring.data[layer].index_copy_(1, positions % ring.size, q.transpose(0, 1))
                return kernels.decode_attention(q, keys[layer], values[layer], given.slot, scale, most)

            return self.decoder.logits(self.decoder(given.ids, positions, attend))

        return forward
