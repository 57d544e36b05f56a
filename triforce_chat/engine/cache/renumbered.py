"""A retrieval cache whose positions are counted inside of it: StreamingH2O's, as the middle level's cache.

It selects as an ``InPlaceCache`` does, by all attention that tokens were ever paid. But a key says where it stands by
its rotation, and so the selected keys are copied and turned to positions without gaps, as StreamingLLM has it for the
latest tokens alone (arXiv 2309.17453).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from triforce_chat.engine.cache.evicting import turned
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.in_place import InPlaceCache
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.events import Event

NOTHING = -1  # tokens of the source


class RenumberedCache(InPlaceCache):
    """What ``InPlaceCache`` lists, copied from ``source`` whenever that holds other tokens than the last time."""

    def __init__(
        self,
        source: FullCache,
        budget: Budget,
        emit: Callable[[Event], None],
        frequencies: Tensor,
        weighs_all: bool = False,
        buffer: Callable[[Shape, int], KVBuffer] = KVBuffer,
    ) -> None:
        """``frequencies`` [D/2]: of the model's rotary embedding."""
        self.frequencies, self.storage = frequencies, buffer(source.shape, budget.capacity)
        super().__init__(source, budget, emit, None, weighs_all)

    def restart(self) -> None:
        super().restart()
        self.copied = NOTHING  # tokens of the source of which the copies are a selection

    @property
    def position(self) -> int:
        return self._read(self.length - self.source.forgotten)

    def ready(self, more: int) -> bool:
        if self.known is not None and self.copied != self.source.held:
            self.unselected = True  # also where no attention was added
        return super().ready(more)

    def _fill(self, layout: Layout) -> None:
        self.copied = NOTHING  # an interrupt may come at any line
        super()._fill(layout)
        places = torch.arange(layout.filled, device=self.slots.device)
        for layer in range(self.source.shape.layers):
            slots = self.slots[layer, :, : layout.filled].long()
            view = self.source.storage.view(layer, layout.total)
            index = slots[..., None].expand(-1, -1, view.keys.shape[3])
            keys = turned(view.keys[0].gather(1, index), places - slots, self.frequencies)
            self.storage.write(layer, 0, keys[None], view.values[0].gather(1, index)[None])
        self.copied = layout.total

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        return self.storage.write(layer, self.position, k, v)

    def write_slot(self) -> WriteSlot | None:
        return WriteSlot(self.storage, self.position)

    def truncate(self, length: int) -> None:
        super().truncate(length)
        if length - self.source.forgotten < self.copied:
            self.copied = NOTHING
