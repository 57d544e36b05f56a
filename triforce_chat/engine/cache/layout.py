"""How the slots of a retrieval cache are used: [sinks | selected chunks | tail | new tokens]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triforce_chat.engine.kernels_available import kernels_run


@dataclass(frozen=True, slots=True)
class Budget:
    """Sizes of a retrieval cache in tokens."""

    tokens: int = 1024  # sinks, selected chunks and tail together, as a build leaves them
    chunk: int = 8
    sinks: int = 16
    tail: int = 64
    stride: int = 128  # new tokens after which the cache is built again
    scratch: int = 128  # room beyond the stride: for a round until the next build, and for proposals
    queries: int = 16  # latest tokens whose queries select

    @property
    def capacity(self) -> int:
        """Slots to allocate; sinks and tail may each grow to a chunk boundary."""
        return self.tokens + 2 * self.chunk + self.stride + self.scratch


@dataclass(frozen=True, slots=True)
class Layout:
    """What a build takes from the first ``total`` tokens: sinks, selected chunks, and the tail.

    The tail starts after the last candidate chunk, so the newest text is always present verbatim.
    """

    total: int
    sinks: int  # tokens
    chunks: int  # to select from those between sinks and tail
    tail: int  # position of its first token
    chunk: int  # tokens per chunk

    @staticmethod
    def of(total: int, budget: Budget, shared: int = 0) -> Layout:
        """The layout for ``total`` tokens; everything is tail where all of them fit the budget.

        ``shared``, if there are any, are the first tokens, after which no chunk is selected: the others are all tail.
        """
        tail = max(budget.tail, total - shared if shared else 0)
        first = -(-budget.sinks // budget.chunk)  # candidate chunks: first .. last-1
        last = max(first, (total - tail) // budget.chunk)
        room = max(0, budget.tokens - budget.sinks - tail) // budget.chunk
        if last - first <= room:
            return Layout(total, 0, 0, 0, budget.chunk)
        return Layout(total, first * budget.chunk, room, last * budget.chunk, budget.chunk)

    @property
    def selected(self) -> int:
        """Tokens in selected chunks."""
        return self.chunks * self.chunk

    @property
    def filled(self) -> int:
        """Slots that a build fills."""
        return self.sinks + self.selected + self.total - self.tail

    def candidates(self, part: Tensor) -> Tensor:
        """The chunks to select from: [..., S, D] -> [..., C, chunk, D], a view."""
        chunks: Tensor = part[..., self.sinks : self.tail, :].unflatten(-2, (-1, self.chunk))
        return chunks

    def gather_layer(self, part: Tensor, chosen: Tensor | None, out: Tensor) -> None:
        """Copy one layer's keys or values part [Hkv, S, D] to the first slots of out [Hkv, capacity, D].

        ``chosen`` [Hkv, chunks] counts candidates; None if there are none to select.
        """
        out[:, : self.sinks] = part[:, : self.sinks]
        out[:, self.sinks + self.selected : self.filled] = part[:, self.tail : self.total]
        if chosen is None:
            return
        slots = out[:, self.sinks : self.sinks + self.selected].unflatten(1, (-1, self.chunk))
        for head_slots, chunks, row in zip(slots, self.candidates(part), chosen, strict=True):
            torch.index_select(chunks, 0, row, out=head_slots)

    def gather(self, parts: Tensor, chosen: Tensor | None, out: Tensor) -> None:
        """``gather_layer`` for several layers, a leading dimension of each tensor; one launch where Triton runs."""
        if kernels_run(parts.device):
            from triforce_chat.engine.kernels import gather_chunks

            gather_chunks(parts, chosen, out, self.sinks, self.tail, self.total, self.chunk)
            return
        rows = [None] * len(parts) if chosen is None else chosen
        for part, row, slots in zip(parts, rows, out, strict=True):
            self.gather_layer(part, row, slots)
