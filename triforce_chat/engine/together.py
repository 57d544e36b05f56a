"""Several sequences at once: each decodes as if it were alone, and their forwards run together.

A sequence runs in a greenlet of its own, which stops whenever it wants a forward. When every sequence waits for one,
the forwards of one model over caches of one kind run as a single forward, whose rows belong to the sequences in turn.
So a sequence may draft as many tokens as it likes, accepts what passes, and ends when it ends; nobody waits for the
slowest acceptance, and no code of a level knows of other sequences. Sequences that begin with the same documents share
their keys and values, which attention then reads once for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

from greenlet import GreenletExit, getcurrent, greenlet

from triforce_chat.engine.cache.shared_prefix import SharedPrefix, SharedPrefixStorage
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage, Shape
from triforce_chat.engine.cuda_graph import LogitsAndStates
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Event, Prefilled
from triforce_chat.engine.forward.runner import Feed, Runner
from triforce_chat.engine.prefix_store import split_prompt
from triforce_chat.engine.protocol import EngineProtocol

Made = TypeVar("Made")
GRAIN = 1024  # tokens by which the room of a sequence grows


@dataclass(frozen=True, slots=True)
class Wanted:
    """A forward that a sequence waits for."""

    runner: Runner
    feed: Feed

    @property
    def kind(self) -> tuple[bool, int, int]:
        """Equal for forwards that can run together; the smallest is the cheapest.

        Cheap ones run first: whoever still drafts comes to verify, and then all verify together.
        """
        shape = self.runner.shape
        size = shape.layers * shape.query_heads * shape.head_dim
        return self.feed.cache.verifies, size, self.runner.weights


class Ended:
    """A sequence has ended."""


class Paused:
    """A sequence goes on when all others have come to a forward, or paused."""


@dataclass(eq=False)
class Member(Generic[Made]):
    """A running sequence: ``work`` yields what is passed on; its forwards come from the greenlet that resumes it."""

    number: int
    work: Callable[[], Generator[Made, None, Any]]
    wanted: Wanted | None = None
    result: LogitsAndStates | None = None
    error: BaseException | None = None
    thread: greenlet = field(init=False)

    def __post_init__(self) -> None:
        self.thread = greenlet(self._run)

    def _run(self) -> type[Ended]:
        try:
            with closing(self.work()) as made:
                for each in made:
                    switch_back(each)
        except (Exception, KeyboardInterrupt) as error:
            self.error = error
        return Ended

    def resume(self) -> Made | Wanted | type[Ended | Paused]:
        """What it yields next, the forward that it waits for, or that it has ended or pauses.

        Raises what the work raises.
        """
        if self.thread.parent is not getcurrent():
            self.thread.parent = getcurrent()
        given, self.result = self.result, None
        made: Made | Wanted | type[Ended | Paused] = (
            self.thread.switch(given) if given else self.thread.switch()
        )
        if self.error is not None:
            raise self.error
        return made

    def close(self) -> None:
        """End it where it is; its generators run their ``finally`` blocks."""
        if self.thread and not self.thread.dead:
            self.thread.parent = getcurrent()
            self.thread.throw(GreenletExit)


def switch_back(made: object) -> object:
    """Hand something to whoever resumed this greenlet; returns what it is resumed with."""
    caller = getcurrent().parent
    assert caller is not None
    return caller.switch(made)


class Gathered(Generic[Made]):
    """Runs the work of several sequences in turns; their runners must have been ``gathered_by`` this."""

    def __init__(self) -> None:
        self.members: list[Member[Made]] = []

    @property
    def sequences(self) -> int:
        return len(self.members)

    def computed(self, runner: Runner, feed: Feed) -> LogitsAndStates:
        """See ``Gathering``: called in a sequence's greenlet, returns when the forward was run."""
        return cast("LogitsAndStates", switch_back(Wanted(runner, feed)))

    def pause(self) -> None:
        """See ``Gathering``."""
        switch_back(Paused)

    def add(self, number: int, work: Callable[[], Generator[Made, None, Any]]) -> None:
        self.members.append(Member(number, work))

    def step(self) -> Iterator[tuple[int, Made | None]]:
        """Bring every sequence to its next forward, then run those of the cheapest kind together.

        Yields what the sequences yield, with their numbers, and None for one that has ended and is no longer among
        ``members``. A sequence that still reads its prompt goes on by one chunk.
        """
        ready = [*self.members]
        while ready:
            paused: list[Member[Made]] = []
            for member in ready:
                yield from self._advance(member, paused)
            ready = paused
        self._compute()

    def close(self) -> None:
        """End all sequences where they are."""
        while self.members:
            self.members.pop().close()

    def _advance(self, member: Member[Made], paused: list[Member[Made]]) -> Iterator[tuple[int, Made | None]]:
        while member.wanted is None:
            made = member.resume()
            if isinstance(made, Wanted):
                member.wanted = made
            elif made is Paused:
                paused.append(member)
                return
            elif made is Ended:
                self.members.remove(member)
                yield member.number, None
                return
            else:
                yield member.number, cast("Made", made)
                if isinstance(made, Prefilled):
                    return

    def _compute(self) -> None:
        waiting = [(member.wanted.kind, member) for member in self.members if member.wanted]
        if not waiting:
            return
        cheapest = min(kind for kind, _ in waiting)
        together = [member for kind, member in waiting if kind == cheapest]
        wanted = [member.wanted for member in together if member.wanted]
        results = wanted[0].runner.compute([each.feed for each in wanted])
        for member, result in zip(together, results, strict=True):
            member.wanted, member.result = None, result


def answer_together(
    engine: EngineProtocol,
    requests: Sequence[Request],
    answer: Callable[[EngineProtocol, Request], Generator[Made, None, Any]],
    width: int,
) -> Iterator[tuple[int | None, Made | Event | None]]:
    """Run ``answer`` for all requests, at most ``width`` at a time: (number of the request, what it yields).

    None is yielded for a request that has ended.
    The documents with which all prompts begin are read once, by ``engine``; events of that have no number. Each request
    gets an engine of its own; where engines cannot be forked, all are answered by ``engine``, one after the other.
    """
    origin = engine.forkable
    if origin is None or min(width, len(requests)) < 2:
        for number, request in enumerate(requests):
            for made in answer(engine, request):
                yield number, made
            yield number, None
        return
    shared = shared_prefix(origin, requests)
    for event in _prepared(origin, requests[0], shared):
        yield None, event
    gathered: Gathered[Made] = Gathered()
    waiting, places = deque(enumerate(requests)), Places(origin, shared, requests, width)
    try:
        while waiting or gathered.members:
            while waiting and len(gathered.members) < width:
                number, request = waiting.popleft()
                forked = origin.fork(shared, places.context, gathered, places.take(number))
                gathered.add(number, partial(answer, forked, request))
            for ran, each in gathered.step():
                if each is None:
                    places.release(ran)
                yield ran, each
    finally:
        gathered.close()


class Places:
    """Where the sequences keep their keys and values: side by side, after a shared prefix if there is one.

    ``context``: tokens that each has room for, shared ones included.
    """

    def __init__(self, engine: Engine, shared: int, requests: Sequence[Request], width: int) -> None:
        longest = max(len(request.history) + request.max_tokens for request in requests)
        self.engine, self.shared = engine, shared
        # Rounded, so that the next requests find the room, and graphs that were captured for it, as they need them.
        own = -(-(longest - shared) // GRAIN) * GRAIN
        self.context = min(engine.context, shared + own)
        self.count = min(width, len(requests))
        self._free, self._taken = list(range(self.count)), dict[int, int]()

    def take(self, number: int) -> Place:
        """Where a request's sequence keeps its own."""
        place = self._taken[number] = self._free.pop(0)
        return Place(self.engine, self.shared, self.count, place)

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
        self.made = 0  # small caches

    def storage(self, shape: Shape, capacity: int) -> KVStorage:
        """Room for ``capacity`` tokens, the shared ones included."""
        if not self.shared:
            return self._buffer("full", shape, capacity)
        pool = self.engine.pool("full", shape, self.count, capacity - self.shared)
        return SharedPrefixStorage(SharedPrefix(self.engine.full.storage, self.shared, pool), self.place)

    def buffer(self, shape: Shape, capacity: int) -> KVBuffer:
        self.made += 1
        return self._buffer(f"small {self.made}", shape, capacity)

    def _buffer(self, role: str, shape: Shape, capacity: int) -> KVBuffer:
        pool = self.engine.pool(role, shape, self.count, capacity)
        return KVBuffer(shape, capacity, pool, self.place)


def shared_prefix(engine: Engine, requests: Sequence[Request]) -> int:
    """How many tokens all prompts begin with, in whole chunks of a prefill; each keeps at least one of its own."""
    first = requests[0]
    common = min(len(request.history) for request in requests) - 1
    for request in requests[1:]:
        pairs = zip(first.prompt, request.prompt, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if i == common or a != b), common)
    plan = split_prompt(first.prompt, first.spans, engine.prefix.chunk_size)
    return max((chunk.end for chunk in plan if chunk.end <= common), default=0)


def _prepared(engine: Engine, request: Request, shared: int) -> Iterator[Event]:
    """Measure what repeatable plans go by, if that was not done, and read exactly the shared prefix."""
    if engine.forked_options.repeatable:
        yield from engine.calibrate(request)
    yield from engine.prefill(request.prompt[:shared], request.spans)
