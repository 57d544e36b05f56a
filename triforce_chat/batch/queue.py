"""Which line is answered next, and by which worker: all lines about the same documents go to one worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

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

    def next(self, worker: int) -> Line | None:
        """The line that this worker should answer next; None if no line is left for it."""
        own = self._own.get(worker)
        if not own:
            if not self._groups:
                return None
            own = self._own[worker] = self._groups.popleft()
        return own.popleft()

    def put_back(self, worker: int, line: Line) -> None:
        """The line's answer was lost; it is the next one of this worker's group again."""
        self._own[worker].appendleft(line)

    def drop_group(self, worker: int) -> list[Line]:
        """Take the rest of a worker's group out of the queue, and return it."""
        return list(self._own.pop(worker, ()))

    def release(self, worker: int) -> None:
        """The worker is gone, or starts again: the rest of its group is the next one that a free worker gets."""
        if rest := self._own.pop(worker, None):
            self._groups.appendleft(rest)
