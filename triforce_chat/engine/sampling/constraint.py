"""What may follow in an answer whose form is prescribed, such as JSON of a schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from triforce_chat.engine.tree import Parents, children, paths


class Constraint(Protocol):
    """The tokens that one answer may have; it knows the committed ones.

    Only the top level of a stack is constrained. Its acceptance rule is exact for any draft, and a drafted token that
    is not allowed has no probability there, so the answer follows the constrained target, whatever drafts.
    """

    def allowed(self, drafted: Sequence[int], vocabulary: int) -> Tensor:
        """Which tokens may follow the answer, and each prefix of ``drafted``: [n+1, V], bool, on the CPU.

        Rows after a drafted token that is not allowed are not used; they must allow something.
        """
        ...

    def forced(self, most: int) -> Sequence[int]:
        """At most so many tokens that the form prescribes next; a draft, which need not be the only way to go on."""
        ...

    def advance(self, ids: Sequence[int]) -> None:
        """Append committed tokens."""
        ...


def allowed_in_tree(
    constraint: Constraint, parents: Parents, drafted: Sequence[int], vocabulary: int
) -> Tensor:
    """``Constraint.allowed`` after the root and after every token of a tree: [n+1, V]."""
    rows = torch.ones(len(parents) + 1, vocabulary, dtype=torch.bool)
    for leaf in set(range(len(parents))) - children(parents).keys():
        path = paths(parents)[leaf]
        along = constraint.allowed([drafted[node] for node in path], vocabulary)
        rows[[0, *(node + 1 for node in path)]] = along
    return rows


MakeConstraint = Callable[[], Constraint]
