"""A case of the bench of kernels, and the buffers that it is measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16
COLD = 256 << 20  # bytes that a round of buffers has at least: four times the L2 cache


class Model(NamedTuple):
    """The dimensions of one layer."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int


VOCABULARY = 49_152


@dataclass(frozen=True, slots=True)
class Case:
    """One call on the buffers of one round, the bytes that it must move, and the right answer if one is at hand."""

    kernel: str
    shape: str
    bytes: int
    copies: Sequence[Any]
    call: Callable[[Any], Any]
    right: Callable[[Any], Tensor] | None = None


def noise(*size: int) -> Tensor:
    return torch.randn(size, device=DEVICE, dtype=DTYPE)


def rounds(bytes_: int, make: Callable[[], Any]) -> list[Any]:
    """Enough copies of a case's buffers to exceed the GPU's cache."""
    count = min(64, max(2, -(-COLD // bytes_))) if DEVICE.type == "cuda" else 1
    return [make() for _ in range(count)]
