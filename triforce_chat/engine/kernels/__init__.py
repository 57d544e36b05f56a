"""Triton kernels for decoding a few tokens on a CUDA device, where memory bandwidth limits every step.

Each call can be captured in a CUDA graph: result shapes follow from argument shapes, and a length that changes between
replays is read from a device tensor. Tensors are 16 or 32 bits wide, kept keys and values also 8; arithmetic is fp32.
Importing this package requires triton, which torch's CUDA builds for Linux bring along.
"""

from __future__ import annotations

from triforce_chat.engine.kernels.children import draw_children
from triforce_chat.engine.kernels.decoding import (
    Ancestors,
    Prefix,
    Sequences,
    Weighing,
    attend_together,
    decode_attention,
    splits,
)
from triforce_chat.engine.kernels.drawing import Drawing, draw_token, since_written
from triforce_chat.engine.kernels.expanding import expand, expanded_rows
from triforce_chat.engine.kernels.gathering import gather_chunks
from triforce_chat.engine.kernels.linear import quantized_linear
from triforce_chat.engine.kernels.quantized_decoding import decode_grouped, decode_quantized
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight, quantize
from triforce_chat.engine.kernels.quantizing import dequantized, quantize_full
from triforce_chat.engine.kernels.rows import Norm, rms_norm, rotate_and_store, silu_mul
from triforce_chat.engine.kernels.scoring import chunk_scores
from triforce_chat.engine.kernels.searching import search
from triforce_chat.engine.kernels.small_blocks import (
    MOST_TOKENS,
    Rotation,
    Stream,
    TreeRows,
    add_attention,
    add_neurons,
    last_normed,
    splittable,
)
from triforce_chat.engine.kernels.trees import AcceptedPaths, keep_slots, walk, walk_along

__all__ = [
    "MOST_TOKENS",
    "AcceptedPaths",
    "Ancestors",
    "Drawing",
    "Norm",
    "Prefix",
    "QuantizedWeight",
    "Rotation",
    "Sequences",
    "Stream",
    "TreeRows",
    "Weighing",
    "add_attention",
    "add_neurons",
    "attend_together",
    "chunk_scores",
    "decode_attention",
    "decode_grouped",
    "decode_quantized",
    "dequantized",
    "draw_children",
    "draw_token",
    "expand",
    "expanded_rows",
    "gather_chunks",
    "keep_slots",
    "last_normed",
    "quantize",
    "quantize_full",
    "quantized_linear",
    "rms_norm",
    "rotate_and_store",
    "search",
    "silu_mul",
    "since_written",
    "splits",
    "splittable",
    "walk",
    "walk_along",
]
