"""What a level hands to the level above it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """A chain of proposed tokens with the very distributions they were drawn from."""

    tokens: Tensor  # [n], int64
    probs: Tensor  # [n, V]
    count: Tensor | None = None  # [], of the first ones, which alone count, where the host does not know

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def empty(vocabulary: int, device: torch.device) -> Draft:
        return Draft(
            torch.empty(0, dtype=torch.long, device=device), torch.empty(0, vocabulary, device=device)
        )

    def copy(self) -> Draft:
        """Tensors of its own."""
        return Draft(self.tokens.clone(), self.probs.clone())

    @staticmethod
    def join(parts: list[Draft]) -> Draft:
        return Draft(torch.cat([part.tokens for part in parts]), torch.cat([part.probs for part in parts]))


@dataclass(frozen=True, slots=True)
class Verdict(Draft):
    """What a verification commits; its tensors are overwritten by the next one."""

    ids: list[int] = field(kw_only=True)  # the tokens, as the host has heard them
    drafted: int = field(kw_only=True)  # how many were judged
