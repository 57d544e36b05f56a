"""Cuts windows into the segments that a draft built on its target proposes in.

Whenever such a draft begins, it has the target's newest last hidden state and no other until the target has checked
what it proposed. In training all segments of all windows pass at once, each with the state of its own beginning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triforce_chat.lab.training.dataset import Batch

LONGEST = 6  # tokens of a segment
LATE = 0.25  # of windows, how many have states from some later token on only, as after a prompt


def random_ages(batch: Batch) -> Tensor:
    """How many tokens after the first of its segment each predicting token of a batch is: [m].

    Segments are 1 to LONGEST tokens long. -1: of tokens before a window's first segment; the first predicting token
    is always among them, as the state that predicted it is not in the batch.
    """
    counts = batch.counts
    lengths = torch.randint(1, LONGEST + 1, batch.tokens.shape, device=counts.device)
    later = 1 + (torch.rand(len(counts), device=counts.device) * (counts - 1)).long()
    late = torch.rand(len(counts), device=counts.device) < LATE
    return ages(batch, torch.where(late, later, 1), lengths)


def even_ages(batch: Batch) -> Tensor:
    """The same for segments of LONGEST tokens each, as many as there can be."""
    counts = batch.counts
    lengths = torch.full(batch.tokens.shape, LONGEST, device=counts.device)
    return ages(batch, torch.ones_like(counts), lengths)


def ages(batch: Batch, first: Tensor, lengths: Tensor) -> Tensor:
    """The same for given segments: ``first`` [b], the predicting token where a window's first one begins, and their
    ``lengths`` [b, n] from there on, with a sum of at least the window's predicting tokens."""
    begins = first[:, None] + lengths.cumsum(1) - lengths  # [b, n]
    width = lengths.shape[1]
    order = torch.arange(width, device=lengths.device)
    marked = torch.zeros(len(first), width + 1, dtype=torch.bool, device=lengths.device)
    marked.scatter_(1, begins.clamp(max=width), True)  # those beyond the widest window share a column
    latest = torch.where(marked[:, :width], order, -1).cummax(1).values  # [b, n], where its segment begins
    found = torch.where(latest < 0, -1, order - latest)
    return found[order < batch.counts[:, None]]
