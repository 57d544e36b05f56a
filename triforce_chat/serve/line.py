"""The queue: clients take turns, and each client's own requests keep their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Full(Exception):
    """There is no room for one more."""


class Line(Generic[Item]):
    """Items of many clients, for one thread that takes them.

    At most ``most`` items wait, and at most ``share`` of one client, so that no client can lock others out.
    """

    def __init__(self, most: int, share: int) -> None:
        self.most, self.share = most, share
        self.waiting: dict[Hashable, deque[Item]] = {}  # in the order in which clients will be served
        self.changed = threading.Condition()
        self.closed = False

    def __len__(self) -> int:
        return sum(len(items) for items in list(self.waiting.values()))

    def add(self, client: Hashable, item: Item) -> None:
        """Put an item behind the client's others; raises Full."""
        with self.changed:
            own = len(self.waiting.get(client, ()))
            if self.closed or own >= self.share or len(self) >= self.most:
                raise Full
            self.waiting.setdefault(client, deque()).append(item)
            self.changed.notify()

    def take(self) -> Item | None:
        """The next item, once there is one; None when the line is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.waiting)
            if self.closed:
                return None
            client = next(iter(self.waiting))
            items = self.waiting.pop(client)
            item = items.popleft()
            if items:
                self.waiting[client] = items  # behind everybody else
            return item

    def remove(self, client: Hashable, item: Item) -> bool:
        """Take an item out of the line; False where it does not wait any more."""
        with self.changed:
            items = self.waiting.get(client, deque())
            if item not in items:
                return False
            items.remove(item)
            if not items:
                del self.waiting[client]
            return True

    def close(self) -> list[Item]:
        """Let nobody in any more; returns those who waited."""
        with self.changed:
            left = [item for items in self.waiting.values() for item in items]
            self.waiting.clear()
            self.closed = True
            self.changed.notify_all()
            return left
