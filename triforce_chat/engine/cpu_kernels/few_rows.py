"""Products of few rows with quantized matrices that share an input, in one call of the compiled library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Protocol

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
    )


class FewRows:
    """What is multiplied: up to three matrices, each with a bias or without.

    With ``norm`` the rows are normed before. ``gated``: the result is silu of the first matrix's product times the
    second one's.
    """

    def __init__(
        self,
        matrices: Sequence[Blocks],
        biases: Sequence[Tensor | None] | None = None,
        norm: Norm | None = None,
        gated: bool = False,
    ) -> None:
        biases = biases or [None] * len(matrices)
        self._kept = matrices, biases, norm  # their memory is read by address
        self.columns = matrices[0].columns
        self.width = sum(len(each.data) for each in (matrices[:1] if gated else matrices))
        self._library = compiled.loaded()
        self._layout = _Layout(
            path=compiled.instructions(), count=len(matrices), gated=gated, columns=self.columns
        )
        if norm is not None:
            self._layout.norm, self._layout.eps = norm.weight.data_ptr(), norm.eps
        for n, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
            self._layout.kind[n] = matrix.kind
            self._layout.data[n] = matrix.data.data_ptr()
            self._layout.stride[n] = matrix.data.stride(0)
            self._layout.outputs[n] = len(matrix.data)
            self._layout.bias[n] = None if bias is None else bias.data_ptr()
        self._address = ctypes.addressof(self._layout)

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
