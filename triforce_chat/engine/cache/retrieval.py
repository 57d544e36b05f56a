"""The retrieval cache: for each layer and KV head, the chunks of the full cache that recent queries attend to.

TriForce, section 4.1. Layout of the slots: [sinks | selected chunks | tail | new tokens]; the tail is
everything from the last candidate chunk on, so the newest text is always present word for word.

It is made while the target's own forward passes through the full cache: each layer's keys are at hand there
wherever they are kept, and the queries of the tokens that are being verified do the choosing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.selection import Policy, Recent, best, masses
from triforce_chat.engine.cache.storage import Counted, KVBuffer, KVView, WriteSlot
from triforce_chat.engine.events import Event, RebuildReason, Rebuilt
from triforce_chat.engine.kernels_available import kernels_run


@dataclass(frozen=True, slots=True)
class Budget:
    """Sizes in tokens."""

    tokens: int = 1024  # what a build keeps: sinks, selected chunks and tail together
    chunk: int = 8
    sinks: int = 16
    tail: int = 64
    stride: int = 128  # new tokens after which the cache is built again
    scratch: int = 128  # room beyond the stride: a round until the next build, and proposals
    queries: int = 16  # latest tokens whose queries choose

    @property
    def capacity(self) -> int:
        return (
            self.tokens + 2 * self.chunk + self.stride + self.scratch
        )  # sinks and tail end on chunk borders


class FallingAcceptance:
    """Says when proposals are accepted clearly less often than they were (TriForce, section 4.1)."""

    def __init__(self, drop: float = 0.15, patience: int = 24) -> None:
        self.drop, self.patience = drop, patience
        self.usual: float | None = None
        self.reset()

    def reset(self) -> None:
        self.recent, self.tested = 1.0 if self.usual is None else self.usual, 0

    def judged(self, proposed: int, accepted: int) -> None:
        for passed in [True] * accepted + [False] * (accepted < proposed):
            self.tested += 1
            self.recent += 0.1 * (passed - self.recent)
            self.usual = float(passed) if self.usual is None else self.usual + 0.01 * (passed - self.usual)

    def __bool__(self) -> bool:
        return self.tested >= self.patience and self.recent < (self.usual or 0) - self.drop


@dataclass(frozen=True, slots=True)
class Layout:
    """What a build takes from the first ``total`` tokens: the first ones, some chunks, the last ones."""

    total: int
    sinks: int  # tokens
    chunks: int  # to choose from those between sinks and tail
    tail: int  # position of its first token
    chunk: int  # tokens

    @staticmethod
    def of(total: int, budget: Budget) -> Layout:
        first = -(-budget.sinks // budget.chunk)  # candidate chunks: first .. last-1
        last = max(first, (total - budget.tail) // budget.chunk)
        room = (budget.tokens - budget.sinks - budget.tail) // budget.chunk
        if last - first <= room:
            return Layout(total, 0, 0, 0, budget.chunk)
        return Layout(total, first * budget.chunk, room, last * budget.chunk, budget.chunk)

    @property
    def kept(self) -> int:
        """Tokens in chosen chunks."""
        return self.chunks * self.chunk

    @property
    def filled(self) -> int:
        """Slots that the build takes."""
        return self.sinks + self.kept + self.total - self.tail

    def candidates(self, part: Tensor) -> Tensor:
        """The chunks to choose from: [..., S, D] -> [..., C, chunk, D]."""
        chunks: Tensor = part[..., self.sinks : self.tail, :].unflatten(-2, (-1, self.chunk))
        return chunks

    def take(self, part: Tensor, chosen: Tensor | None, out: Tensor) -> None:
        """Copy one layer's keys or values: [Hkv, S, D], chosen [Hkv, chunks] -> the first slots of out."""
        out[:, : self.sinks] = part[:, : self.sinks]
        out[:, self.sinks + self.kept : self.filled] = part[:, self.tail : self.total]
        if chosen is None:
            return
        places = out[:, self.sinks : self.sinks + self.kept].unflatten(1, (-1, self.chunk))
        for place, chunks, row in zip(places, self.candidates(part), chosen, strict=True):
            torch.index_select(chunks, 0, row, out=place)

    def take_all(self, parts: Tensor, chosen: Tensor | None, out: Tensor) -> None:
        """The same of several layers, [layers, ...] each: where Triton runs, in one launch."""
        if kernels_run(parts.device):
            from triforce_chat.engine.kernels import gather_chunks

            gather_chunks(parts, chosen, out, self.sinks, self.tail, self.total, self.chunk)
            return
        picks = [None] * len(parts) if chosen is None else chosen
        for part, pick, place in zip(parts, picks, out, strict=True):
            self.take(part, pick, place)


class RetrievalCache(Counted):
    """A view of ``source`` that is small enough to read quickly; it owns no second truth.

    Tokens that the full cache has verified replace what this cache wrote for them in the same forward. While
    it is not prepared, the next forward through the source builds it, unless that brings more than fits.
    """

    def __init__(
        self, source: FullCache, budget: Budget, policy: Policy | Recent, emit: Callable[[Event], None]
    ) -> None:
        self.source, self.budget, self.policy, self.emit = source, budget, policy, emit
        self.storage = KVBuffer(source.shape, budget.capacity)
        self.layout = Layout.of(0, budget)  # of the last build
        self.built = False  # and of all layers
        self.verified_length = 0  # tokens up to here hold verified keys and values
        self.requested = False  # somebody proposes out of it
        self.following = False  # the present forward leaves its keys and values here
        self.building: RebuildReason | None = None  # it builds the cache as well
        self.seconds = 0.0
        self.falling = FallingAcceptance()
        source.observers.add(self)

    def ready(self, more: int) -> bool:
        self.requested = True
        here = self.source.length
        return self.built and self.verified_length == here and self._slot(here) + more <= self.budget.capacity

    def update(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> KVView:  # noqa: ARG002
        return self.storage.write(layer, self._slot(self.length), k, v)

    def write_slot(self) -> WriteSlot | None:
        return WriteSlot(self.storage, self._slot(self.length))

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.verified_length = min(self.verified_length, length)
        self.built = self.built and length >= self.layout.total

    def judged(self, proposed: int, accepted: int) -> None:
        self.falling.judged(proposed, accepted)

    def on_layer(self, layer: int, k: Tensor, v: Tensor, view: KVView) -> None:
        if layer == 0:
            self._begin(k.shape[2])
        if self.building:
            self._build(layer, view.keys, view.values, view.length)
        if self.following:
            self.storage.write(layer, self._slot(self.source.length), k, v)

    def on_graph_forward(self, buffer: KVBuffer, n: int) -> None:
        self._begin(n)
        here = self.source.length
        if self.building:
            self._build(0, buffer.keys, buffer.values, here + n)
        if self.following:
            slot = self._slot(here)
            for mine, theirs in ((self.storage.keys, buffer.keys), (self.storage.values, buffer.values)):
                mine[:, :, slot : slot + n] = theirs[:, :, here : here + n]

    def on_forward(self) -> None:
        if self.following:
            self.verified_length = self.length = self.source.length
        if self.building:
            self.built, self.requested = True, False
            self.falling.reset()
            self.emit(Rebuilt(self.layout.total, self.building, self.seconds))
        self.following, self.building = False, None

    def _begin(self, n: int) -> None:
        """A forward of n tokens enters the source."""
        here = self.source.length
        layout = Layout.of(here, self.budget)
        fits = layout.filled + n <= self.budget.capacity
        self.building = self._worn() if self.requested and fits else None
        if self.building:
            # Not before it is complete: an interrupt may come at any line.
            self.layout, self.built, self.seconds = layout, False, 0.0
        stands = self.built and self.verified_length == here and self._slot(here) + n <= self.budget.capacity
        self.following = bool(self.building) or stands

    def _worn(self) -> RebuildReason | None:
        """Why it needs another build. Only what is committed may ask for one, never a pending proposal."""
        here, base = self.source.length, self.layout.total
        if not self.built:
            return "rewind" if base else "first"
        if here - base >= self.budget.stride or self.verified_length < here:
            return "stride"
        return "acceptance" if self.falling and here > base else None

    def _slot(self, position: int) -> int:
        return self.layout.filled + position - self.layout.total

    def _build(self, first: int, keys: Tensor, values: Tensor, length: int) -> None:
        """Take what belongs here from layers ``first``, ...: keys and values [layers, Hkv, S, D]."""
        started = time.perf_counter()
        chosen = self._best(first, keys, length) if self.layout.chunks else None
        layers = slice(first, first + len(keys))
        self.layout.take_all(keys, chosen, self.storage.keys[layers])
        self.layout.take_all(values, chosen, self.storage.values[layers])
        self.seconds += time.perf_counter() - started

    def _best(self, first: int, keys: Tensor, length: int) -> Tensor:
        """The chunks of each layer that the latest queries attend to most: [layers, Hkv, chunks]."""
        layers = slice(first, first + len(keys))
        queries = self.source.queries.latest(layers, length, self.budget.queries)
        return best(masses(self.policy, queries, self.layout.candidates(keys)), self.layout.chunks)
