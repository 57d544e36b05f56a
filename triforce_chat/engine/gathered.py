"""Runs several sequences in turns, each in a greenlet of its own, and their forwards and verifications together.

A sequence stops whenever it wants one of these. When every sequence waits, the cheapest tasks that are alike run as
one: the forwards of one model over caches of one kind as a single forward, whose rows belong to the sequences in turn,
and the verifications by one rule as a single one. Sequences may join and leave between any two of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor

from triforce_chat.engine.events import Prefilled

ROWS = 64  # of a verification of all sequences that run together after a common prefix, or on a CPU
# Where a GPU reads each one's own keys once, and weights for as many rows in hardly more time.
ROWS_APART = 192
Passed = TypeVar("Passed")
Result = tuple[Tensor | Any, ...]  # of a task; a NamedTuple stays one


@dataclass(frozen=True, slots=True)
class Task:
    """Work that a sequence waits for, and that runs as one with others' like it.

    order: the smallest is the cheapest and comes first: sequences that still draft reach their verification, and then
    all verify together. alike: equal for tasks of the same order that one call of ``run`` does. run: what it is given
    for each sequence, to its results. ``given``: for this one. lasting: the next run does not overwrite its results.
    """

    order: tuple[bool, int, int]
    alike: Hashable
    run: Callable[[Sequence[Any]], Sequence[Result]]
    given: Any
    lasting: bool = False


class Gathering(Protocol):
    """Gathers the tasks of several sequences, to run those together that are alike."""

    @property
    def sequences(self) -> int:
        """How many are running."""
        ...

    def done(self, task: Task) -> Any:
        """The result of a task of the sequence that calls this."""
        ...

    def pause(self) -> None:
        """Return when every other sequence has launched what it can."""
        ...


class Paused:
    """A sequence goes on when all others have come to a task, or paused."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence has ended, by an error if there is one."""

    error: Exception | None = None


@dataclass(eq=False)
class Member(Generic[Passed]):
    """A running sequence: ``work`` yields what is passed on, and resuming its greenlet passes in results of tasks."""

    number: int
    work: Callable[[], Generator[Passed, None, Any]]
    task: Task | None = None
    result: Result | Exception | None = None
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

    def resume(self) -> Passed | Task | Ended | Paused:
        """What it yields next, the task that it waits for, or that it has ended or pauses."""
        if self.thread.parent is not getcurrent():
            self.thread.parent = getcurrent()
        given, self.result = self.result, None
        if isinstance(given, Exception):
            return cast("Passed | Task | Ended | Paused", self.thread.throw(given))
        made = self.thread.switch(given) if given else self.thread.switch()
        return cast("Passed | Task | Ended | Paused", made)

    def close(self) -> None:
        """End it where it is; its generators run their ``finally`` blocks."""
        if self.thread and not self.thread.dead:
            self.thread.parent = getcurrent()
            self.thread.throw(GreenletExit)


def switch_back(made: object) -> object:
    """Hand something to the greenlet that resumed this one; returns what it is resumed with."""
    caller = getcurrent().parent
    assert caller is not None
    return caller.switch(made)


class Gathered(Generic[Passed]):
    """A ``Gathering``: runs the work of several sequences in turns.

    Work of an engine that was not forked for it runs without a stop, so then there should be one sequence at a time.
    """

    def __init__(self) -> None:
        self.members: list[Member[Passed]] = []
        self._readers: deque[Member[Passed]] = (
            deque()
        )  # whose prompts are not read yet, the next one to go on first

    @property
    def sequences(self) -> int:
        return len(self.members)

    def done(self, task: Task) -> Any:
        """See ``Gathering``: called in a sequence's greenlet, returns when the task was run."""
        return switch_back(task)

    def pause(self) -> None:
        """See ``Gathering``."""
        switch_back(Paused())

    def add(self, number: int, work: Callable[[], Generator[Passed, None, Any]]) -> None:
        """Let a sequence join at the next step."""
        self.members.append(Member(number, work))

    def end(self, number: int) -> None:
        """End a sequence where it is, between two of what it yields; the others go on."""
        for member in [each for each in self.members if each.number == number]:
            self._remove(member)
            member.close()

    def step(self) -> Iterator[tuple[int, Passed | Ended]]:
        """``advance``, then ``compute``."""
        yield from self.advance()
        self.compute()

    def advance(self) -> Iterator[tuple[int, Passed | Ended]]:
        """Bring every sequence to its next task.

        Yields what the sequences yield, with their numbers, and ``Ended`` for one that is no longer among
        ``members``. Of those that still read their prompts one goes on, in turn, by one piece, so that the others'
        next task comes soon.
        """
        turn = self._readers.popleft() if self._readers else None
        ready = [member for member in self.members if member is turn or member not in self._readers]
        while ready:
            paused: list[Member[Passed]] = []
            for member in ready:
                yield from self._advance(member, paused)
            ready = paused

    def compute(self) -> None:
        """Run the cheapest tasks, those that are alike as one and the others one after the other."""
        orders = {member: member.task.order for member in self.members if member.task}
        cheapest = min(orders.values(), default=None)
        alike: dict[Hashable, list[tuple[Member[Passed], Task]]] = {}
        for member, order in orders.items():
            if member.task and order == cheapest:
                alike.setdefault(member.task.alike, []).append((member, member.task))
        for waiting in alike.values():
            results = results_of([task for _, task in waiting])
            for (member, task), result in zip(waiting, results, strict=True):
                member.task = None
                member.result = own_copy(result) if len(alike) > 1 and not task.lasting else result

    def close(self) -> None:
        """End all sequences where they are."""
        while self.members:
            self.members.pop().close()
        self._readers.clear()

    def _advance(
        self, member: Member[Passed], paused: list[Member[Passed]]
    ) -> Iterator[tuple[int, Passed | Ended]]:
        while member.task is None and member in self.members:
            made = member.resume()
            if isinstance(made, Task):
                member.task = made
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

    def _remove(self, member: Member[Passed]) -> None:
        self.members.remove(member)
        if member in self._readers:
            self._readers.remove(member)


def results_of(tasks: Sequence[Task]) -> list[Result | Exception]:
    """The results of tasks that are alike. Where they fail together each runs by itself: one's error is its own."""
    try:
        return [*tasks[0].run([each.given for each in tasks])]
    except Exception as error:
        if len(tasks) == 1:
            return [error]
    return [own_copy(result) for each in tasks for result in results_of([each])]


def own_copy(result: Result | Exception) -> Result | Exception:
    """The result in memory of its own, which the next run does not overwrite."""
    if isinstance(result, Exception):
        return result
    own = [each.clone() if isinstance(each, Tensor) else each for each in result]
    return type(result)(own) if type(result) is tuple else type(result)(*own)


def rows_each(sequences: int, apart: bool) -> int:
    """Most rows that each of so many sequences has in a verification of all of them; ``apart``: they share nothing.

    More would take the attention over common tokens another pass.
    """
    return max(2, (ROWS_APART if apart else ROWS) // sequences)
