"""The queue: clients take turns, nobody is locked out, nobody waits for what is gone."""

from __future__ import annotations

import threading

import pytest

from triforce_chat.serve.line import Full, Line


def drained(line: Line[str]) -> list[str]:
    return [line.take() or "" for _ in range(len(line))]


def test_clients_take_turns() -> None:
    line = Line[str](20, 10)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        line.add(name[0], name)
    assert drained(line) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_who_comes_later_waits_for_one_turn_of_each() -> None:
    line = Line[str](20, 10)
    for name in ("a1", "a2", "a3"):
        line.add("a", name)
    assert line.take() == "a1"
    line.add("b", "b1")
    assert drained(line) == ["a2", "b1", "a3"]


def test_there_is_an_end_of_the_line_and_a_share_of_it() -> None:
    line = Line[str](5, 3)
    for n in range(3):
        line.add("a", f"a{n}")
    with pytest.raises(Full):
        line.add("a", "a3")
    line.add("b", "b0")
    line.add("c", "c0")
    with pytest.raises(Full):
        line.add("d", "d0")
    line.take()
    line.add("d", "d0")
    assert len(line) == 5


def test_who_leaves_makes_room() -> None:
    line = Line[str](2, 2)
    line.add("a", "a0")
    line.add("a", "a1")
    assert line.remove("a", "a0")
    assert not line.remove("a", "a0")
    assert not line.remove("z", "a1")
    line.add("b", "b0")
    assert drained(line) == ["a1", "b0"]
    assert line.waiting == {}


def test_a_closed_line() -> None:
    line = Line[str](5, 5)
    line.add("a", "a0")
    line.add("b", "b0")
    assert line.close() == ["a0", "b0"]
    assert line.take() is None
    with pytest.raises(Full):
        line.add("a", "a1")


def test_take_waits() -> None:
    line, taken = Line[str](5, 5), list[str | None]()
    first = threading.Event()

    def take() -> None:
        taken.append(line.take())
        first.set()
        taken.append(line.take())

    thread = threading.Thread(target=take)
    thread.start()
    line.add("a", "a0")
    assert first.wait(10)
    line.close()
    thread.join(10)
    assert taken == ["a0", None]
