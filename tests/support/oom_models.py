"""Models that run out of memory in the middle of a forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

GONE = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@contextmanager
def starving(model: Any, forwards: int, error: BaseException = GONE) -> Iterator[list[int]]:
    """After so many forwards of ``model`` the next one fails halfway; yields how many there were."""
    count = [0]

    def starve(_layer: nn.Module, _inputs: Any) -> None:
        count[0] += 1
        if count[0] == forwards + 1:
            raise error

    handle = model.base_model.layers[1].register_forward_pre_hook(starve)
    try:
        yield count
    finally:
        handle.remove()
