"""Quantized matrices with random blocks, and what they mean by gguf's own code."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from triforce_chat.engine.cpu_kernels.quantized_matrix import QuantizedMatrix

# Where a block's fp16 numbers lie, in bytes from its beginning; the second one scales minima or is one.
HALVES = {
    Kind.Q4_0: (0,),
    Kind.Q4_1: (0, 2),
    Kind.Q5_0: (0,),
    Kind.Q5_1: (0, 2),
    Kind.Q8_0: (0,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
}
DENSE = {Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
EXTREMES = (0.0, -0.0, 6e-8, -6e-8, 6e-5, -65504.0, 65504.0, 1.0)  # subnormal, the largest, and between


def random_matrix(
    kind: Kind, outputs: int, columns: int, seed: int = 0, extreme: bool = False
) -> QuantizedMatrix:
    """Random codes, with normally distributed scales or with extreme ones."""
    generator = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray[Any, Any]:
        return generator.choice(EXTREMES, shape) if extreme else 0.1 * generator.standard_normal(shape)

    if kind in DENSE:
        dense = torch.from_numpy(numbers(outputs, columns)).to(DENSE[kind])
        return QuantizedMatrix(dense.view(torch.uint8), kind, columns)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (outputs * columns // weights, size), dtype=np.uint8)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = numbers(len(blocks), 1).astype(np.float16).view(np.uint8)
    return QuantizedMatrix(torch.from_numpy(blocks).view(outputs, columns // weights * size), kind, columns)


def dense(matrix: QuantizedMatrix) -> Tensor:
    """The matrix by gguf's own code, fp32 [O, I]."""
    return torch.from_numpy(gguf.quants.dequantize(matrix.data.numpy(), matrix.kind))
