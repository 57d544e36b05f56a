"""Losses over a large vocabulary, in slices that are computed again for the gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, linear, log_softmax
from torch.utils.checkpoint import checkpoint

SLICE = 8192  # positions whose logits exist at a time: 1.6 GB for 49,152 tokens in fp32


def sliced(loss: Callable[..., Tensor], size: int, *rows: Tensor) -> Tensor:
    """The sum of ``loss`` over slices of ``size`` rows."""
    total = torch.zeros((), device=rows[0].device)
    for first in range(0, len(rows[0]), size):
        parts = [row[first : first + size] for row in rows]
        total = total + checkpoint(loss, *parts, use_reentrant=False)
    return total


def next_token_loss(hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of cross-entropies. hidden [n, d], head [V, d], targets [n], weights [n]."""

    def loss(h: Tensor, t: Tensor, w: Tensor) -> Tensor:
        return (cross_entropy(linear(h, head).float(), t, reduction="none") * w).sum()

    return sliced(loss, SLICE, hidden, targets, weights)


def divergence(student: Tensor, teacher: Tensor, head: Tensor) -> Tensor:
    """Mean KL(teacher || student) of final hidden states [n, d] under the same output head [V, d]."""

    def loss(s: Tensor, t: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = log_softmax(linear(t, head).float(), -1)
        return kl_div(log_softmax(linear(s, head).float(), -1), wanted, reduction="sum", log_target=True)

    return sliced(loss, SLICE, student, teacher) / len(student)
