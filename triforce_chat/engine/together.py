"""Several sequences at once: each decodes as if it were alone, and their forwards run together.

A sequence may draft as many tokens as it likes, accepts what passes, and ends when it ends; none waits for the
slowest acceptance, and no code of a level knows of other sequences (see ``gathered``). Sequences that begin with the
same documents share their keys and values, which attention then reads once for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.shared_prefix import SharedPrefix, SharedPrefixStorage
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage
from triforce_chat.engine.cuda_graph import Preparation
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.events import Event
from triforce_chat.engine.gathered import Ended, Gathered
from triforce_chat.engine.prefix_cache import common
from triforce_chat.engine.prefix_store import split_prompt
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.errors import TriforceError

Made = TypeVar("Made")
GRAIN = 1024  # tokens by which the room of a sequence grows


def answer_together(
    engine: EngineProtocol,
    requests: Sequence[Request],
    answer: Callable[[EngineProtocol, Request], Generator[Made, None, Any]],
    width: int,
) -> Iterator[tuple[int | None, Made | Event | TriforceError | None]]:
    """Run ``answer`` for all requests, at most ``width`` at a time: (number of the request, what it yields).

    None is yielded for a request that has ended, after the error if one has ended it; the others go on. Errors of other
    kinds are bugs, and end all.
    The documents with which all prompts begin are read once, by ``engine``; events of that have no number. Each request
    gets an engine of its own; where engines cannot be forked, all are answered by ``engine``, one after the other.
    """
    if not requests:
        return
    origin = engine.forkable
    gathered: Gathered[Made] = Gathered()
    waiting, width = deque(enumerate(requests)), min(width, len(requests))
    places = None
    if origin is None or width < 2:
        width = 1
    else:
        places = Places.of(origin, requests, width)
        for event in _prepared(origin, requests[0], places):
            yield None, event
    try:
        while waiting or gathered.members:
            while waiting and len(gathered.members) < width:
                number, request = waiting.popleft()
                used = places.fork(number, gathered) if places else engine
                gathered.add(number, partial(answer, used, request))
            for ran, made in gathered.step():
                if not isinstance(made, Ended):
                    yield ran, made
                    continue
                if places:
                    places.release(ran)
                yield from _end(ran, made)
    finally:
        gathered.close()


def prepare_together(engine: EngineProtocol, requests: Sequence[Request], width: int) -> None:
    """Capture all graphs that ``answer_together`` may need, after a prefill of what the prompts share."""
    origin = engine.forkable
    if origin is not None and origin.target.captures:
        for prepare in Places.of(origin, requests, width).preparations(requests[:1]):
            prepare()


def _end(number: int, ended: Ended) -> Iterator[tuple[int, TriforceError | None]]:
    """What is said of a request that has ended. Raises errors that no user can understand."""
    if isinstance(ended.error, TriforceError):
        yield number, ended.error
    elif ended.error:
        raise ended.error
    yield number, None


class Places:
    """Where ``count`` sequences keep their keys and values: side by side, after a shared prefix if there is one.

    ``context``: tokens that each has room for, shared ones included.
    """

    def __init__(self, engine: Engine, shared: int, context: int, count: int) -> None:
        self.engine, self.shared, self.context, self.count = engine, shared, context, count
        self._free, self._taken = list(range(count)), dict[int, int]()

    @staticmethod
    def of(engine: Engine, requests: Sequence[Request], width: int, shared: int | None = None) -> Places:
        """Places for up to ``width`` of the requests; ``shared``: their common tokens, by default all of them."""
        shared = shared_prefix(engine, requests) if shared is None else shared
        longest = max(len(request.history) + request.max_tokens for request in requests)
        # Rounded, so that the next requests find the room, and graphs that were captured for it, as they need them.
        own = -(-(longest - shared) // GRAIN) * GRAIN
        context = min(engine.context, shared + own)
        return Places(engine, shared, context, min(width, len(requests)))

    @property
    def bytes_each(self) -> int:
        """Bytes of one sequence's own keys and values in the full cache."""
        shape, own = self.engine.full.shape, self.context + SLACK - self.shared
        return rounded_up(own) * shape.bytes_per_token

    def fork(self, number: int, gathered: Gathered[Any]) -> Engine:
        """An engine for a request."""
        return self.engine.fork(self.shared, self.context, gathered, self.take(number))

    def take(self, number: int) -> Place:
        """Where a request's sequence keeps its own."""
        place = self._taken[number] = self._free.pop(0)
        return self.place(place)

    def place(self, number: int) -> Place:
        """The place of that number."""
        return Place(self.engine, self.shared, self.count, number)

    def preparations(self, requests: Sequence[Request], stack: str = "") -> Iterator[Preparation]:
        """Captures of the graphs of all sequences for such requests, the first of them first.

        None before a chunk of what they share has been read. ``stack``: whose small caches, see ``Place``.
        """
        read = min(self.engine.prefix.complete, self.shared)
        if self.shared and not read:
            return
        place = Place(self.engine, read, self.count, 0)
        place.begin(stack)
        one = self.engine.fork(read, self.context - self.shared + read, Gathered(), place)
        for request in requests:
            yield from one.top.preparations(len(request.history), one.sampler(request))

    def release(self, number: int) -> None:
        """The request has ended; the lowest places are taken first, so that those in use lie side by side."""
        self._free = sorted([*self._free, self._taken.pop(number)])


class Place:
    """One of several places in the pools of an engine.

    ``storage`` is for the full cache, ``buffer`` for a stack's small ones, which must be made in the same order for
    every sequence.
    """

    def __init__(self, engine: Engine, shared: int, count: int, place: int) -> None:
        self.engine, self.shared, self.count, self.place = engine, shared, count, place
        self.stack, self.made = "", 0  # whose small caches are made, and how many were

    def begin(self, stack: str) -> None:
        """The small caches that are made next are those of another stack, or of the same one again."""
        self.stack, self.made = stack, 0

    def storage(self, shape: Shape, capacity: int) -> KVStorage:
        """Room for ``capacity`` tokens, the shared ones included."""
        if not self.shared:
            return self._buffer("full", shape, capacity)
        pool = self.engine.pool("full", shape, self.count, capacity - self.shared)
        return SharedPrefixStorage(SharedPrefix(self.engine.full.storage, self.shared, pool), self.place)

    def buffer(self, shape: Shape, capacity: int) -> KVBuffer:
        self.made += 1
        return self._buffer(f"{self.stack} small {self.made}", shape, capacity)

    def _buffer(self, role: str, shape: Shape, capacity: int) -> KVBuffer:
        pool = self.engine.pool(role, shape, self.count, capacity)
        return KVBuffer(shape, capacity, pool, self.place)


def shared_prefix(engine: Engine, requests: Sequence[Request]) -> int:
    """How many tokens all prompts begin with, in whole chunks of a prefill; each keeps at least one of its own."""
    first = requests[0]
    most = min(len(request.history) for request in requests) - 1
    most = min([most, *(common(first.prompt, request.prompt) for request in requests[1:])])
    plan = split_prompt(first.prompt, first.spans, engine.prefix.chunk_size)
    return max((chunk.end for chunk in plan if chunk.end <= most), default=0)


def _prepared(engine: Engine, request: Request, places: Places) -> Iterator[Event]:
    """Measure what repeatable plans go by, if that was not done, and read exactly the shared prefix.

    Meanwhile a GPU's graphs of several sequences are captured.
    """
    if engine.gathered_options(engine.forked_options, places.count, places.shared).repeatable:
        yield from engine.calibrate(request)
    engine.require_room(places.shared)
    meanwhile = places.preparations([request]) if engine.target.captures else ()
    yield from engine.prefix.prefill(request.prompt[: places.shared], request.spans, meanwhile)
