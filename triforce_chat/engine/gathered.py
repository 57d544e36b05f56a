"""Runs the work of several sequences in turns, each in a greenlet of its own, and their forwards together.

A sequence stops whenever it wants a forward. When every sequence waits for one, the forwards of one model over caches
of one kind run as a single forward, whose rows belong to the sequences in turn. Sequences may join and leave between
any two of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from greenlet import GreenletExit, getcurrent, greenlet

from triforce_chat.engine.cuda_graph import LogitsAndStates
from triforce_chat.engine.events import Prefilled
from triforce_chat.engine.forward.runner import Feed, Runner

Made = TypeVar("Made")


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

    @property
    def pool(self) -> tuple[int, int]:
        """Equal for forwards that one CUDA graph can run: their keys and values lie in one pool, after one prefix."""
        slot = self.feed.cache.write_slot() if self.runner.decoder else None
        return (id(slot.storage.pool), id(slot.prefix)) if slot else (0, 0)


class Paused:
    """A sequence goes on when all others have come to a forward, or paused."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence has ended, by an error if there is one."""

    error: Exception | None = None


@dataclass(eq=False)
class Member(Generic[Made]):
    """A running sequence: ``work`` yields what is passed on; its forwards come from the greenlet that resumes it."""

    number: int
    work: Callable[[], Generator[Made, None, Any]]
    wanted: Wanted | None = None
    result: LogitsAndStates | Exception | None = None
    thread: greenlet = field(init=False)

    def __post_init__(self) -> None:
        self.thread = greenlet(self._run)

    def _run(self) -> Ended:
        try:
            with closing(self.work()) as made:
                for each in made:
                    switch_back(each)
        except Exception as error:
            return Ended(error)
        return Ended()

    def resume(self) -> Made | Wanted | Ended | Paused:
        """What it yields next, the forward that it waits for, or that it has ended or pauses."""
        if self.thread.parent is not getcurrent():
            self.thread.parent = getcurrent()
        given, self.result = self.result, None
        if isinstance(given, Exception):
            return cast("Made | Wanted | Ended | Paused", self.thread.throw(given))
        made = self.thread.switch(given) if given else self.thread.switch()
        return cast("Made | Wanted | Ended | Paused", made)

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
    """Runs the work of several sequences in turns; their runners must have been ``gathered_by`` this.

    The work of a runner that was not runs without a stop, so then there should be one sequence at a time.
    """

    def __init__(self) -> None:
        self.members: list[Member[Made]] = []
        self._readers: deque[Member[Made]] = (
            deque()
        )  # whose prompts are not read yet, the next one to go on first

    @property
    def sequences(self) -> int:
        return len(self.members)

    def computed(self, runner: Runner, feed: Feed) -> LogitsAndStates:
        """See ``Gathering``: called in a sequence's greenlet, returns when the forward was run."""
        return cast("LogitsAndStates", switch_back(Wanted(runner, feed)))

    def pause(self) -> None:
        """See ``Gathering``."""
        switch_back(Paused())

    def add(self, number: int, work: Callable[[], Generator[Made, None, Any]]) -> None:
        """Let a sequence join at the next step."""
        self.members.append(Member(number, work))

    def end(self, number: int) -> None:
        """End a sequence where it is, between two of what it yields; the others go on."""
        for member in [each for each in self.members if each.number == number]:
            self._remove(member)
            member.close()

    def step(self) -> Iterator[tuple[int, Made | Ended]]:
        """Bring every sequence to its next forward, then run those of the cheapest kind together.

        Yields what the sequences yield, with their numbers, and ``Ended`` for one that is no longer among
        ``members``. Of those that still read their prompts one goes on, in turn, by one piece, so that the others'
        next forward comes soon.
        """
        turn = self._readers.popleft() if self._readers else None
        ready = [member for member in self.members if member is turn or member not in self._readers]
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
        self._readers.clear()

    def _advance(
        self, member: Member[Made], paused: list[Member[Made]]
    ) -> Iterator[tuple[int, Made | Ended]]:
        while member.wanted is None and member in self.members:
            made = member.resume()
            if isinstance(made, Wanted):
                member.wanted = made
            elif isinstance(made, Paused):
                paused.append(member)
                return
            elif isinstance(made, Ended):
                self._remove(member)
                yield member.number, made
            else:
                reads = isinstance(made, Prefilled) and made.done < made.total
                if reads:
                    self._readers.append(member)
                yield member.number, made
                if reads:
                    return

    def _remove(self, member: Member[Made]) -> None:
        self.members.remove(member)
        if member in self._readers:
            self._readers.remove(member)

    def _compute(self) -> None:
        """Run the forwards of the cheapest kind together, those of different pools one after the other."""
        kinds = {member: member.wanted.kind for member in self.members if member.wanted}
        cheapest = min(kinds.values(), default=None)
        pools: dict[tuple[int, int], list[Member[Made]]] = {}
        for member, kind in kinds.items():
            if member.wanted and kind == cheapest:
                pools.setdefault(member.wanted.pool, []).append(member)
        for members in pools.values():
            results = computed([member.wanted for member in members if member.wanted])
            for member, result in zip(members, results, strict=True):
                member.wanted = None
                member.result = kept(result) if len(pools) > 1 else result


def computed(wanted: Sequence[Wanted]) -> list[LogitsAndStates | Exception]:
    """The forwards' results. Where they fail together each is run by itself, so that one's error is its own."""
    try:
        return [*wanted[0].runner.compute([each.feed for each in wanted])]
    except Exception as error:
        if len(wanted) == 1:
            return [error]
    return [kept(result) for each in wanted for result in computed([each])]


def kept(result: LogitsAndStates | Exception) -> LogitsAndStates | Exception:
    """The result in memory of its own, which the next forward does not overwrite."""
    return result if isinstance(result, Exception) else (result[0].clone(), result[1].clone())
