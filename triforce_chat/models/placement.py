"""How quantized weights lie in the memory of a CPU and of a GPU."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quant_shape_to_byte_shape
from torch import Tensor

from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.cpu_kernels.compiled import obstacle
from triforce_chat.engine.cpu_kernels.quantized_matrix import SUPPORTED, QuantizedMatrix
from triforce_chat.engine.forward.quantized import Matrix
from triforce_chat.engine.kernels_available import kernels_compile
from triforce_chat.models.dequantize import BLOCKS
from triforce_chat.models.progress import Note
from triforce_chat.models.repack import packed_bytes, repacked


class Placement(Protocol):
    """Where weights go, and in which form."""

    device: torch.device
    dtype: torch.dtype  # of what is not quantized

    @property
    def kinds(self) -> Collection[Kind]:
        """Matrices of these kinds stay as they are."""
        ...

    def reason(self, adapted: bool) -> str | None:
        """Why a model's weights cannot stay as they are, as far as that is known, in plain words; None if they can.

        ``adapted``: an adapter changes them.
        """
        ...

    def compile(self, note: Note) -> str | None:
        """Have the kernels compiled that must be before anything is loaded; the reason if that cannot be done."""
        ...

    def matrix_bytes(self, shape: tuple[int, ...], kind: Kind) -> int:
        """Bytes of a matrix of one of the kinds."""
        ...

    def matrix(self, blocks: Tensor, kind: Kind) -> Matrix:
        """A matrix from its blocks, uint8 [O, bytes of a row], mapped from a file."""
        ...


class OnCpu:
    """Blocks are multiplied as they are, and stay in the file that is mapped; the rest is in fp32.

    ``wide_dtype``: of products of many rows.
    """

    device, dtype, kinds = torch.device("cpu"), torch.float32, SUPPORTED

    def __init__(self, wide_dtype: torch.dtype = torch.float32) -> None:
        self.wide_dtype = wide_dtype

    def reason(self, adapted: bool) -> str | None:  # noqa: ARG002 (computed beside the blocks)
        return obstacle()

    def compile(self, note: Note) -> str | None:
        if compiled.will_compile():
            note("compiling the CPU kernels, once: about 10 seconds")
        return compiled.library().reason

    def matrix_bytes(self, shape: tuple[int, ...], kind: Kind) -> int:
        return math.prod(quant_shape_to_byte_shape(shape, kind))

    def matrix(self, blocks: Tensor, kind: Kind) -> Matrix:
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        return QuantizedMatrix(blocks, kind, blocks.shape[1] // size * weights, self.wide_dtype)


class OnGpu:
    """The blocks' integers and scales are laid out for a GPU's kernels; the rest is in ``dtype``."""

    kinds = BLOCKS.keys()

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def reason(self, adapted: bool) -> str | None:
        if adapted:
            return "on a GPU an adapter is added to its weights"
        return None if kernels_compile() else "Triton or the C compiler that it needs is missing"

    def compile(self, note: Note) -> str | None:  # noqa: ARG002 (each at its first launch, or ahead of it)
        return None

    def matrix_bytes(self, shape: tuple[int, ...], kind: Kind) -> int:
        return packed_bytes(shape, kind)

    def matrix(self, blocks: Tensor, kind: Kind) -> Matrix:
        from triforce_chat.engine.forward.grouped_matrix import GroupedMatrix

        return GroupedMatrix(repacked(blocks, kind, self.device), self.dtype)


def placement(device: torch.device, dtype: torch.dtype) -> Placement:
    """The placement on a device; ``dtype``: of the wide products there."""
    return OnCpu(dtype) if device.type == "cpu" else OnGpu(device, dtype)
