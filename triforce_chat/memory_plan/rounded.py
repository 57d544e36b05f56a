"""What a model takes whose matrices are quantized, before there is a file of it."""

from __future__ import annotations

from collections.abc import Mapping

from gguf import GGMLQuantizationType as Kind

from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models.repack import packed_bytes
from triforce_chat.models.rounding import OUTPUT
from triforce_chat.models.stored_format import StoredWeights

FINER = ("attn_v", "ffn_down")  # matrices that a file in Q4_K_M has in Q6_K in about half of the layers


def stored_of(dims: Dimensions, itemsize: int, kind: Kind) -> StoredWeights:
    """What an inflated model takes in such blocks, of whose other numbers each has ``itemsize`` bytes."""
    sizes = _matrices(dims)
    block = sum(packed_bytes(size, kind) for size in sizes.values())
    step = dims.layers * block + packed_bytes((dims.vocabulary, dims.hidden), OUTPUT)
    kinds = (*((role, kind) for role in sizes), ("output", OUTPUT))
    blocks = (block,) * dims.layers
    return StoredWeights(kind.name, step + itemsize * dims.embedding, step, (kinds,), blocks)


def file_in_4_bits(dims: Dimensions) -> StoredWeights:
    """What a model's usual 4-bit GGUF file takes on a GPU: Q4_K_M, as llama.cpp mixes it."""
    sizes = _matrices(dims)

    def block(fine: bool) -> int:
        kinds = {role: Kind.Q6_K if fine and role in FINER else Kind.Q4_K for role in sizes}
        return sum(packed_bytes(size, kinds[role]) for role, size in sizes.items())

    blocks = tuple(block(_has_finer(layer, dims.layers)) for layer in range(dims.layers))
    vocabulary = dims.vocabulary, dims.hidden
    step = sum(blocks) + packed_bytes(vocabulary, Kind.Q6_K)
    embedding = 0 if dims.tied else packed_bytes(vocabulary, Kind.Q4_K)
    return StoredWeights("Q4_K_M", step + embedding, step, (), blocks)


def _has_finer(layer: int, layers: int) -> bool:
    """Whether llama.cpp keeps some matrices of a layer in more bits: the first and last eighth, and every third."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _matrices(dims: Dimensions) -> Mapping[str, tuple[int, int]]:
    """Rows and columns of each matrix of a layer."""
    return {
        "attn_q": (dims.queries, dims.hidden),
        "attn_k": (dims.keys, dims.hidden),
        "attn_v": (dims.keys, dims.hidden),
        "attn_output": (dims.hidden, dims.queries),
        "ffn_gate": (dims.mlp, dims.hidden),
        "ffn_up": (dims.mlp, dims.hidden),
        "ffn_down": (dims.hidden, dims.mlp),
    }
