"""Token trees: several continuations of one history, written as the parent of each token.

``parents`` [n] holds the parent of each token: an earlier token, or ROOT for those that follow the history's last one.
The tokens with the same parent are its children, in the order in which they were drawn. A chain is (ROOT, 0, 1, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

Parents = tuple[int, ...]
ROOT = -1
KEPT = 64  # shapes whose derived figures are kept


@lru_cache(maxsize=KEPT)
def depths(parents: Parents) -> tuple[int, ...]:
    """How far each token is from the history's last one: [n], 1 for a child of the root."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return tuple(found)


@lru_cache(maxsize=KEPT)
def children(parents: Parents) -> Mapping[int, tuple[int, ...]]:
    """The children of every token that has some, and of the root."""
    found: dict[int, tuple[int, ...]] = {}
    for node, parent in enumerate(parents):
        found[parent] = (*found.get(parent, ()), node)
    return MappingProxyType(found)


@lru_cache(maxsize=KEPT)
def paths(parents: Parents) -> tuple[tuple[int, ...], ...]:
    """The tokens from the root's child down to each token, itself included: [n] paths."""
    found: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        found.append((node,) if parent == ROOT else (*found[parent], node))
    return tuple(found)


class Branches(NamedTuple):
    """What the n tokens of a forward follow, where they do not simply follow one another.

    steps: [n], their positions, counted from the cache's next one; visible: [n, t], which of the cache's last t tokens,
    these included, each of them sees. All see what comes before.
    """

    steps: Tensor
    visible: Tensor


@lru_cache(maxsize=KEPT)
def branches(parents: Parents, order: tuple[int, ...], first: int = 0, prefix: int = 0) -> Branches:
    """The forward of the nodes ``order[first:]``, after those before them went to the cache in that order.

    In front of the first node it feeds ``prefix`` tokens of the history, one after the other.
    """
    lines = paths(parents)
    steps = [*range(prefix), *(prefix - 1 + len(lines[node]) - first for node in order[first:])]
    visible = torch.zeros(len(steps), prefix + len(order), dtype=torch.bool)
    visible[:, :prefix] = torch.ones(len(steps), prefix, dtype=torch.bool).tril()
    column = {node: prefix + at for at, node in enumerate(order)}
    for row, node in enumerate(order[first:], prefix):
        visible[row, [column[each] for each in lines[node]]] = True
    return Branches(torch.tensor(steps), visible)


def verified(parents: Parents, prefix: int) -> Branches:
    """The forward that verifies a whole tree after ``prefix`` tokens, the last of which is the root."""
    return branches(parents, tuple(range(len(parents))), 0, prefix)


def extended(parents: Parents, node: int, n: int) -> Parents:
    """The tree with a chain of n more tokens below ``node``, as its last child."""
    if not n:
        return parents
    return (*parents, node, *range(len(parents), len(parents) + n - 1))
