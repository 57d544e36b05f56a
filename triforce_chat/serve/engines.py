"""Lends engines to requests: one to all of them in turn, or one to each of several that are answered at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, KVPool, KVStorage
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.events import Prefilled
from triforce_chat.engine.gathered import Gathered
from triforce_chat.engine.prefix_cache import common, piece_of
from triforce_chat.engine.prefix_store import DocumentSpan, split_prompt
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.together import Place, Places
from triforce_chat.errors import OutOfMemory
from triforce_chat.memory_plan.batch import room_each
from triforce_chat.models.failures import convert_out_of_memory
from triforce_chat.models.memory import free_bytes
from triforce_chat.serve.api_error import ApiError
from triforce_chat.settings.sizes import readable

LEAST_ROOM = 256  # tokens after the documents, for a question and a short answer


class Lender(Protocol):
    """Lends an engine for one answer; ``gathered`` runs up to ``width`` answers at once."""

    width: int
    gathered: Gathered[Any]

    def read(
        self, prompt: Sequence[int], spans: Sequence[DocumentSpan], samplings: Sequence[Sampling]
    ) -> Iterator[Prefilled]:
        """Read the documents with which prompts begin, and meanwhile prepare for answers by these settings."""
        ...

    def prepare(self) -> None:
        """Do what there was no time for while documents were read."""
        ...

    def lent(
        self, history: Sequence[int], most: int, stack: StackOptions
    ) -> AbstractContextManager[EngineProtocol]:
        """An engine with this stack for a prompt and ``most`` tokens of prompt and answer. Raises ApiError."""
        ...


class SingleEngine:
    """Lends one engine, which must be returned before it is lent again."""

    width = 1

    def __init__(self, engine: EngineProtocol) -> None:
        self.engine, self.gathered = engine, Gathered[Any]()

    def read(
        self, prompt: Sequence[int], spans: Sequence[DocumentSpan], samplings: Sequence[Sampling]
    ) -> Iterator[Prefilled]:
        if spans:
            yield from self.engine.prefill(prompt, spans, samplings[0])

    def prepare(self) -> None:
        """An engine by itself captures at the first use."""

    @contextmanager
    def lent(
        self,
        history: Sequence[int],  # noqa: ARG002
        most: int,  # noqa: ARG002
        stack: StackOptions,
    ) -> Iterator[EngineProtocol]:
        if stack != self.engine.options:
            self.engine.restack(stack)
        yield self.engine


class OwnRoom:
    """Keys and values of an engine that shares nothing with others."""

    count = 1

    def storage(self, shape: Shape, capacity: int) -> KVStorage:
        return self.buffer(shape, capacity)

    def buffer(self, shape: Shape, capacity: int) -> KVBuffer:
        # CUDA graphs of several sequences are those of a pool.
        return KVBuffer(shape, capacity, KVPool(shape, 1, capacity))

    def begin(self, stack: str) -> None:
        """Nothing to do: every stack makes its own buffers."""


@dataclass(eq=False)
class Seat:
    """An engine of a sequence. It keeps what it read for a later request that continues the same conversation."""

    engine: Engine
    room: Place | OwnRoom
    shared: bool  # whether it lies beside others, after the documents in the cache of the first engine
    held: int = 0  # tokens for which it has taken memory
    busy: bool = False
    lent: int = 0  # the number of the last loan


class ForkedEngines:
    """Lends up to ``width`` engines at a time, forked from one that reads the documents and keeps them for all.

    ``prompt``: what comes before the first question of most requests, and the places of documents there. One that does
    not begin with them, as another system prompt comes before, is read and kept by an engine by itself. Raises
    OutOfMemory.
    """

    def __init__(
        self, origin: Engine, width: int, prompt: Sequence[int], spans: Sequence[DocumentSpan]
    ) -> None:
        self.origin, self.width, self.gathered = origin, width, Gathered[Any]()
        chunks = split_prompt(prompt, spans, origin.prefix.chunk_size) if spans else []
        self.shared = chunks[-1].end if chunks else 0
        self.prefix, self.seats, self._loans = list(prompt[: self.shared]), list[Seat](), count(1)
        origin.give_way(self.shared)
        room = room_for(origin, self.shared, width)
        # Of an engine that shares the documents.
        self.context = min(origin.context, self.shared + room - SLACK)
        self.places = Places(origin, self.shared, self.context, width)
        self._preparations: Iterator[Preparation] = iter(())
        with convert_out_of_memory():  # now, not at the first request
            origin.pool("full", origin.full.shape, width, self.context + SLACK - self.shared)

    def read(
        self, prompt: Sequence[int], spans: Sequence[DocumentSpan], samplings: Sequence[Sampling]
    ) -> Iterator[Prefilled]:
        self.origin.require_room(len(prompt))
        if self.origin.target.captures:
            stack = self._options(self.origin.forked_options, self.width, shares=True).name
            asked = [*prompt, *LEAST_ROOM * [0]]
            requests = [Request(asked, 1, sampling) for sampling in samplings]
            self._preparations = self.places.preparations(requests, stack)
        if self.shared:
            yield from self.origin.prefix.prefill(prompt, spans, self._preparations)

    def prepare(self) -> None:
        for prepare in self._preparations:
            prepare()

    @contextmanager
    def lent(self, history: Sequence[int], most: int, stack: StackOptions) -> Iterator[EngineProtocol]:
        seat = self._seat(history, most)
        seat.busy, seat.lent = True, next(self._loans)
        try:
            wanted = self._options(stack, seat.room.count, seat.shared)
            if wanted != seat.engine.options:
                seat.room.begin(wanted.name)
                seat.engine.restack(wanted)
            yield seat.engine
        finally:
            seat.busy = False

    def _seat(self, history: Sequence[int], most: int) -> Seat:
        """The idle one that has read most of this prompt, a new one, or the one that was idle for longest."""
        shares = most <= self.context and list(history[: self.shared]) == self.prefix
        alike = [seat for seat in self.seats if seat.shared == shares]
        idle = sorted((seat for seat in alike if not seat.busy), key=lambda seat: seat.lent)
        start = self.shared if shares else 0
        own = history[start:]
        known = {seat: common(seat.engine.cached[start:], own) for seat in alike}
        seat = max(idle, key=known.__getitem__, default=None)
        if seat is None or 2 * known[seat] < len(own):
            seat = self._new(shares, len(alike)) if len(alike) < self.width else idle[0]
        self._require(seat, most - start)
        if seat not in self.seats:
            self.seats.append(seat)
        # What another seat has read of the same prompt, even for an answer in progress, is not read again.
        holder = max(alike, key=known.__getitem__, default=seat)
        if known.get(holder, 0) > known.get(seat, 0):
            seat.engine.prefix.take_over(holder.engine.prefix, start + known[holder])
        return seat

    def _new(self, shares: bool, place: int) -> Seat:
        if not shares and self.origin.target.device.type == "cuda":  # which takes all of it at once
            self._check(self.origin.context)
        room = self.places.place(place) if shares else OwnRoom()
        room.begin(self._options(self.origin.forked_options, room.count, shares).name)
        shared, context = (self.shared, self.context) if shares else (0, self.origin.context)
        with convert_out_of_memory():
            engine = self.origin.fork(shared, context, self.gathered, room)
        engine.prefix.piece = piece_of(
            engine.target, context
        )  # so that no answer waits long for another one's prompt
        return Seat(engine, room, shares)

    def _options(self, stack: StackOptions, sequences: int, shares: bool) -> StackOptions:
        return self.origin.gathered_options(stack, sequences, self.shared if shares else 0)

    def _require(self, seat: Seat, tokens: int) -> None:
        """Count ``tokens`` as held by a seat, for which main memory is only taken once they are written."""
        if tokens > seat.held and self.origin.target.device.type == "cpu":
            self._check(tokens - seat.held)
        seat.held = max(seat.held, tokens)

    def _check(self, tokens: int) -> None:
        """Raises ApiError if so many more tokens do not fit into the memory."""
        needed = tokens * self.origin.full.shape.bytes_per_token
        free = free_bytes(self.origin.target.device)
        if free is None or needed <= free:
            return
        running = sum(seat.busy for seat in self.seats)
        raise ApiError(
            503,
            f"no memory for another answer at once: {tokens:,} tokens of keys and values take {readable(needed)}, "
            f"{readable(free)} are free; answers in progress: {running:,}; try again later",
            OutOfMemory.code,
            None,
            {"Retry-After": "1"},
        )


def room_for(origin: Engine, shared: int, width: int) -> int:
    """Tokens after the documents that each of ``width`` sequences has room for. Raises OutOfMemory.

    Main memory is taken as it is written, so there it is what the context has left.
    """
    most, device = origin.context + SLACK - shared, origin.target.device
    free = free_bytes(device) if device.type == "cuda" else None
    room = most if free is None else min(most, room_each(free, width, origin.full.shape.bytes_per_token))
    if room < min(most, LEAST_ROOM + SLACK):
        raise OutOfMemory(
            f"no memory for {width} answers at once: each needs room for {LEAST_ROOM} tokens after the documents, and "
            f"there is room for {max(0, room - SLACK):,}; choose a smaller --parallel or --context"
        )
    return room
