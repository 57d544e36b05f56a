"""Products of few rows with quantized matrices that share an input, in one call of the compiled library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from triforce_chat.engine.cpu_kernels import compiled

MOST = 3  # matrices


class Blocks(Protocol):
    """A matrix [O, I] in quantized blocks."""

    @property
    def data(self) -> Tensor:
        """uint8 [O, bytes per row]."""
        ...

    @property
    def kind(self) -> int:
        """gguf's number of the blocks' type."""
        ...

    @property
    def columns(self) -> int:
        """I."""
        ...


class Norm(NamedTuple):
    """An RMS norm."""

    weight: Tensor  # fp32 [I]
    eps: float


class _Layout(ctypes.Structure):
    """``Projection`` of ``quantized.c``."""

    _fields_ = (
        ("path", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("gated", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("columns", ctypes.c_int64),
        ("norm", ctypes.c_void_p),
        ("eps", ctypes.c_float),
        ("kind", ctypes.c_int32 * MOST),
        ("data", ctypes.c_void_p * MOST),
        ("stride", ctypes.c_int64 * MOST),
        ("outputs", ctypes.c_int64 * MOST),
        ("bias", ctypes.c_void_p * MOST),
        ("rank", ctypes.c_int64 * MOST),
        ("down", ctypes.c_void_p * MOST),
        ("up", ctypes.c_void_p * MOST),
    )


M = TypeVar("M", bound=Blocks)


class Linear(NamedTuple, Generic[M]):
    """A matrix with what is added to its product: a bias, and the product of two narrow matrices."""

    matrix: M
    bias: Tensor | None = None  # fp32 [O]
    down: Tensor | None = None  # fp32 [rank, I]
    up: Tensor | None = None  # fp32 [O, rank]


class FewRows:
    """What is multiplied: up to three linear layers with one input.

    With ``norm`` the rows are normed before. ``gated``: the result is silu of the first layer's product times the
    second one's.
    """

    def __init__(self, linears: Sequence[Linear[Any]], norm: Norm | None = None, gated: bool = False) -> None:
        self.columns = linears[0].matrix.columns
        self.width = sum(len(each.matrix.data) for each in (linears[:1] if gated else linears))
        self._library = compiled.loaded()
        self._layout = _Layout(
            path=compiled.instructions(), count=len(linears), gated=gated, columns=self.columns
        )
        self._kept: list[Any] = [linears, norm]  # their memory is read by address
        if norm is not None:
            self._layout.norm, self._layout.eps = norm.weight.data_ptr(), norm.eps
        for n, linear in enumerate(linears):
            self._set(n, linear)
        self._address = ctypes.addressof(self._layout)

    def _set(self, n: int, linear: Linear[Any]) -> None:
        layout, matrix = self._layout, linear.matrix
        layout.kind[n] = matrix.kind
        layout.data[n], layout.stride[n] = matrix.data.data_ptr(), matrix.data.stride(0)
        layout.outputs[n] = len(matrix.data)
        layout.bias[n] = None if linear.bias is None else linear.bias.data_ptr()
        if linear.down is not None and linear.up is not None:
            down, up = linear.down.contiguous(), linear.up.t().contiguous()
            layout.rank[n], layout.down[n], layout.up[n] = len(down), down.data_ptr(), up.data_ptr()
            self._kept += [down, up]

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """fp32 x [n, I], contiguous -> [n, all O], plus ``added``, fp32 and contiguous like the result.

        A row of the result is the same bit by bit whatever other rows x has.
        """
        y = torch.empty(len(x), self.width)
        if y.numel():
            self._layout.threads = torch.get_num_threads()
            self._library.project(
                self._address, x.data_ptr(), len(x), None if added is None else added.data_ptr(), y.data_ptr()
            )
        return y
