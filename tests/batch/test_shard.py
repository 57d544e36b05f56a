"""The parts of a batch: every line is in one of them, all lines about a book in the same, and always in that one."""

from __future__ import annotations

from collections import Counter

from support.batch_toys import toys

from triforce_chat.batch.shard import Shard


def test_every_line_is_in_one_part_with_its_book() -> None:
    lines = toys(200, 3)
    parts = [Shard(index, 7).of(lines) for index in range(7)]
    assert Counter(line.id for part in parts for line in part) == Counter(line.id for line in lines)
    assert all(size == 3 for part in parts for size in Counter(line.group for line in part).values())
    assert max(map(len, parts)) < 2 * 600 / 7


def test_other_books_may_come_and_go() -> None:
    lines = toys(20, 1)
    assert Shard(1, 3).of(lines[5:9]) == [line for line in Shard(1, 3).of(lines) if line in lines[5:9]]


def test_parts_stay_those_of_earlier_versions() -> None:
    assert [line.id for line in Shard.parse("0/4").of(toys(12, 1))] == ["2-0", "3-0", "11-0"]
