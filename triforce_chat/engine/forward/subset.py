"""The tokens of a draft model that knows only a part of its target's vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


class Subset:
    """Ids and logits of a draft that knows only some tokens of its target's vocabulary.

    target_ids: [D], its tokens. Its next id, D, is embedded for all others, which the target may write and the draft
    never proposes. ``width``: of the target's logits.
    """

    def __init__(self, target_ids: Tensor, width: int) -> None:
        self.target_ids, self.width = target_ids, width
        self.own = torch.full((width,), len(target_ids), device=target_ids.device)
        self.own[target_ids] = torch.arange(len(target_ids), device=target_ids.device)

    def embedded(self, ids: Tensor) -> Tensor:
        """The draft's ids of the target's ids [n]."""
        return self.own[ids]

    def widened(self, logits: Tensor) -> Tensor:
        """The draft's logits [n, D + 1] at the target's ids: [n, V]; tokens that it doesn't know get -inf."""
        wide = logits.new_full((len(logits), self.width), float("-inf"))
        return wide.index_copy_(1, self.target_ids, logits[:, : len(self.target_ids)])
