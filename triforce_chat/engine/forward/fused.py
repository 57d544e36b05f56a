"""A model's decoder blocks in few kernels: what transformers computes in thirty, fused and merged to ten or,
in 8 bits, to seven.

Of a step of a middle level, the many small kernels of transformers' own forward would take nearly half. The
projections that read the same input are merged, norms, rotary embeddings and gates are one kernel each, and sums
into the residual stream belong to the matrix products. The model keeps its weights: its matrices become parts of
the merged ones, and its own forward works as before.

Ranks that share a model have some of the heads and neurons each. Twice in a block their summands of the stream are
added up, to which rank 0 alone contributes what all have alike: the stream so far, and biases.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.storage import Shape
from triforce_chat.engine.forward.attention import RotaryEmbedding
from triforce_chat.engine.forward.shards import Embedding, gather_logits, local_shard, set_weight
from triforce_chat.engine.group import SINGLE, RankGroup

# the layer's number, q [n, Hq, D], k and v [n, Hkv, D], not rotated yet -> [n, Hq, D]
Attend = Callable[[int, Tensor, Tensor, Tensor, RotaryEmbedding], Tensor]


class Dense:
    """A linear layer with its weights [O, I] as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias, self.size = weight, bias, weight.numel()

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, I] -> [n, O]."""
        return nn.functional.linear(x, self.weight, self.bias)

    def normed(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        """The product of the normed x [n, I]."""
        return self(kernels.rms_norm(x, *norm))

    def gated(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        """Of [gates, others] of the normed x [n, I]: silu of the gates times the others, [n, O/2]."""
        return kernels.silu_mul(self.normed(x, norm))

    def onto(self, stream: Tensor | None, x: Tensor) -> Tensor:
        """The product of x [n, I] added to ``stream`` [n, O], which is overwritten; by itself without one."""
        if stream is None:
            return self(x)
        if self.bias is not None:
            stream += self.bias
        summed: Tensor = stream.addmm_(x, self.weight.t())
        return summed


class Int8Linear:
    """The same in 8 bits, for whoever may be a little wrong: a step reads half the bytes."""

    def __init__(self, dense: Product) -> None:
        assert isinstance(dense, Dense)
        self.weight, self.bias, self.size = kernels.quantize(dense.weight), dense.bias, dense.size

    def __call__(self, x: Tensor) -> Tensor:
        return kernels.int8_linear(x, self.weight, self._bias(len(x)))

    def normed(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        return kernels.int8_linear(x, self.weight, self._bias(len(x)), norm)

    def gated(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        if self.bias is not None:
            return kernels.silu_mul(self.normed(x, norm))
        return kernels.int8_linear(x, self.weight, norm=norm, gated=True)

    def onto(self, stream: Tensor | None, x: Tensor) -> Tensor:
        out = kernels.int8_linear(x, self.weight, stream)
        return out if self.bias is None else out + self.bias

    def _bias(self, n: int) -> Tensor | None:
        return None if self.bias is None else self.bias.expand(n, -1)


Product = Dense | Int8Linear


def merged(*linears: Any) -> Dense:
    """One product for several that read the same input; their weights become its rows."""
    weights = [local_shard(linear.weight) for linear in linears]
    weight = torch.cat(weights)
    for linear, own in zip(linears, weight.split([len(each) for each in weights]), strict=True):
        set_weight(linear, own)
    biases = [local_shard(linear.bias) for linear in linears]
    return Dense(weight, None if biases[0] is None else torch.cat(biases))


def partial_product(linear: Any, group: RankGroup) -> Dense:
    """A product of inputs that the ranks share, of which each makes a summand."""
    return Dense(local_shard(linear.weight), local_shard(linear.bias) if group.rank == 0 else None)


class Block:
    """One decoder block of a Llama, Mistral, Qwen2 or Qwen3, or a rank's part of it."""

    def __init__(self, layer: Any, shape: Shape, group: RankGroup) -> None:
        attention, mlp, self.group = layer.self_attn, layer.mlp, group
        self.number: int = attention.layer_idx
        self.heads = (shape.query_heads, shape.kv_heads, shape.kv_heads)
        self.dim = shape.head_dim
        self.before, self.between = map(plain, (layer.input_layernorm, layer.post_attention_layernorm))
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self.head_norms = [norm and plain(norm) for norm in norms]
        self.into: Product = merged(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out: Product = partial_product(attention.o_proj, group)
        self.gates: Product = merged(mlp.gate_proj, mlp.up_proj)
        self.down: Product = partial_product(mlp.down_proj, group)

    def quantized(self) -> Block:
        """The same with copies of the matrices in 8 bits."""
        made = copy(self)
        made.into, made.out, made.gates, made.down = map(
            Int8Linear, (self.into, self.out, self.gates, self.down)
        )
        return made

    def __call__(self, stream: Tensor, rotary: RotaryEmbedding, attend: Attend) -> Tensor:
        """stream [n, C], which is overwritten."""
        n = len(stream)
        q, k, v = self.into.normed(stream, self.before).view(n, -1, self.dim).split(self.heads, 1)
        q, k = (
            each if norm is None else kernels.rms_norm(each, *norm)
            for each, norm in zip((q, k), self.head_norms, strict=True)
        )
        mixed = attend(self.number, q, k, v, rotary)
        stream = self._onto(stream, self.out, mixed.reshape(n, -1))
        return self._onto(stream, self.down, self.gates.gated(stream, self.between))

    def _onto(self, stream: Tensor, product: Product, x: Tensor) -> Tensor:
        """The stream [n, C] and what all ranks' products of x [n, I] add to it."""
        return self.group.all_reduce_sum(product.onto(stream if self.group.rank == 0 else None, x))


def plain(norm: Any) -> kernels.Norm:
    """A norm of transformers'."""
    return kernels.Norm(local_shard(norm.weight), norm.variance_epsilon)


class Decoder:
    """A whole model, or what one of the ranks in ``group`` has of it."""

    def __init__(self, model: Any, shape: Shape, group: RankGroup = SINGLE) -> None:
        base, self.vocabulary, self.group = model.base_model, model.config.vocab_size, group
        self.embed = Embedding(local_shard(base.embed_tokens.weight), self.vocabulary, group)
        self.rotary, self.norm = base.rotary_emb, plain(base.norm)
        self.blocks = [Block(layer, shape, group) for layer in base.layers]
        self.head: Product = Dense(local_shard(model.lm_head.weight), local_shard(model.lm_head.bias))

    def quantized(self) -> Decoder:
        """The same with copies of the matrices in 8 bits; the embeddings are shared."""
        made = copy(self)
        made.blocks = [block.quantized() for block in self.blocks]
        made.head = Int8Linear(self.head)
        return made

    @property
    def matrix_numbers(self) -> int:
        """How many numbers a step of few tokens reads."""
        inner = [(block.into, block.out, block.gates, block.down) for block in self.blocks]
        return sum(each.size for each in (self.head, *(each for four in inner for each in four)))

    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """ids and positions [n] -> the last hidden states [n, C]."""
        stream = self.embed(ids)
        rotary = RotaryEmbedding(self.rotary, positions)
        for block in self.blocks:
            stream = block(stream, rotary, attend)
        return kernels.rms_norm(stream, *self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Last hidden states [n, C] -> [n, V]."""
        return gather_logits(self.head(hidden), self.vocabulary, self.group)
