"""Which tree to draft: the shape that promises most tokens for its size (Sequoia, arXiv 2402.12374, section 3.1).

``rates`` [b] are the chances that the target goes on with a token's first, second, ... child. Then a token is accepted
with the product of the rates on its path, and a tree's expected tokens are the sum of these products.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from triforce_chat.engine.tree import ROOT, Parents

Rates = tuple[float, ...]
BLOCK = 64  # sums of a block of rows


class Tables(NamedTuple):
    """The dynamic programme's tables, both [depth + 1, b + 1, size + 1].

    For a depth, children from so many on, and at most so many tokens: the expected accepted tokens, and how many
    tokens the first of these children takes with all below it.
    """

    best: Any
    taken: Any

    @property
    def accepted(self) -> Any:
        """Expected accepted tokens of the best trees: [depth + 1, size + 1]."""
        return self.best[:, 0]


@lru_cache(maxsize=8)
def tables(rates: Rates, size: int, depth: int) -> Tables:
    """The best trees of up to ``size`` tokens and that depth."""
    b = len(rates)
    best = np.zeros((depth + 1, b + 1, size + 1))
    taken = np.zeros(best.shape, int)
    for d in range(1, depth + 1):
        for j in reversed(range(b)):
            child = rates[j] * (1 + best[d - 1, 0, :size])  # with 0, 1, ... tokens below it
            most, below = largest_sums(child, best[d, j + 1, :size])
            best[d, j, 1:], taken[d, j, 1:] = most, np.where(most > 0, below + 1, 0)
        if np.array_equal(best[d], best[d - 1]):  # no deeper tree promises more
            best[d + 1 :], taken[d + 1 :] = best[d], taken[d]
            break
    return Tables(best, taken)


def largest_sums(first: Any, second: Any) -> tuple[Any, Any]:
    """The largest ``first[k] + second[m - k]`` for every m, and the smallest such k: [n] each."""
    n = len(first)
    # Row m, column k: second[m - k]. In blocks that fit a processor's cache, without most of the impossible columns.
    reversed_ = np.concatenate([second[::-1], np.full(n - 1, -np.inf)])
    pairs = sliding_window_view(reversed_, n)[::-1]
    sums, at = np.empty(n), np.empty(n, int)
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        made = pairs[start:end, :end] + first[:end]
        at[start:end] = made.argmax(1)
        sums[start:end] = made[np.arange(end - start), at[start:end]]
    return sums, at


def best_shape(rates: Rates, size: int, depth: int, within: Tables | None = None) -> Parents:
    """The tree of at most ``size`` tokens and that depth that promises most, one depth after the other.

    ``within``: tables for the same rates and at least that size and depth.
    """
    taken = (within or tables(rates, size, depth)).taken
    parents: list[int] = []
    waiting = deque([(ROOT, size, depth)])  # tokens to grow below a node, and depth left
    while waiting:
        node, m, d = waiting.popleft()
        for j in range(len(rates)):
            k = int(taken[d, j, m])
            if not k:
                break
            waiting.append((len(parents), k - 1, d - 1))
            parents.append(node)
            m -= k
    return tuple(parents)


def narrow_shape(rates: Rates, size: int, depth: int, width: int) -> Parents:
    """A tree in which no more than ``width`` tokens of a depth have children, one depth after the other.

    Greedily: the likeliest token whose parent may have children comes next. Without that limit, and where earlier
    children are likelier, this is the best shape.
    """
    chosen: list[tuple[int, int]] = []  # depth and parent, the latter by its place here
    inner: dict[int, set[int]] = {}  # by depth: tokens with children
    waiting = [(-rates[0], 0, 1, ROOT, 0)]  # chance, order of arrival, depth, parent, rank
    for arrival in count(1):
        if len(chosen) == size or not waiting:
            break
        chance, _, at_depth, parent, rank = heappop(waiting)
        mothers = inner.setdefault(at_depth - 1, set())
        if not chance or (parent not in mothers and len(mothers) == width):
            continue
        mothers.add(parent)
        if at_depth < depth:
            heappush(waiting, (chance * rates[0], 2 * arrival, at_depth + 1, len(chosen), 0))
        if rank + 1 < len(rates) and rates[rank]:
            younger = chance / rates[rank] * rates[rank + 1]
            heappush(waiting, (younger, 2 * arrival + 1, at_depth, parent, rank + 1))
        chosen.append((at_depth, parent))
    return by_depth(chosen)


def by_depth(nodes: Sequence[tuple[int, int]]) -> Parents:
    """The parents of nodes, given by depth and parent, numbered one depth after the other."""
    order = sorted(range(len(nodes)), key=lambda at: nodes[at][0])
    place = {ROOT: ROOT} | {at: number for number, at in enumerate(order)}
    return tuple(place[nodes[at][1]] for at in order)


def sequences(count: int, length: int) -> Parents:
    """``count`` chains of ``length`` tokens, one depth after the other (SpecInfer's k x n, arXiv 2305.09781)."""
    return tuple(node - count if node >= count else ROOT for node in range(count * length))


def expected_accepted(parents: Parents, rates: Rates) -> float:
    """The sum over all tokens of the chance that they are accepted."""
    chances: list[float] = []
    children: dict[int, int] = {}
    for parent in parents:
        rank = children.get(parent, 0)
        children[parent] = rank + 1
        rate = rates[rank] if rank < len(rates) else 0.0
        chances.append(rate * (1.0 if parent == ROOT else chances[parent]))
    return sum(chances)
