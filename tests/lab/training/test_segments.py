"""Windows are cut into segments whose tokens know how far behind their state they are."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from triforce_chat.lab.training.dataset import Batch, Dataset, Window
from triforce_chat.lab.training.segments import LONGEST, ages, even_ages, random_ages


def batch_of(*counts: int) -> Batch:
    """Windows that foretell so many tokens each."""
    dataset = Dataset()
    for count in counts:
        dataset.windows.append(Window(list(range(3, count + 13)), count, dataset.size))
        dataset.parts.append(torch.zeros(count, 2))
        dataset.size += count
    return dataset.batch(dataset.windows)


def test_given_segments() -> None:
    lengths = torch.tensor([[2, 3, 1, 6, 6, 6, 6], [6, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    found = ages(batch_of(7, 4, 1), torch.tensor([1, 2, 1]), lengths)
    assert found.tolist() == [-1, 0, 1, 0, 1, 2, 0, -1, -1, 0, 1, -1]


def test_even_segments_begin_after_the_first_foretelling_token() -> None:
    expected = [-1, *range(6), *range(6), 0, 1, -1, *range(5), -1]
    assert even_ages(batch_of(15, 6, 1)).tolist() == expected


def test_random_segments_are_of_all_lengths_equally_often() -> None:
    torch.manual_seed(0)
    counts = torch.randint(1, 190, (400,)).tolist()
    found, firsts, lengths = random_ages(batch_of(*counts)), [], Counter[int]()
    for row in found.split(counts):
        begun = (row >= 0).nonzero()[:, 0].tolist()
        assert row[0] == -1
        assert begun == list(range(begun[0], len(row))) if begun else len(row) == 1
        steps = [(int(a), int(b)) for a, b in zip(row[begun[:-1]], row[begun[1:]], strict=True)]
        assert not begun or row[begun[0]] == 0
        assert all(b in (0, a + 1) for a, b in steps)
        lengths.update(a + 1 for a, b in steps if b == 0)
        firsts += begun[:1]
    assert set(lengths) == set(range(1, LONGEST + 1))
    assert max(lengths.values()) < 1.2 * min(lengths.values())
    late = sum(first > 1 for first in firsts) / len(firsts)
    assert late == pytest.approx(0.25, abs=0.06)
    assert max(firsts) > 90
