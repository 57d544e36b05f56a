"""Several processes that train one model together, started by torchrun: each reads sequences of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from triforce_chat.errors import UsageError
from triforce_chat.parallel.rank_info import this_rank


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among ``size``; ``device`` is where it computes."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether it is this one that writes and reports."""
        return self.rank == 0

    def seed(self, seed: int) -> str:
        """Of what only this process reads."""
        return f"{seed}-{self.rank}" if self.rank else str(seed)

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every gradient the mean over all processes."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        whole = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(whole)
        whole /= self.size
        parts = whole.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, number: float) -> float:
        """What the first process says: all follow one clock."""
        if self.size == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.broadcast(value, 0)
        return value.item()


ALONE = Ranks()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The processes that torchrun started, each on a GPU of its own if ``device`` is "cuda"; alone without it.

    Raises UsageError where all of them would compute on one GPU.
    """
    here = this_rank(int(os.environ.get("WORLD_SIZE", "1")), os.environ)
    if not here.by_torchrun:
        yield Ranks(device=device)
        return
    if device.startswith("cuda:"):
        raise UsageError(f"every process takes a GPU of its own; choose --device cuda, not {device}")
    backend = "gloo"
    if device == "cuda":
        device, backend = f"cuda:{here.local_rank}", "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()
