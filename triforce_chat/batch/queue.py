"""Which lines are answered next, and by which worker: all lines about the same documents go to one worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence

from triforce_chat.batch.lines import Line


class Queue:
    """Lines that wait. A worker keeps a group of lines until it is empty, and then gets the next group."""

    def __init__(self, lines: Iterable[Line]) -> None:
        groups: dict[str, deque[Line]] = {}
        for line in lines:
            groups.setdefault(line.group, deque()).append(line)
        self._groups = deque(groups.values())
        self._own: dict[int, deque[Line]] = {}

    def __bool__(self) -> bool:
        """True while a line waits."""
        return bool(self._groups) or any(self._own.values())

    def next(self, worker: int, width: int, alone: Container[str]) -> list[Line]:
        """The lines that this worker should answer next, at most ``width``; none if none is left for it.

        A line whose id is in ``alone`` is answered by itself.
        """
        own = self._own.get(worker)
        if not own:
            if not self._groups:
                return []
            own = self._own[worker] = self._groups.popleft()
        taken = [own.popleft()]
        while own and len(taken) < width and taken[0].id not in alone and own[0].id not in alone:
            taken.append(own.popleft())
        return taken

    def put_back(self, worker: int, lines: Sequence[Line]) -> None:
        """The answers to these lines were lost; they are the next ones of this worker's group again."""
        self._own[worker].extendleft(reversed(lines))

    def drop_group(self, worker: int) -> list[Line]:
        """Take the rest of a worker's group out of the queue, and return it."""
        return list(self._own.pop(worker, ()))

    def release(self, worker: int) -> None:
        """The worker is gone, or starts again: the rest of its group is the next one that a free worker gets."""
        if rest := self._own.pop(worker, None):
            self._groups.appendleft(rest)
