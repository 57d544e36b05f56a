"""The fair queue: clients take turns, and no client can lock out the others."""

from __future__ import annotations

import threading

import pytest

from triforce_chat.serve.fair_queue import FairQueue, QueueFull


def drained(queue: FairQueue[str]) -> list[str]:
    return [queue.take() or "" for _ in range(len(queue))]


def test_clients_take_turns() -> None:
    queue = FairQueue[str](20, 10)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        queue.add(name[0], name)
    assert drained(queue) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_late_client_waits_one_turn_per_client() -> None:
    queue = FairQueue[str](20, 10)
    for name in ("a1", "a2", "a3"):
        queue.add("a", name)
    assert queue.take() == "a1"
    queue.add("b", "b1")
    assert drained(queue) == ["a2", "b1", "a3"]


def test_the_queue_is_limited_in_all_and_per_client() -> None:
    queue = FairQueue[str](5, 3)
    for n in range(3):
        queue.add("a", f"a{n}")
    with pytest.raises(QueueFull):
        queue.add("a", "a3")
    queue.add("b", "b0")
    queue.add("c", "c0")
    with pytest.raises(QueueFull):
        queue.add("d", "d0")
    queue.take()
    queue.add("d", "d0")
    assert len(queue) == 5


def test_a_removed_item_makes_room() -> None:
    queue = FairQueue[str](2, 2)
    queue.add("a", "a0")
    queue.add("a", "a1")
    assert queue.remove("a", "a0")
    assert not queue.remove("a", "a0")
    assert not queue.remove("z", "a1")
    queue.add("b", "b0")
    assert drained(queue) == ["a1", "b0"]
    assert queue.waiting == {}


def test_a_closed_queue() -> None:
    queue = FairQueue[str](5, 5)
    queue.add("a", "a0")
    queue.add("b", "b0")
    assert queue.close() == ["a0", "b0"]
    assert queue.take() is None
    with pytest.raises(QueueFull):
        queue.add("a", "a1")


def test_take_waits() -> None:
    queue, taken = FairQueue[str](5, 5), list[str | None]()
    first = threading.Event()

    def take() -> None:
        taken.append(queue.take())
        first.set()
        taken.append(queue.take())

    thread = threading.Thread(target=take)
    thread.start()
    queue.add("a", "a0")
    assert first.wait(10)
    queue.close()
    thread.join(10)
    assert taken == ["a0", None]
