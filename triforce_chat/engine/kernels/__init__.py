"""Triton kernels for decoding a few tokens on a CUDA device, where memory bandwidth limits every step.

Each call can be captured in a CUDA graph: result shapes follow from argument shapes, and a length that changes between
replays is read from a device tensor. Tensors are 16 or 32 bits wide, arithmetic is fp32. Importing this package
requires triton, which torch's CUDA builds for Linux bring along.
"""

from __future__ import annotations

from triforce_chat.engine.kernels.decoding import (
    Prefix,
    Sequences,
    Weighing,
    attend_together,
    decode_attention,
    splits,
)
from triforce_chat.engine.kernels.expanding import expand, expanded_rows
from triforce_chat.engine.kernels.gathering import gather_chunks
from triforce_chat.engine.kernels.linear import quantized_linear
from triforce_chat.engine.kernels.quantized_decoding import decode_quantized
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight, quantize, quantize_wide
from triforce_chat.engine.kernels.rows import Norm, rms_norm, rotate_and_store, silu_mul
from triforce_chat.engine.kernels.scoring import chunk_scores
from triforce_chat.engine.kernels.searching import search

__all__ = [
    "Norm",
    "Prefix",
    "QuantizedWeight",
    "Sequences",
    "Weighing",
    "attend_together",
    "chunk_scores",
    "decode_attention",
    "decode_quantized",
    "expand",
    "expanded_rows",
    "gather_chunks",
    "quantize",
    "quantize_wide",
    "quantized_linear",
    "rms_norm",
    "rotate_and_store",
    "search",
    "silu_mul",
    "splits",
]
