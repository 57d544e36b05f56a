"""The retrieval cache: for each layer and KV head, the chunks of the full cache that recent queries attend to.

TriForce, section 4.1. It is built while one of the target's own forwards passes through the full cache: there each
layer's keys are at hand wherever they are kept, and the queries of the tokens being verified do the selecting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial

import torch
from torch import Tensor

from triforce_chat.engine.cache.chunk_mass import ChunkMass
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.selection import Policy, select
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, WriteSlot
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.events import Event, RebuildReason, Rebuilt


class State(Enum):
    """The state of the chunks that a retrieval cache holds."""

    STALE = "stale"  # there are none, or some layers lack theirs, or the history was cut within them
    BUILDING = "building"  # the present forward selects them; still so if that forward broke off
    READY = "ready"  # all layers hold what ``layout`` says


class FallingAcceptance:
    """Notices when proposals are accepted clearly less often than usual (TriForce, section 4.1).

    ``drop`` is the difference of the recent acceptance rate from the usual one, and ``patience`` how many tokens must
    have been tested since the last build.
    """

    def __init__(self, drop: float = 0.15, patience: int = 24) -> None:
        self.drop, self.patience = drop, patience
        self.usual: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start again, after a build."""
        self.recent, self.tested = 1.0 if self.usual is None else self.usual, 0

    def judged(self, proposed: int, accepted: int) -> None:
        """Learn from a verification; only the accepted tokens and the first rejected one were tested."""
        for passed in [True] * accepted + [False] * (accepted < proposed):
            self.tested += 1
            self.recent += 0.1 * (passed - self.recent)
            self.usual = float(passed) if self.usual is None else self.usual + 0.01 * (passed - self.usual)

    def __bool__(self) -> bool:
        return self.tested >= self.patience and self.recent < (self.usual or 0) - self.drop


class RetrievalCache(KVCache):
    """A copy of a part of ``source`` that is small enough to be read quickly.

    Proposals are drawn from it, and the keys and values they leave are provisional: what the full cache then stores
    for the verified tokens replaces them. The selected chunks go through these states::

        STALE ----> BUILDING ----> READY      a forward through the source enters | has passed all layers
                       ^             |
                       +-------------+        a forward enters, and the stride is used up or acceptance fell
        STALE <--- BUILDING, READY            the source is truncated to less than they were selected from

    A build starts only if ``ready`` was called since the last one and the forward's tokens fit beside it; a
    forward that breaks off leaves BUILDING, and the next one begins as from STALE. If ``early``, the forward that
    completes a prompt builds as well, so that the first round drafts: for sources of which a forward takes long.
    """

    fading = None  # it selects when it is built

    def __init__(
        self,
        source: FullCache,
        budget: Budget,
        policy: Policy,
        emit: Callable[[Event], None],
        buffer: Callable[[Shape, int], KVBuffer] = KVBuffer,
        early: bool = False,
    ) -> None:
        self.source, self.budget, self.policy, self.emit = source, budget, policy, emit
        self.storage, self.early = buffer(source.shape, budget.capacity), early
        self.rehearsed = False
        self.restart()
        source.observers.add(self)

    @property
    def position(self) -> int:
        return self.source.position + self.length - self.source.length

    def restart(self) -> None:
        """Return to the initial state: nothing is selected, and ``ready`` was not called."""
        self.length = 0
        self.layout = Layout.of(0, self.budget)  # of the latest build
        self.state = State.STALE
        self.reason: RebuildReason = "first"  # of the latest build
        self.seconds = 0.0  # that it took
        self.verified_length = 0  # tokens up to here have verified keys and values
        self.requested = False  # ``ready`` was called since the last build
        self.completes = False  # the next forward completes a prompt
        self.appends = False  # the present forward's keys and values are copied here
        self.falling = FallingAcceptance()

    def ready(self, more: int) -> bool:
        """See ``KVCache``; if it is not, the next forward through the source builds it."""
        self.requested = True
        ahead = max(0, self.length - self.source.length)  # drawn already, for a level between
        return self._holds_all(ahead + more)

    def completes_prompt(self) -> None:
        if self.early:
            self.requested = self.completes = True

    def _holds_all(self, more: int) -> bool:
        """Whether it covers every verified token, with room for ``more``."""
        here = self.source.length
        covers = self.state is State.READY and self.verified_length == here
        return covers and self._slot(here) + more <= self.budget.capacity

    def _slot(self, length: int) -> int:
        return self.layout.filled + length - self.source.forgotten - self.layout.total

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        return self.storage.write(layer, self._slot(self.length), k, v)

    def write_slot(self) -> WriteSlot | None:
        return WriteSlot(self.storage, self._slot(self.length))

    def vacant(self) -> WriteSlot | None:
        kept = max(
            self.verified_length, self.length
        )  # a level between may have confirmed more than was verified
        return WriteSlot(self.storage, self._slot(kept) if self.state is State.READY else 0)

    def preparations(self) -> list[Preparation]:
        """A rehearsal of the first build: loading its kernels takes far longer than the build itself."""
        some = self.source.storage.on_device
        return [] if self.rehearsed or some is None else [partial(self._rehearse, some)]

    @torch.inference_mode()
    def _rehearse(self, buffer: KVBuffer) -> None:
        # By then little of the document may be there; whatever else the memory holds serves as well.
        layout = Layout.of(min(buffer.capacity, self.source.length + 2 * self.budget.tokens), self.budget)
        if self.state is not State.STALE or not layout.chunks:
            return
        self.rehearsed, layers = True, len(buffer.keys)
        queries = self.source.queries.data[:layers, :, : self.budget.queries]
        chosen = select(self.policy, queries, layout.candidates(buffer.keys), layout.chunks)
        layout.gather(buffer.keys, chosen, self.storage.keys[:layers])
        layout.gather(buffer.values, chosen, self.storage.values[:layers])

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.verified_length = min(self.verified_length, length)
        if length - self.source.forgotten < self.layout.total:
            self.state = State.STALE

    def judged(self, proposed: int, accepted: int) -> None:
        self.falling.judged(proposed, accepted)

    def on_layer(self, layer: int, k: Tensor, v: Tensor, view: KVView) -> ChunkMass | None:
        if layer == 0:
            self._begin(k.shape[2])
        if self.state is State.BUILDING:
            self._build(layer, *view.whole, self.source.position + k.shape[2], self.layout.total)
        if self.appends:
            self.storage.write(layer, self._slot(self.source.length), k, v)
        return None

    def on_graph_forward(self, slot: WriteSlot, n: int) -> None:
        self._begin(n, slot.shared)
        here, end = self.source.held, self.source.position + n
        if self.state is State.BUILDING and slot.grouped:
            for layer in range(
                self.source.shape.layers
            ):  # one after the other: the numbers of all take much memory
                self._build(layer, *self.source.storage.view(layer, here).whole, end, self.layout.total)
        elif self.state is State.BUILDING:
            before, held = (slot.prefix, slot.shared) if slot.prefix else (slot.storage, here)
            self._build(0, before.keys, before.values, end, held)
            self._append(slot._replace(start=0).written(here - held), self.layout.filled - (here - held))
        if self.appends:
            self._append(slot.written(n), self._slot(self.source.length))

    def _append(self, written: tuple[Tensor, Tensor], to: int) -> None:
        """Copy keys and values [layers, Hkv, n, D] to the slots from ``to`` on."""
        n = written[0].shape[2]
        self.storage.keys[:, :, to : to + n], self.storage.values[:, :, to : to + n] = written

    def on_forward(self) -> None:
        if self.appends or self.state is State.BUILDING:
            self.verified_length = self.length = self.source.length
        if self.state is State.BUILDING:
            self.state, self.requested = State.READY, False
            self.falling.reset()
            self.emit(Rebuilt(self.layout.total, self.reason, self.seconds))
        self.appends = False

    def _begin(self, n: int, shared: int = 0) -> None:
        """A forward of n tokens enters the source: decide whether it builds, and whether its tokens go here.

        ``shared``: see ``Layout``.
        """
        if self.state is State.BUILDING:  # the last build broke off
            self.state = State.STALE
        whole, self.completes = (
            self.completes,
            False,
        )  # whether to select among its own tokens, too: all are committed
        layout = Layout.of(self.source.held + (n if whole else 0), self.budget, shared)
        fits = whole or layout.filled + n <= self.budget.capacity
        reason = self._rebuild_reason(whole) if self.requested and fits else None
        if reason:
            self.reason, self.seconds = reason, 0.0
            # The state first: an interrupt may come at any line, and must not leave it READY with another layout.
            self.state = State.BUILDING
            self.layout = layout
        self.appends = not whole if reason else self._holds_all(n)

    def _rebuild_reason(self, whole: bool) -> RebuildReason | None:
        """Why another build is due, judged by committed tokens alone, never by a pending proposal.

        ``whole``: the forward completes a prompt, of which the build selects.
        """
        here, base = self.source.held, self.layout.total
        if self.state is State.STALE:
            return "rewind" if base else "first"
        if whole or here - base >= self.budget.stride or self.verified_length < self.source.length:
            return "stride"
        return "acceptance" if self.falling and here > base else None

    def _build(self, first: int, keys: Tensor, values: Tensor, end: int, held: int) -> None:
        """Fill layers ``first``, ... from keys and values [layers, Hkv, S, D] of the source.

        ``end``: the position after the latest query. ``held``: of the layout's tokens, those whose keys and values are
        among these.
        """
        started = time.perf_counter()
        chosen = self._select(first, keys, end) if self.layout.chunks else None
        layers, layout = slice(first, first + len(keys)), replace(self.layout, total=held)
        layout.gather(keys, chosen, self.storage.keys[layers])
        layout.gather(values, chosen, self.storage.values[layers])
        self.seconds += time.perf_counter() - started

    def _select(self, first: int, keys: Tensor, end: int) -> Tensor:
        """The chunks of each layer that the latest queries attend to most: [layers, Hkv, chunks]."""
        layers = slice(first, first + len(keys))
        queries = self.source.queries.latest(layers, end, self.budget.queries)
        return select(self.policy, queries, self.layout.candidates(keys), self.layout.chunks)
