"""A rank's part of a model: where its numbers lie, and how what is computed with them becomes whole.

Where the inputs of a product are spread over the ranks, each makes a summand of it; where the outputs are, some
columns. Both become whole by a sum over the ranks, after which all of them hold the same numbers bit by bit.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from triforce_chat.engine.group import RankGroup


def local_shard(weight: Any) -> Any:
    """What this rank holds of a weight, where transformers spread it; else the weight, or None."""
    return weight.to_local() if hasattr(weight, "to_local") else weight


def set_weight(layer: Any, own: Tensor) -> None:
    """Have ``layer`` read its weight, or this rank's part of it, from ``own``, where the same numbers are."""
    spread = layer.weight
    if hasattr(spread, "to_local"):
        own = type(spread).from_local(own, spread.device_mesh, spread.placements, run_check=False)
    layer.weight = nn.Parameter(own, requires_grad=False)


class Embedding:
    """Rows for tokens. A rank may have those of some tokens only: as many as every other, in order."""

    def __init__(self, weight: Tensor, vocabulary: int, group: RankGroup) -> None:
        self.weight, self.group = weight, group
        self.spread = len(weight) < vocabulary
        self.first = group.rank * len(weight)  # the token of the first row, if it is spread

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [n] -> [n, C], for the caller to overwrite."""
        if not self.spread:
            return nn.functional.embedding(ids, self.weight)
        places = ids - self.first
        known = places.clamp(0, len(self.weight) - 1)
        rows = nn.functional.embedding(known, self.weight).masked_fill_((known != places)[:, None], 0)
        return self.group.all_reduce_sum(rows)


def gather_logits(own: Tensor, vocabulary: int, group: RankGroup) -> Tensor:
    """Logits [n, V] of which a rank may have made some columns, as an ``Embedding`` has rows."""
    n, width = own.shape
    if width == vocabulary:
        return own
    logits = own.new_zeros(n, vocabulary)
    logits[:, group.rank * width :][:, :width] = own
    return group.all_reduce_sum(logits)
