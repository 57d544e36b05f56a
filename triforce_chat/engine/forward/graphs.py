"""Forwards of a fixed number of tokens over one KV buffer, as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.chunk_mass import FadingMass
from triforce_chat.engine.cache.storage import WriteSlot
from triforce_chat.engine.cuda_graph import ForwardInputs, Graph, LogitsAndStates, fitting, pool_of
from triforce_chat.engine.forward.attention import RotaryEmbedding
from triforce_chat.engine.forward.attention_backend import USUAL, AttentionBackend
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.forward.target_state import StateReader


class ForwardGraph:
    """One forward of ``size`` tokens; their ids, slots, positions and indices are inputs of each replay."""

    def __init__(
        self,
        forward: Callable[[ForwardInputs], LogitsAndStates],
        size: int,
        device: torch.device,
        pool: Callable[[], Any],
        retry: bool,
        reader: StateReader | None,
    ) -> None:
        self.ids = torch.zeros(size, dtype=torch.long, device=device)
        self.at = torch.zeros(3, dtype=torch.long, device=device)
        slot, position, read = self.at.split(1)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        steps = torch.arange(size, device=device)
        self.inputs = ForwardInputs(self.ids, slot, position, steps, read=read, counted=self.count)
        self.index = torch.zeros(1, dtype=torch.long, device=device)
        self.forward, self.reader = forward, reader
        self.graph: Graph[LogitsAndStates] = Graph(device, pool, retry)

    def __call__(
        self, ids: Tensor, slot: WriteSlot, position: int, index: int, offset: Tensor | None
    ) -> LogitsAndStates:
        """Logits and states of ``size`` rows after ids [n], n up to ``size``; valid until the next forward."""
        self.ids[: len(ids)] = ids
        self._aim(slot, position)
        if offset is not None:
            self.at += offset
        if self.reader is not None:
            self.index.fill_(index)
            if offset is not None:
                self.index += offset
        if slot.mass is not None:
            self.graph.prepare(self._work)  # with a count of 0: running it once more must weigh nothing
            self.count.copy_(slot.counted) if slot.counted is not None else self.count.fill_(len(ids))
        return self.graph(self._work)

    def capture(self, slot: WriteSlot) -> None:
        """Capture ahead of the first use; overwrites ``size`` slots from the given one on."""
        self._aim(slot, slot.start)
        self.graph.prepare(self._work)

    def _aim(self, slot: WriteSlot, position: int) -> None:
        torch.linspace(slot.start, position, 2, out=self.at[:2])  # two of the host's numbers in one launch
        if slot.listed is not None or slot.before is not None:
            self.at[2:].fill_(slot.read)

    def _work(self) -> LogitsAndStates:
        if self.reader is None:
            return self.forward(self.inputs)
        return self.forward(self.inputs._replace(added=self.reader.rows(self.index + self.inputs.steps)))


class ForwardGraphs:
    """All captured forwards of one model, by what they read or write and by number of tokens."""

    def __init__(
        self,
        decoder: Decoder,
        device: torch.device,
        reader: StateReader | None = None,
        backend: AttentionBackend = USUAL,
    ) -> None:
        self.decoder, self.device, self.reader = decoder, device, reader
        self.backend = backend
        self.made: WeakKeyDictionary[object, dict[int, ForwardGraph]] = WeakKeyDictionary()  # by owner
        decoder.group.register_graphs(self)

    def size(self, n: int, slot: WriteSlot) -> int | None:
        """Size of the captured forward that takes n tokens; None if there is none or the buffer has no room for it."""
        size = fitting(n)
        return size if size and size <= slot.room else None

    def lacks(self, slot: WriteSlot, size: int) -> bool:
        """Whether the forward of that size is still to be captured."""
        return size not in self.made.get(slot.owner, {})

    def capture(self, slot: WriteSlot, size: int) -> None:
        """Capture ahead of the first use; overwrites ``size`` slots from ``slot.start`` on."""
        self._graph(slot, size).capture(slot)

    def __call__(
        self, ids: Tensor, slot: WriteSlot, position: int, index: int, size: int, offset: Tensor | None = None
    ) -> LogitsAndStates:
        """Logits and states after ids [n], valid until the next forward; stores their keys and values in the buffer.

        ``index``: of the first id in the history. ``offset`` [1] is added to it, to the slot and to the position.
        """
        logits, states = self._graph(slot, size)(ids, slot, position, index, offset)
        return logits[: len(ids)], states[: len(ids)]

    def _graph(self, slot: WriteSlot, size: int) -> ForwardGraph:
        of_owner = self.made.setdefault(slot.owner, {})
        if size not in of_owner:
            retry = self.decoder.group.size == 1
            forward = self.forward(slot)
            of_owner[size] = ForwardGraph(forward, size, self.device, self.pool, retry, self.reader)
        return of_owner[size]

    def pool(self) -> Any:
        """The memory pool of the next graph."""
        return pool_of(each.graph for of_owner in self.made.values() for each in of_owner.values())

    def forget(self) -> None:
        """Drop all graphs; the next calls capture again."""
        self.made.clear()

    def forward(self, slot: WriteSlot) -> Callable[[ForwardInputs], LogitsAndStates]:
        """The function that is captured: it writes the tokens' keys and values to the slot's buffer."""
        # Holds the tensors, not their owner, which must stay collectable: it is a weak key.
        ring, keys, values = slot.queries, slot.storage.keys, slot.storage.values
        scale, weighing = slot.storage.shape.head_dim**-0.5, weighings(slot.mass)
        listed = None if slot.listed is None else slot.listed.slots
        before = slot.before
        most = slot.storage.capacity if listed is None else listed.shape[2]
        decode = self.backend.decode

        def forward(inputs: ForwardInputs) -> LogitsAndStates:
            positions = inputs.position + inputs.steps

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryEmbedding) -> Tensor:
                turn = rotary.positions, rotary.frequencies, rotary.factor
                kernels.rotate_and_store(q, k, v, *turn, keys[layer], values[layer], inputs.slot)
                if ring is not None:
                    ring.data[layer].index_copy_(1, positions % ring.size, q.transpose(0, 1))
                given = q, keys[layer], values[layer]
                if before is not None:
                    assert inputs.read is not None
                    first, turned = before.first(layer, 0)[:4], (keys[layer], values[layer])
                    return kernels.decode_quantized(q, first, inputs.read, *turned, inputs.slot, scale)
                if listed is not None:
                    assert inputs.read is not None
                    return kernels.decode_attention(*given, inputs.read, scale, most, listed=listed[layer])
                paid = weighing(layer, inputs.counted)
                if paid is not None:  # only Triton's kernel says what is paid
                    return kernels.decode_attention(*given, inputs.slot, scale, most, weighing=paid)
                return decode(*given, inputs.slot, scale, most)

            states = self.decoder(inputs.ids, positions, attend, inputs.added)
            return self.decoder.logits(states), states

        return forward


def weighings(mass: FadingMass | None) -> Callable[[int, Tensor | None], kernels.Weighing | None]:
    """What a layer's attention adds to the mass, given how many of its tokens count."""
    if mass is None:
        return lambda _layer, _count: None
    total, chunk, half_life = mass.total, mass.chunk, mass.half_life  # not ``mass``: it must stay collectable

    def weighing(layer: int, count: Tensor | None) -> kernels.Weighing:
        assert count is not None
        return kernels.Weighing(total[layer], chunk, half_life, count)

    return weighing
