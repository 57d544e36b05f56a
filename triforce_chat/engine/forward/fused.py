"""Decoder blocks of ten kernels, or seven in 8 bits, where transformers launches thirty.

In a step of the middle level, the many small kernels of transformers' forward would take nearly half of the time. Here
projections that read the same input are merged, norms, rotary embeddings and gates are one kernel each, and the
matrix products add to the residual stream themselves. The model keeps its weights: they become views of the merged
ones, and its own forward still works.

Ranks that share a model hold some of the heads and neurons each. Twice per block their partial sums are all-reduced;
what all ranks have in common, the residual stream and biases, is contributed by rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.forward.attention import RotaryEmbedding
from triforce_chat.engine.forward.grouped_matrix import MOST_ROWS, product
from triforce_chat.engine.forward.shards import Embedding, gather_logits, local_shard, set_weight
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.kernels.quantized_weight import QuantizedWeight, joined, stacked

if TYPE_CHECKING:
    from triforce_chat.engine.forward.streamed_weights import StreamedWeights

# (layer, q [n, Hq, D], k and v [n, Hkv, D] before RoPE, the rotary embedding) -> [n, Hq, D]
Attend = Callable[[int, Tensor, Tensor, Tensor, RotaryEmbedding], Tensor]


class Dense:
    """A linear layer with weights [O, I] in the model's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias, self.size = weight, bias, weight.numel()

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, I] -> [n, O]."""
        return nn.functional.linear(x, self.weight, self.bias)

    def normed(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        """Norm x [n, I], then project: [n, O]."""
        return self(kernels.rms_norm(x, *norm))

    def gated(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        """Norm x [n, I] and project to [gates, others]; silu(gates) * others: [n, O/2]."""
        return kernels.silu_mul(self.normed(x, norm))

    def add_to(self, residual: Tensor | None, x: Tensor) -> Tensor:
        """``residual`` [n, O] plus the projection of x [n, I]; may overwrite it. None stands for zeros."""
        if residual is None:
            return self(x)
        if self.bias is not None:
            residual += self.bias
        summed: Tensor = residual.addmm_(x, self.weight.t())
        return summed


class GroupLinear:
    """``Dense`` with quantized weights: a step of few tokens reads half the bytes, or a quarter of them."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self.weight, self.bias, self.size = weight, bias, weight.outputs * weight.inputs

    def __call__(self, x: Tensor) -> Tensor:
        if self._many(x):
            out = product(x, self.weight)
            return out if self.bias is None else out + self.bias
        return kernels.quantized_linear(x, self.weight, self._bias(len(x)))

    def normed(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        if self._many(x):
            return self(kernels.rms_norm(x, *norm))
        return kernels.quantized_linear(x, self.weight, self._bias(len(x)), norm)

    def gated(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        if self.bias is not None or self._many(x):
            return kernels.silu_mul(self.normed(x, norm))
        return kernels.quantized_linear(x, self.weight, norm=norm, gated=True)

    def add_to(self, residual: Tensor | None, x: Tensor) -> Tensor:
        if self._many(x):
            return self(x) if residual is None else residual.add_(self(x))
        out = kernels.quantized_linear(x, self.weight, residual)
        return out if self.bias is None else out + self.bias

    def _many(self, x: Tensor) -> bool:
        """Whether there are more tokens than in any step; copies for proposals see none but steps."""
        return len(x) > MOST_ROWS and not self.weight.whole

    def _bias(self, n: int) -> Tensor | None:
        return None if self.bias is None else self.bias.expand(n, -1)


class Parallel:
    """Layers that read the same input, but have weights of several formats, and so cannot be merged."""

    def __init__(self, parts: Sequence[Dense | GroupLinear]) -> None:
        self.parts, self.size = parts, sum(each.size for each in parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([each(x) for each in self.parts], 1)

    def normed(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        return torch.cat([each.normed(x, norm) for each in self.parts], 1)

    def gated(self, x: Tensor, norm: kernels.Norm) -> Tensor:
        return kernels.silu_mul(self.normed(x, norm))

    def add_to(self, residual: Tensor | None, x: Tensor) -> Tensor:
        return self(x) if residual is None else residual.add_(self(x))


Linear = Dense | GroupLinear | Parallel


def int8_copy(linear: Linear) -> GroupLinear:
    """The layer with weights rounded to 8 bits, for proposals."""
    assert isinstance(linear, Dense)
    return GroupLinear(kernels.quantize(linear.weight), linear.bias)


def merged(*linears: Any) -> Linear:
    """One layer in place of several that read the same input; their weights become views of its rows.

    Those of other formats than their neighbours' remain layers of their own.
    """
    runs = [list(run) for _, run in groupby(linears, format_of)]
    parts = [merged_quantized(run) if is_quantized(run[0]) else merged_dense(run) for run in runs]
    return parts[0] if len(parts) == 1 else Parallel(parts)


def is_quantized(linear: Any) -> bool:
    """Whether a module of transformers, or in its place, has a quantized matrix."""
    return hasattr(linear, "matrix")


def format_of(linear: Any) -> Any:
    """What two layers must have in common to be merged."""
    return linear.matrix.weight.format if is_quantized(linear) else None


def merged_quantized(linears: Sequence[Any]) -> GroupLinear:
    weight = joined([each.matrix.weight for each in linears])
    first = 0
    for linear in linears:
        last = first + linear.matrix.shape[0]
        linear.matrix.weight, first = weight.rows(first, last), last
    return GroupLinear(weight, joined_biases(linears))


def merged_dense(linears: Sequence[Any]) -> Dense:
    weights = [local_shard(linear.weight) for linear in linears]
    weight = stacked(weights)
    for linear, own in zip(linears, weight.split([len(each) for each in weights]), strict=True):
        set_weight(linear, own)
    return Dense(weight, joined_biases(linears))


def joined_biases(linears: Sequence[Any]) -> Tensor | None:
    biases = [local_shard(linear.bias) for linear in linears]
    return None if biases[0] is None else torch.cat(biases)


def whole(linear: Any) -> Dense | GroupLinear:
    """A layer of its own; of a dense one, what this rank holds of it."""
    if is_quantized(linear):
        return GroupLinear(linear.matrix.weight, linear.bias)
    return Dense(local_shard(linear.weight), local_shard(linear.bias))


def row_parallel(linear: Any, group: RankGroup) -> Dense | GroupLinear:
    """A layer whose inputs are split between the ranks, so that each computes a partial sum."""
    made = whole(linear)
    if group.rank:
        made.bias = None
    return made


class Block:
    """One decoder block of a Llama, Mistral, Qwen2 or Qwen3, or one rank's share of it."""

    def __init__(self, layer: Any, shape: Shape, group: RankGroup) -> None:
        attention, mlp, self.group = layer.self_attn, layer.mlp, group
        self.number: int = attention.layer_idx
        self.heads = (shape.query_heads, shape.kv_heads, shape.kv_heads)
        self.dim = shape.head_dim
        self.input_norm, self.post_norm = map(
            norm_of, (layer.input_layernorm, layer.post_attention_layernorm)
        )
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self.head_norms = [norm and norm_of(norm) for norm in norms]
        self.qkv_proj: Linear = merged(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o_proj: Linear = row_parallel(attention.o_proj, group)
        self.gate_up_proj: Linear = merged(mlp.gate_proj, mlp.up_proj)
        self.down_proj: Linear = row_parallel(mlp.down_proj, group)

    def quantized(self) -> Block:
        """A copy of the block with 8-bit weights."""
        made = copy(self)
        made.qkv_proj, made.o_proj, made.gate_up_proj, made.down_proj = map(
            int8_copy, (self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj)
        )
        return made

    def __call__(self, residual: Tensor, rotary: RotaryEmbedding, attend: Attend) -> Tensor:
        """The residual stream [n, C] after the block; ``residual`` may be overwritten."""
        n = len(residual)
        q, k, v = self.qkv_proj.normed(residual, self.input_norm).view(n, -1, self.dim).split(self.heads, 1)
        q, k = (
            each if norm is None else kernels.rms_norm(each, *norm)
            for each, norm in zip((q, k), self.head_norms, strict=True)
        )
        mixed = attend(self.number, q, k, v, rotary)
        residual = self._add(residual, self.o_proj, mixed.reshape(n, -1))
        return self._add(residual, self.down_proj, self.gate_up_proj.gated(residual, self.post_norm))

    def _add(self, residual: Tensor, linear: Linear, x: Tensor) -> Tensor:
        """``residual`` [n, C] plus all ranks' partial sums of the projection of x [n, I]."""
        return self.group.all_reduce_sum(linear.add_to(residual if self.group.rank == 0 else None, x))


def norm_of(norm: Any) -> kernels.Norm:
    """The parameters of a norm module of transformers."""
    return kernels.Norm(local_shard(norm.weight), norm.variance_epsilon)


class Decoder:
    """The blocks, embedding and head of a whole model, or one rank's share of them.

    ``streamed``: the weights of its layers, if some are in host memory.
    """

    def __init__(
        self, model: Any, shape: Shape, group: RankGroup = SINGLE, streamed: StreamedWeights | None = None
    ) -> None:
        base, self.vocabulary, self.group = model.base_model, model.config.vocab_size, group
        self.streamed = streamed
        self.embed: Callable[[Tensor], Tensor] = base.embed_tokens
        if not is_quantized(base.embed_tokens):
            self.embed = Embedding(local_shard(base.embed_tokens.weight), self.vocabulary, group)
        self.rotary, self.norm = base.rotary_emb, norm_of(base.norm)
        self.blocks = [Block(layer, shape, group) for layer in base.layers]
        self.head: Linear = whole(model.lm_head)

    @property
    def keeps_format(self) -> bool:
        """Whether weights are quantized as their file has them."""
        return not all(isinstance(each, Dense) for each in self._matrices)

    def quantized(self) -> Decoder:
        """A copy of the decoder with 8-bit weights; the embedding is shared. Weights must not be quantized before."""
        made = copy(self)
        made.blocks = [block.quantized() for block in self.blocks]
        made.head = int8_copy(self.head)
        return made

    @property
    def matrix_numbers(self) -> int:
        """Elements of the weight matrices that every step reads."""
        return sum(each.size for each in self._matrices)

    @property
    def _matrices(self) -> list[Linear]:
        inner = [(block.qkv_proj, block.o_proj, block.gate_up_proj, block.down_proj) for block in self.blocks]
        return [self.head, *(each for four in inner for each in four)]

    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend, added: Tensor | None = None) -> Tensor:
        """ids and positions [n] -> last hidden states [n, C], normed; ``added`` [n, C] goes to the embeddings."""
        residual = self.embed(ids)
        if added is not None:
            residual += added
        rotary = RotaryEmbedding(self.rotary, positions)
        for block in self.blocks:
            if self.streamed is not None:
                self.streamed.bring(block.number)
            residual = block(residual, rotary, attend)
        return kernels.rms_norm(residual, *self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Last hidden states [n, C] -> logits [n, V], on all ranks."""
        return gather_logits(self.head(hidden), self.vocabulary, self.group)
