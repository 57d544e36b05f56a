"""Shapes of trees: the best ones, and what follows from the parents of their tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from triforce_chat.engine.speculation.stack_specs import LONGEST_BRANCH, MAX_DEPTH, MAX_TREE
from triforce_chat.engine.speculation.tree_draft import widths_of
from triforce_chat.engine.speculation.tree_rates import PRIOR
from triforce_chat.engine.speculation.tree_shapes import (
    Rates,
    best_shape,
    expected_accepted,
    narrow_shape,
    sequences,
    tables,
)
from triforce_chat.engine.tree import (
    LONGEST_PATH,
    Parents,
    bits,
    branches,
    children,
    depth_of,
    depths,
    extended,
    paths,
    verified,
)

RATES: list[Rates] = [
    (0.5, 0.2, 0.1),
    (0.9, 0.05, 0.02),
    (0.3, 0.3, 0.3),
    (0.4, 0.39, 0.01),
    (0.05, 0.04, 0.03),
    (0.7,),
]


def every_tree(n: int) -> Iterator[Parents]:
    """All trees of n tokens whose parents do not descend, each shape at least once."""

    def longer(parents: Parents) -> Iterator[Parents]:
        if len(parents) == n:
            yield parents
            return
        for parent in range(parents[-1] if parents else -1, len(parents)):
            yield from longer((*parents, parent))

    return longer(())


@pytest.mark.parametrize("rates", RATES)
def test_the_best_shapes_are_those_of_brute_force(rates: Rates) -> None:
    for n in range(1, 9):
        found = [(depth_of(tree), expected_accepted(tree, rates)) for tree in every_tree(n)]
        for depth in range(1, 9):
            made = best_shape(rates, n, depth)
            best = max((chance for d, chance in found if d <= depth), default=0.0)
            # Where all children of the rates are there, fewer tokens are as good.
            assert expected_accepted(made, rates) == pytest.approx(best, abs=1e-12) or len(made) < n
            assert expected_accepted(made, rates) >= best - 1e-12
            assert len(made) <= n
            assert depth_of(made) <= depth
            assert tables(rates, n, depth).accepted[depth, n] == pytest.approx(
                expected_accepted(made, rates), abs=1e-12
            )


def plain_tables(rates: Rates, size: int, depth: int) -> torch.Tensor:
    """The expected tokens of the best trees, by the recurrence as it is written: [depth + 1, size + 1]."""
    found = torch.zeros(depth + 1, len(rates) + 1, size + 1, dtype=torch.float64)
    for d in range(1, depth + 1):
        for j in reversed(range(len(rates))):
            for m in range(1, size + 1):
                child = rates[j] * (1 + found[d - 1, 0, :m])
                found[d, j, m] = (child + found[d, j + 1, :m].flip(0)).max()
    return found[:, 0]


@pytest.mark.parametrize("rates", [*RATES, (0.2, 0.5, 0.1), (0.3, 0.0, 0.4)])
def test_large_tables_are_those_of_the_plain_recurrence(rates: Rates) -> None:
    found, expected = tables(rates, 150, 20).accepted, plain_tables(rates, 150, 20)
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-12, rtol=0)
    for size, depth in ((150, 20), (149, 3), (65, 12)):
        made = best_shape(rates, size, depth)
        assert len(made) <= size
        assert depth_of(made) <= depth
        assert expected_accepted(made, rates) == pytest.approx(float(expected[depth, size]), abs=1e-12)


def test_the_largest_trees_are_planned_at_once() -> None:
    tables.cache_clear()
    started = time.process_time()
    best_shape(PRIOR, MAX_TREE, MAX_DEPTH)
    assert time.process_time() - started < 1


def test_a_path_has_room_for_the_deepest_tree_and_a_branch() -> None:
    assert MAX_DEPTH + LONGEST_BRANCH == LONGEST_PATH


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 200])
def test_bits_are_words_of_64(n: int) -> None:
    flags = torch.rand(3, n, generator=torch.Generator().manual_seed(n)) < 0.5
    words = bits(flags)
    assert words.shape == (3, max(1, -(-n // 64)))
    for row, own in zip(words.tolist(), flags.tolist(), strict=True):
        number = sum(word % 2**64 << 64 * at for at, word in enumerate(row))
        assert number == sum(flag << at for at, flag in enumerate(own))


def test_parents_come_depth_by_depth() -> None:
    made = best_shape(PRIOR, 40, 8)
    assert len(made) == 40
    assert list(depths(made)) == sorted(depths(made))
    assert list(made) == sorted(made)


def test_the_largest_tables_serve_smaller_trees() -> None:
    large = tables(PRIOR, 32, 12)
    for size, depth in ((5, 3), (16, 6), (32, 12)):
        assert best_shape(PRIOR, size, depth, large) == best_shape(PRIOR, size, depth)


def test_sequences_are_chains_side_by_side() -> None:
    assert sequences(2, 3) == (-1, -1, 0, 1, 2, 3)
    assert sequences(1, 3) == (-1, 0, 1)
    assert paths(sequences(2, 3))[-1] == (1, 3, 5)
    assert extended((-1, 0), 0, 3) == (-1, 0, 0, 2, 3)
    assert children((-1, -1, 0)) == {-1: (0, 1), 0: (2,)}


def test_a_verification_sees_ancestors() -> None:
    found = verified((-1, -1, 0, 2), 2)
    assert found.steps.tolist() == [0, 1, 2, 2, 3, 4]
    rows = ["100000", "110000", "111000", "110100", "111010", "111011"]
    assert found.visible.tolist() == [[each == "1" for each in row] for row in rows]


def test_a_chain_is_causal() -> None:
    found = verified((-1, 0, 1), 1)
    assert torch.equal(found.visible, torch.ones(4, 4, dtype=torch.bool).tril())
    assert found.steps.tolist() == [0, 1, 2, 3]


def test_a_level_sees_the_levels_before_it() -> None:
    found = branches((-1, -1, 0, 1), (0, 1, 2, 3), first=2)
    assert found.steps.tolist() == [-1, -1]  # the cache counts two tokens of the same depth
    assert found.visible.tolist() == [[True, False, True, False], [False, True, False, True]]


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize(("size", "depth", "width"), [(20, 6, 2), (40, 4, 3), (64, 12, 4), (63, 8, 8)])
def test_narrow_trees_have_few_tokens_with_children(rates: Rates, size: int, depth: int, width: int) -> None:
    made = narrow_shape(rates, size, depth, width)
    assert max(widths_of(made)) <= width
    assert depth_of(made) <= depth
    assert len(made) <= size
    assert list(depths(made)) == sorted(depths(made))
    wide = narrow_shape(rates, size, depth, size)
    assert expected_accepted(made, rates) <= expected_accepted(wide, rates) + 1e-12
    assert expected_accepted(wide, rates) == pytest.approx(
        expected_accepted(best_shape(rates, size, depth), rates), abs=1e-9
    )
