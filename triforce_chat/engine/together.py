"""Several sequences at once: each decodes as if it were alone, and their forwards run together.

A sequence may draft as many tokens as it likes, accepts what passes, and ends when it ends; nobody waits for the
slowest acceptance, and no code of a level knows of other sequences (see ``gathered``). Sequences that begin with the
same documents share their keys and values, which attention then reads once for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from triforce_chat.engine.cache.shared_prefix import SharedPrefix, SharedPrefixStorage
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage, Shape
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.events import Event
from triforce_chat.engine.gathered import Ended, Gathered
from triforce_chat.engine.prefix_store import split_prompt
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.errors import TriforceError

Made = TypeVar("Made")


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
        shared = shared_prefix(origin, requests)
        for event in _prepared(origin, requests[0], shared):
            yield None, event
        places = Places(origin, shared, requests, width)
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


def _end(number: int, ended: Ended) -> Iterator[tuple[int, TriforceError | None]]:
    """What is said of a request that has ended. Raises errors that no user can understand."""
    if isinstance(ended.error, TriforceError):
        yield number, ended.error
    elif ended.error:
        raise ended.error
    yield number, None


class Places:
    """Where the sequences keep their keys and values: side by side after a shared prefix, or each by itself.

    ``context``: tokens that each has room for, shared ones included.
    """

    def __init__(self, engine: Engine, shared: int, requests: Sequence[Request], width: int) -> None:
        longest = max(len(request.history) + request.max_tokens for request in requests)
        self.origin, self.shared = engine, shared
        self.context = min(engine.context, longest)
        self._free, self._taken = list(range(min(width, len(requests)))), dict[int, int]()
        self._sequences = (
            SharedPrefix(
                engine.full.storage,
                shared,
                engine.full.shape,
                len(self._free),
                self.context + SLACK - shared,
            )
            if shared
            else None
        )

    def fork(self, number: int, gathered: Gathered[Any]) -> Engine:
        """An engine for a request."""
        return self.origin.fork(self.shared, self.context, gathered, self.take(number))

    def take(self, number: int) -> Callable[[Shape, int], KVStorage]:
        """What makes the storage of a request's sequence."""
        place = self._taken[number] = self._free.pop(0)
        if self._sequences is None:
            return KVBuffer
        storage = SharedPrefixStorage(self._sequences, place)
        return lambda _shape, _capacity: storage

    def release(self, number: int) -> None:
        """The request has ended; the lowest places are taken first, so that those in use lie side by side."""
        self._free = sorted([*self._free, self._taken.pop(number)])


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
