"""A queue that serves clients in turn and keeps the order of each client's own requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class QueueFull(Exception):
    """The queue has no room for another item of this client, or it is closed."""


class FairQueue(Generic[Item]):
    """Items of many clients for one consumer thread.

    It holds at most ``max_items``, and at most ``max_per_client`` of one client, so that no client can lock out
    the others.
    """

    def __init__(self, max_items: int, max_per_client: int) -> None:
        self.max_items, self.max_per_client = max_items, max_per_client
        self.waiting: dict[Hashable, deque[Item]] = {}  # in the order in which clients will be served
        self.changed = threading.Condition()
        self.closed = False

    def __len__(self) -> int:
        return sum(len(items) for items in list(self.waiting.values()))

    def add(self, client: Hashable, item: Item) -> None:
        """Append an item to the client's others. Raises QueueFull."""
        with self.changed:
            own = len(self.waiting.get(client, ()))
            if self.closed or own >= self.max_per_client or len(self) >= self.max_items:
                raise QueueFull
            self.waiting.setdefault(client, deque()).append(item)
            self.changed.notify()

    def take(self, wait: bool = True) -> Item | None:
        """Remove the next item and return it; None if the queue is closed, or empty and ``wait`` is False."""
        with self.changed:
            if wait:
                self.changed.wait_for(lambda: self.closed or self.waiting)
            if self.closed or not self.waiting:
                return None
            client = next(iter(self.waiting))
            items = self.waiting.pop(client)
            item = items.popleft()
            if items:
                self.waiting[client] = items  # the client's next turn is after those of all others
            return item

    def remove(self, client: Hashable, item: Item) -> bool:
        """Remove a waiting item; False if it no longer waits."""
        with self.changed:
            items = self.waiting.get(client, deque())
            if item not in items:
                return False
            items.remove(item)
            if not items:
                del self.waiting[client]
            return True

    def close(self) -> list[Item]:
        """Accept no more items; returns those that were waiting."""
        with self.changed:
            left = [item for items in self.waiting.values() for item in items]
            self.waiting.clear()
            self.closed = True
            self.changed.notify_all()
            return left
