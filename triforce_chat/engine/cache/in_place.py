"""A retrieval cache without copies: lists of the full cache's slots, selected again after every verification.

While the target verifies, its attention also adds up what the queries of each KV head pay to every chunk. The chunks
with the most are listed, and the middle level's attention reads them in place. Its own new tokens go after the
full cache's tokens, where the next verification overwrites them. Selecting by a verification's attention is Vegas'
(arXiv 2602.07223) and SparseSpec's (arXiv 2512.01278).

If attention never fades, that of prefills counts, too, and chunks are single tokens, the selection is H2O's (arXiv
2306.14048): heavy hitters, and as many of the latest tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

import torch
from torch import Tensor

from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.chunk_mass import ChunkMass, chunk_mass
from triforce_chat.engine.cache.full import FullCache, fading_mass
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.selection import best
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, SlotList, WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.events import Event, RebuildReason, Rebuilt

MOST_ROWS = 64  # tokens of a verification; more are a prefill, whose attention selects nothing
HALF_LIFE = 16  # verified tokens after which a query's attention counts half


class InPlaceCache(KVCache):
    """What the middle level reads of ``source``: sinks, the chunks that its verifications attend to, and the tail.

    The first call of ``ready`` selects what the latest queries attend to. From then on a forward of few tokens through
    the source is weighed if ``ready`` was called since the last one. What it found waits until ``ready`` is called
    again, when the history holds what was committed of it. So the selection depends on tokens and choices of the past
    alone, and an answer may break off before it.

    ``half_life``: verified tokens after which a query's attention counts half; None: never. ``weighs_all``: every
    forward is weighed, prefills too, whether ``ready`` was called or not. ``captured``: forwards of few tokens are CUDA
    graphs; all of these are weighed, and no others.
    """

    def __init__(
        self,
        source: FullCache,
        budget: Budget,
        emit: Callable[[Event], None],
        half_life: float | None = HALF_LIFE,
        weighs_all: bool = False,
        captured: bool = False,
    ) -> None:
        self.source, self.budget, self.emit = source, budget, emit
        self.half_life, self.weighs_all = half_life, weighs_all
        weighed = budget.chunk, half_life or inf
        self.fading = source.weighed_by(*weighed) if captured else None
        self.mass = (self.fading or fading_mass(source.shape, source.storage.capacity, *weighed)).total
        self.listed, self.rehearsed = slot_list(source.shape, budget), False
        self.slots = self.listed.slots
        self.restart()
        source.observers.add(self)

    def restart(self) -> None:
        """Return to the initial state: nothing is selected, and ``ready`` was not called."""
        self.length = 0
        self.layout = Layout.of(0, self.budget)  # of the latest selection
        self.selected = False  # the slots are what ``layout`` says
        self._forget()
        self.requested = False  # ``ready`` was called since the last build
        self.weighed: int | None = None  # tokens before the present forward, if it is weighed
        self.seconds = 0.0  # that the selection takes, without what is a by-product

    def _forget(self) -> None:
        """The mass says nothing, until another forward is weighed."""
        self.known: int | None = None  # tokens before what was weighed last; None: nothing was
        self.unselected = False  # the slots do not say yet what that forward found

    @property
    def position(self) -> int:
        return self.source.position + self.length - self.source.length

    def ready(self, more: int) -> bool:
        """See ``KVCache``."""
        self.requested = True
        if self.known is None and not self.weighs_all:
            self._weigh_latest()
        here = self.source.held
        # The source has seen them all, however they came there.
        self.length = max(self.length, self.source.length)
        if self.unselected:
            self._select(Layout.of(here, self.budget))
        held = self.length - self.source.forgotten  # with what was drawn already, for a level between
        fits = held + more <= self.source.storage.capacity
        return self.selected and fits and self._read(held) + more <= self.budget.capacity

    def _read(self, held: int) -> int:
        """How many of the first ``held`` slots are read."""
        return self.layout.filled + held - self.layout.total

    def _select(self, layout: Layout) -> None:
        """List the chunks with the most attention."""
        started = time.perf_counter()
        reason: RebuildReason | None = None if self.selected else "rewind" if self.layout.total else "first"
        # An interrupt may come at any line, and must not leave slots that are not of the layout.
        self.selected = False
        self._fill(layout)
        self.layout = layout
        self.selected, self.unselected = True, False
        self.seconds += time.perf_counter() - started
        if reason:
            self.emit(Rebuilt(layout.total, reason, self.seconds))

    def _fill(self, layout: Layout) -> None:
        chunk, kept, device = layout.chunk, layout.sinks + layout.selected, self.slots.device
        self.slots[..., : layout.sinks] = torch.arange(layout.sinks, device=device)
        if layout.chunks:
            first, last = layout.sinks // chunk, layout.tail // chunk
            chosen = first + best(self.mass[..., first:last], layout.chunks)
            places = chosen[..., None] * chunk + torch.arange(chunk, device=device)
            self.slots[..., layout.sinks : kept] = places.flatten(-2)
        end = layout.tail + self.budget.capacity - kept
        self.slots[..., kept:] = torch.arange(layout.tail, end, device=device)

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        if self.length < self.source.length:
            raise ValueError(f"slot {self.length} of {self.source.length} that were verified")
        view = self.source.storage.write(layer, self.length - self.source.forgotten, k, v)
        read = self._read(view.length)
        return view._replace(length=read, slots=self.slots[layer, :, :read])

    def write_slot(self) -> WriteSlot | None:
        if self.length < self.source.length:
            return None
        held = self.length - self.source.forgotten
        return self._slot(held, self._read(held))

    def vacant(self) -> WriteSlot | None:
        return self._slot(max(self.length, self.source.length) - self.source.forgotten, 0)

    def _slot(self, held: int, read: int) -> WriteSlot | None:
        slot = self.source.storage.slot(held)
        return slot and slot._replace(listed=self.listed, read=read)

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.selected = self.selected and length - self.source.forgotten >= self.layout.total
        if self.known is not None and length < self.known:
            if self.weighs_all and length:  # a prefill's attention would not come back
                self.unselected, self.known = True, length
                self.mass[..., -(-length // self.budget.chunk) :] = 0
            else:
                self._forget()

    def on_layer(self, layer: int, k: Tensor, v: Tensor, view: KVView) -> ChunkMass | None:  # noqa: ARG002
        n = k.shape[2]
        if layer == 0:
            few = self.requested and n <= MOST_ROWS and self.fading is None and self.known is not None
            self._begin(self.weighs_all or few)
        if self.weighed is None:
            return None
        mass = ChunkMass(self.mass[layer], self.budget.chunk)
        if self.known is None:
            mass.total.zero_()
        elif self.half_life is not None:
            mass.total.mul_(0.5 ** (n / self.half_life))
        return mass

    def _begin(self, weighed: bool) -> None:
        """A forward enters the source, which is weighed or not."""
        if self.weighed is not None:  # the last one broke off within some layer
            self._forget()
        self.weighed = None
        if weighed:
            self.weighed, self.unselected, self.seconds = self.source.length, False, 0.0

    def on_graph_forward(self, slot: WriteSlot, n: int) -> None:  # noqa: ARG002
        self._begin(slot.mass is not None and slot.mass is self.fading and self.known is not None)

    def _weigh_latest(self) -> None:
        """Begin with the attention of the latest queries, if any are known."""
        started, source, slot = time.perf_counter(), self.source, self.source.storage.slot(0)
        queries = source.queries.latest(slice(None), source.position, self.budget.queries).flip(2)
        if queries.shape[2] and slot:
            self.mass.zero_()
            (self._add_plainly if self.fading is None else self._add_by_kernels)(queries, slot.storage)
            self.known, self.unselected = source.length, True
        self.seconds = time.perf_counter() - started

    def _add_plainly(self, queries: Tensor, buffer: KVBuffer) -> None:
        """Add what queries [layers, Hq, m, D] of the latest m tokens pay."""
        for mass, q, keys in zip(self.mass, queries, buffer.keys, strict=True):
            paid = chunk_mass(q, keys[:, : self.source.held].to(q.dtype), self.budget.chunk).sum((1, 2))
            mass[:, : paid.shape[1]] += paid

    def _add_by_kernels(self, queries: Tensor, buffer: KVBuffer) -> None:
        """``_add_plainly`` by the kernels that captured forwards weigh with."""
        from triforce_chat.engine import kernels

        m, device, scale = queries.shape[2], queries.device, queries.shape[-1] ** -0.5
        at, counted = (torch.full((1,), value, device=device) for value in (self.source.held - m, m))
        for layer, q in enumerate(queries.transpose(1, 2)):
            weighing = kernels.Weighing(self.mass[layer], self.budget.chunk, inf, counted)
            given = q, buffer.keys[layer], buffer.values[layer], at, scale, buffer.capacity
            kernels.decode_attention(*given, weighing=weighing)

    def on_forward(self) -> None:
        self.length = self.source.length
        if self.weighed is not None:
            self.known, self.unselected = self.weighed, True
            self.weighed, self.requested = None, False

    def preparations(self) -> list[Preparation]:
        """A rehearsal of the first selection: loading its kernels takes far longer."""
        return [] if self.rehearsed or self.fading is None else [self._rehearse]

    @torch.inference_mode()
    def _rehearse(self) -> None:
        if not self.selected:
            self.rehearsed = True
            self._fill(Layout.of(self.source.storage.capacity, self.budget))


def slot_list(shape: Shape, budget: Budget) -> SlotList:
    """Room for the slots that each KV head reads in each layer, each list aligned for vector loads."""
    size = shape.layers, shape.kv_heads, rounded_up(budget.capacity)
    slots = torch.zeros(size, dtype=torch.int32, device=shape.device)
    return SlotList(slots[..., : budget.capacity])
