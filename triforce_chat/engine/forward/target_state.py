"""A target's last hidden state, and how a draft that is built on the target reads it.

The state belongs to the row whose logits gave the newest committed token; the draft adds it to the embedding of that
token and of those that it drafts after it (EAGLE, arXiv 2401.15077; Hydra, arXiv 2402.05109). It depends on committed
tokens alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

NEVER = 1 << 40  # an index that no history reaches


class TargetState:
    """The state after the latest verification of any level, on the device.

    hidden: [B, H], as the output matrix reads it; base: [B], the index in the history of the token that it gave, NEVER
    if there is none. Captured drafts read these very tensors.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        with torch.inference_mode(False):  # otherwise they could only be written to in inference mode
            self.hidden = torch.zeros(1, width, dtype=dtype, device=device)
            self.base = torch.full((1,), NEVER, device=device)

    def forget(self) -> None:
        """No state is known."""
        self.base.fill_(NEVER)

    def update(self, rows: Tensor, count: Tensor, length: Tensor) -> None:
        """A verification of rows [n, H] has committed ``count`` [B] tokens, and the history has ``length`` [B] now."""
        torch.index_select(rows, 0, count - 1, out=self.hidden)
        torch.sub(length, 1, out=self.base)


class StateReader:
    """What a draft of width D adds to the embeddings of its tokens.

    ``matrix``: [D, W], from the first W channels of the state; ``ages``: [K, D], one row for each distance of a token
    from the first one after the state, the last row for all greater ones.
    """

    def __init__(self, state: TargetState, matrix: Tensor, ages: Tensor) -> None:
        self.state, self.matrix, self.ages = state, matrix, ages

    def rows(self, indices: Tensor) -> Tensor:
        """What is added to the tokens at ``indices`` [n]: [n, D]; zeros before the state's first token."""
        projected = linear(self.state.hidden[:, : self.matrix.shape[1]], self.matrix)
        age = indices - self.state.base
        rows = self.ages[age.clamp(0, len(self.ages) - 1)] + projected
        return rows.masked_fill_((age < 0)[:, None], 0)
