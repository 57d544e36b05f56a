"""Forwards of a few tokens of a small dense model, in two kernels per block where the usual path takes ten."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.forward.fused import Block, Decoder, Dense
from triforce_chat.engine.forward.shards import Embedding


class Weights(NamedTuple):
    """Weights of one block: both norms, and the matrices as ``Block`` has them."""

    input_norm: kernels.Norm
    qkv: Tensor
    project: Tensor
    post_norm: kernels.Norm
    gate_up: Tensor
    down: Tensor


class SmallDecoder:
    """A ``Decoder`` for a few tokens of one sequence, whose keys and values it stores in a buffer."""

    most = kernels.MOST_TOKENS

    def __init__(self, decoder: Decoder, embedding: Tensor, layers: list[Weights], storage: KVBuffer) -> None:
        self.decoder, self.embedding, self.layers = decoder, embedding, layers
        self.rotation = kernels.Rotation(decoder.rotary.inv_freq.float(), decoder.rotary.attention_scaling)
        self.keys, self.values = storage.keys, storage.values

    def takes(self, masks: Tensor) -> bool:
        """Whether it can compute the tokens of one depth of a tree, with those attention masks [n, words]."""
        n, words = masks.shape
        return n <= self.most and words == 1

    def __call__(
        self,
        ids: Tensor,
        place: Tensor,
        step: int,
        added: Tensor | None = None,
        tree: kernels.TreeRows | None = None,
    ) -> Tensor:
        """Logits [1, V] after the last of ids [n], n up to ``most``; ``added`` [n, C] is added to their embeddings.

        The first id goes ``step`` slots after slot ``place[0]`` and position ``place[1]``, which are on the device. For
        one depth of a ``tree`` the result is the logits [n, V] after every id.
        """
        parts = self.embedding.new_empty(0, len(ids), self.embedding.shape[1])
        stream = kernels.Stream(self.embedding, parts if added is None else added[None], ids)
        for each, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            own = each.input_norm, each.qkv, each.project
            stream = kernels.add_attention(stream, *own, self.rotation, keys, values, place, step, tree)
            stream = kernels.add_neurons(stream, each.post_norm, each.gate_up, each.down)
        count = 1 if tree is None else len(ids)
        return self.decoder.logits(kernels.last_normed(stream, self.decoder.norm, count))


def small_decoder(decoder: Decoder, storage: KVBuffer) -> SmallDecoder | None:
    """The decoder over ``storage``; None if the model is large, split over ranks, quantized, or has biases."""
    shape, embedding = storage.shape, decoder.embed
    layers = [weights for block in decoder.blocks if (weights := weights_of(block))]
    alone = decoder.group.size == 1 and storage.keys.dtype == shape.dtype
    if not alone or len(layers) < len(decoder.blocks) or not isinstance(embedding, Embedding):
        return None
    hidden, inner = layers[0].down.shape
    heads, dim = shape.query_heads, shape.head_dim
    if not kernels.splittable(hidden, inner, heads, dim, storage.capacity, shape.dtype):
        return None
    return SmallDecoder(decoder, embedding.weight, layers, storage)


def weights_of(block: Block) -> Weights | None:
    """The weights of ``block``; None if it also has biases, head norms or quantized matrices."""
    layers = block.qkv_proj, block.o_proj, block.gate_up_proj, block.down_proj
    matrices = [each.weight for each in layers if isinstance(each, Dense) and each.bias is None]
    if len(matrices) < len(layers) or any(norm is not None for norm in block.head_norms):
        return None
    qkv, project, gate_up, down = matrices
    return Weights(block.input_norm, qkv, project, block.post_norm, gate_up, down)
