"""What an inflated model takes whose matrices are rounded to a few bits."""

from __future__ import annotations

from gguf import GGMLQuantizationType as Kind

from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models.repack import packed_bytes
from triforce_chat.models.rounding import OUTPUT
from triforce_chat.models.stored_format import StoredWeights


def stored_of(dims: Dimensions, itemsize: int, kind: Kind) -> StoredWeights:
    """What a model of these dimensions takes in such blocks, of whose other numbers each has ``itemsize`` bytes."""
    sizes = {
        "attn_q": (dims.queries, dims.hidden),
        "attn_k": (dims.keys, dims.hidden),
        "attn_v": (dims.keys, dims.hidden),
        "attn_output": (dims.hidden, dims.queries),
        "ffn_gate": (dims.mlp, dims.hidden),
        "ffn_up": (dims.mlp, dims.hidden),
        "ffn_down": (dims.hidden, dims.mlp),
    }
    block = sum(packed_bytes(size, kind) for size in sizes.values())
    step = dims.layers * block + packed_bytes((dims.vocabulary, dims.hidden), OUTPUT)
    kinds = (*((role, kind) for role in sizes), ("output", OUTPUT))
    blocks = (block,) * dims.layers
    return StoredWeights(kind.name, step + itemsize * dims.embedding, step, (kinds,), blocks)
