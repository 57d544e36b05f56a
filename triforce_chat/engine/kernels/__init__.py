"""Triton kernels for decoding a few tokens on a CUDA device, where every step waits for memory.

Each call can be captured in a CUDA graph: shapes follow from the arguments' shapes, and a length that changes
from replay to replay is read from a device tensor. Numbers are 16 or 32 bit wide, arithmetic is fp32.
Importing this needs triton, which torch brings along on Linux where it is built for CUDA.
"""

from __future__ import annotations

from triforce_chat.engine.kernels.decoding import decode_attention, splits
from triforce_chat.engine.kernels.gathering import gather_chunks
from triforce_chat.engine.kernels.linear import Int8Weight, Norm, int8_linear, quantize
from triforce_chat.engine.kernels.rows import rms_norm, rotate_and_store, silu_mul
from triforce_chat.engine.kernels.scoring import chunk_scores
from triforce_chat.engine.kernels.searching import search

__all__ = [
    "Int8Weight",
    "Norm",
    "chunk_scores",
    "decode_attention",
    "gather_chunks",
    "int8_linear",
    "quantize",
    "rms_norm",
    "rotate_and_store",
    "search",
    "silu_mul",
    "splits",
]
