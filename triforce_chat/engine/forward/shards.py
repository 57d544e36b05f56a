"""One rank's shard of a model, and how partial results become complete.

Where the inputs of a layer are split between the ranks, each computes a partial sum; where its outputs are split, some
of the columns. Both are completed by an all-reduce, after which all ranks hold the same numbers bit by bit.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from triforce_chat.engine.group import RankGroup


def local_shard(weight: Any) -> Any:
    """This rank's shard of a weight that transformers distributed (a DTensor); any other weight, or None, as it is."""
    return weight.to_local() if hasattr(weight, "to_local") else weight


def set_weight(layer: Any, own: Tensor) -> None:
    """Replace the storage of a layer's weight, or of this rank's shard of it, by ``own``, which has equal values."""
    weight = layer.weight
    if hasattr(weight, "to_local"):
        own = type(weight).from_local(own, weight.device_mesh, weight.placements, run_check=False)
    layer.weight = nn.Parameter(own, requires_grad=False)


class Embedding:
    """Token embeddings; split between the ranks, each holds an equal number of consecutive rows."""

    def __init__(self, weight: Tensor, vocabulary: int, group: RankGroup) -> None:
        self.weight, self.group = weight, group
        self.split = len(weight) < vocabulary
        self.first = group.rank * len(weight)  # the token of the first row, if split

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [n] -> [n, C]; the caller may overwrite the result."""
        if not self.split:
            return nn.functional.embedding(ids, self.weight)
        wanted = ids - self.first
        here = wanted.clamp(0, len(self.weight) - 1)
        rows = nn.functional.embedding(here, self.weight).masked_fill_((here != wanted)[:, None], 0)
        return self.group.all_reduce_sum(rows)


def gather_logits(own: Tensor, vocabulary: int, group: RankGroup) -> Tensor:
    """Complete logits [n, V] from this rank's columns ``own`` [n, W], split like the rows of ``Embedding``."""
    n, width = own.shape
    if width == vocabulary:
        return own
    logits = own.new_zeros(n, vocabulary)
    logits[:, group.rank * width :][:, :width] = own
    return group.all_reduce_sum(logits)
