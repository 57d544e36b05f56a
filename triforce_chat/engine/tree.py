"""Token trees: several continuations of one history, written as the parent of each token.

``parents`` [n] holds the parent of each token: an earlier token, or ROOT for those that follow the history's last one.
The tokens with the same parent are its children, in the order in which they were drawn. A chain is (ROOT, 0, 1, ...).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

Parents = tuple[int, ...]
ROOT = -1
KEPT = 64  # shapes whose derived figures are kept
WORD = 64  # bits of an int64
LONGEST_PATH = (
    64  # tokens of a path that graphs have room for: of the deepest tree, and of what lookup adds to it
)


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


@dataclass(frozen=True, eq=False)
class Branches:
    """What the n tokens of a forward follow, where they do not simply follow one another.

    steps: [n], their positions, counted from the cache's next one; visible: [n, t], which of the cache's last t tokens,
    these included, each of them sees. All see what comes before, and the first of the t tokens.
    """

    steps: Tensor
    visible: Tensor

    @cached_property
    def masks(self) -> Tensor:
        """What they see from the second of the t tokens on: see ``bits``."""
        return bits(self.visible[:, 1:])


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


def bits(flags: Tensor) -> Tensor:
    """Rows of booleans as words of 64 bits, the first one lowest: [n, t] -> [n, words], int64."""
    words = words_of(flags.shape[1])
    weights = torch.tensor([*(1 << at for at in range(WORD - 1)), -(1 << (WORD - 1))])
    whole = pad(flags, (0, words * WORD - flags.shape[1])).view(len(flags), words, WORD)
    return (whole * weights).sum(-1)


def words_of(n: int) -> int:
    """Words that hold so many bits, at least one."""
    return max(1, -(-n // WORD))


def verified(parents: Parents, prefix: int) -> Branches:
    """The forward that verifies a whole tree after ``prefix`` tokens, the last of which is the root."""
    return branches(parents, tuple(range(len(parents))), 0, prefix)


def extended(parents: Parents, node: int, n: int) -> Parents:
    """The tree with a chain of n more tokens below ``node``, as its last child."""
    if not n:
        return parents
    return (*parents, node, *range(len(parents), len(parents) + n - 1))


def chain(n: int) -> Branches:
    """The forward of n tokens that follow one another: a tree without branches."""
    return verified(tuple(range(ROOT, n - 2)), 1)


class Family(NamedTuple):
    """The shapes of B trees as tensors; row 0 is a tree's root, row i+1 its node i.

    links: [B, 2, n+1], the first child of every row and its next sibling, as numbers of nodes, or -1. lines: [B, n+1,
    d], the nodes on the path to every row, itself included, then n.
    """

    links: Tensor
    lines: Tensor

    @property
    def room(self) -> tuple[int, int]:
        """The nodes that it has room for, and those of a path."""
        return self.lines.shape[1] - 1, self.lines.shape[2]


@lru_cache(maxsize=KEPT)
def family(parents: Parents, n: int, deepest: int | None = None) -> Family:
    """One tree's, with room for n nodes and paths of ``deepest``, if given: what is more belongs to no row."""
    following = children(parents)
    links = torch.full((1, 2, n + 1), -1, dtype=torch.long)
    for parent, nodes in following.items():
        links[0, 0, parent + 1] = nodes[0]
        for elder, younger in pairwise(nodes):
            links[0, 1, elder + 1] = younger
    deepest = depth_of(parents) if deepest is None else deepest
    lines = torch.full((1, n + 1, deepest), n, dtype=torch.long)
    for node, path in enumerate(paths(parents)):
        lines[0, node + 1, : len(path)] = torch.tensor(path)
    return Family(links, lines)


def families(trees: Sequence[Parents], n: int, deepest: int | None = None) -> Family:
    """``family`` of several trees."""
    deepest = max(map(depth_of, trees)) if deepest is None else deepest
    each = [family(parents, n, deepest) for parents in trees]
    return Family(*(torch.cat(parts) for parts in zip(*each, strict=True)))


def depth_of(parents: Parents) -> int:
    """Nodes on the longest path, without the root."""
    return max(depths(parents), default=0)
