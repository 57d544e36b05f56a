"""A model's decoder blocks in few kernels: what transformers computes in thirty, fused and merged to ten or,
in 8 bits, to seven.

Of a step of a middle level, the many small kernels of transformers' own forward would take nearly half. The
projections that read the same input are merged, norms, rotary embeddings and gates are one kernel each, and sums
into the residual stream belong to the matrix products. The model keeps its weights: its matrices become parts of
the merged ones, and its own forward works as before.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from triforce_chat.engine import kernels
from triforce_chat.engine.attention import Angles
from triforce_chat.engine.cache.slab import Shape

# the layer's number, q [n, Hq, D], k and v [n, Hkv, D], not rotated yet -> [n, Hq, D]
Attend = Callable[[int, Tensor, Tensor, Tensor, Angles], Tensor]


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

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, I] added to ``stream`` [n, O], which is overwritten."""
        if self.bias is not None:
            stream += self.bias
        summed: Tensor = stream.addmm_(x, self.weight.t())
        return summed


class Narrow:
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

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        out = kernels.int8_linear(x, self.weight, stream)
        return out if self.bias is None else out + self.bias

    def _bias(self, n: int) -> Tensor | None:
        return None if self.bias is None else self.bias.expand(n, -1)


Product = Dense | Narrow


def merged(*linears: Any) -> Dense:
    """One product for several that read the same input; their weights become its rows."""
    weight = torch.cat([linear.weight for linear in linears])
    sizes = [linear.out_features for linear in linears]
    for linear, part in zip(linears, weight.split(sizes), strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    biases = [linear.bias for linear in linears]
    return Dense(weight, None if biases[0] is None else torch.cat(biases))


class Block:
    """One decoder block of a Llama, Mistral, Qwen2 or Qwen3."""

    def __init__(self, layer: Any, shape: Shape) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.number: int = attention.layer_idx
        self.heads = (shape.query_heads, shape.kv_heads, shape.kv_heads)
        self.dim = shape.head_dim
        self.before, self.between = map(plain, (layer.input_layernorm, layer.post_attention_layernorm))
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self.head_norms = [norm and plain(norm) for norm in norms]
        self.into: Product = merged(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out: Product = Dense(attention.o_proj.weight, attention.o_proj.bias)
        self.gates: Product = merged(mlp.gate_proj, mlp.up_proj)
        self.down: Product = Dense(mlp.down_proj.weight, mlp.down_proj.bias)

    def narrow(self) -> Block:
        """The same with copies of the matrices in 8 bits."""
        made = copy(self)
        made.into, made.out, made.gates, made.down = map(Narrow, (self.into, self.out, self.gates, self.down))
        return made

    def __call__(self, stream: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """stream [n, C], which is overwritten."""
        n = len(stream)
        q, k, v = self.into.normed(stream, self.before).view(n, -1, self.dim).split(self.heads, 1)
        q, k = (
            part if norm is None else kernels.rms_norm(part, *norm)
            for part, norm in zip((q, k), self.head_norms, strict=True)
        )
        mixed = attend(self.number, q, k, v, angles)
        stream = self.out.onto(stream, mixed.reshape(n, -1))
        return self.down.onto(stream, self.gates.gated(stream, self.between))


def plain(norm: Any) -> kernels.Norm:
    """A norm of transformers'."""
    return kernels.Norm(norm.weight, norm.variance_epsilon)


class Decoder:
    """A whole model."""

    def __init__(self, model: Any, shape: Shape) -> None:
        base = model.base_model
        self.embed, self.rotary, self.norm = base.embed_tokens, base.rotary_emb, plain(base.norm)
        self.blocks = [Block(layer, shape) for layer in base.layers]
        self.head: Product = Dense(model.lm_head.weight, model.lm_head.bias)

    def narrow(self) -> Decoder:
        """The same with copies of the matrices in 8 bits; the embeddings are shared."""
        made = copy(self)
        made.blocks = [block.narrow() for block in self.blocks]
        made.head = Narrow(self.head)
        return made

    @property
    def matrix_numbers(self) -> int:
        """How many numbers a step of few tokens reads."""
        inner = [(block.into, block.out, block.gates, block.down) for block in self.blocks]
        return sum(each.size for each in (self.head, *(each for four in inner for each in four)))

    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """ids and positions [n] -> the last hidden states [n, C]."""
        stream = self.embed(ids)
        angles = Angles(self.rotary, positions)
        for block in self.blocks:
            stream = block(stream, angles, attend)
        return kernels.rms_norm(stream, *self.norm)
