"""Decoder layers on a CPU whose weights the library multiplies: a few calls where transformers' own make many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn

from triforce_chat.engine.cache.quantization import FP8
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.engine.cpu_kernels.attention import DIMS, attend, rotate
from triforce_chat.engine.cpu_kernels.few_rows import Linear, Norm
from triforce_chat.engine.cpu_kernels.projection import Projection
from triforce_chat.engine.cpu_kernels.quantized_matrix import QuantizedMatrix
from triforce_chat.engine.forward import onednn
from triforce_chat.engine.forward.attention import Part, read, updated
from triforce_chat.engine.forward.modules import supports
from triforce_chat.engine.forward.quantized import QuantizedLinear

# Tokens up to which the library attends, whose intermediate results grow with tokens and context: at most as large
# as the scores of torch's products, which are used for more.
FEW = 16
HALVES = ((Kind.BF16, torch.bfloat16), (Kind.F16, torch.float16))


class CpuLayer(nn.Module):
    """A decoder layer of a Llama, Mistral, Qwen2 or Qwen3, with the same submodules as transformers' own."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.self_attn, self.mlp = attention, mlp
        self.input_layernorm, self.post_attention_layernorm = (
            layer.input_layernorm,
            layer.post_attention_layernorm,
        )
        self.number: int = attention.layer_idx
        self.dim: int = attention.head_dim
        self.scale: float = attention.scaling
        self.heads = attention.q_proj.shape[0] // self.dim, attention.k_proj.shape[0] // self.dim
        self.head_norms = (
            norm_of(getattr(attention, "q_norm", None)),
            norm_of(getattr(attention, "k_norm", None)),
        )
        self.qkv = projection(attention.q_proj, attention.k_proj, attention.v_proj, norm=self.input_layernorm)
        self.out = projection(attention.o_proj)
        self.gate_up = projection(mlp.gate_proj, mlp.up_proj, norm=self.post_attention_layernorm, gated=True)
        self.down = projection(mlp.down_proj)

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        kv: Sequence[Part],
        **_: Any,
    ) -> Tensor:
        """The residual stream [1, n, C] after the layer; cos and sin: [1, n, D]."""
        x = hidden_states[0]
        x = self.out(self._mixed(self.qkv(x), *position_embeddings, kv), x)
        return self.down(self.gate_up(x), x)[None]

    def _mixed(self, qkv: Tensor, cos: Tensor, sin: Tensor, parts: Sequence[Part]) -> Tensor:
        """Attention of n tokens by their queries, keys and values [n, (Hq + 2 * Hkv) * D]: [n, Hq * D]."""
        rotate(qkv, self.heads, self.dim, self.head_norms, cos[0], sin[0])
        q, k = self.heads
        query, key, value = qkv.view(1, len(qkv), -1, self.dim).transpose(1, 2).split((q, k, k), 1)
        asked = updated(parts, self.number, query, key, value)
        if all(compiled_reads(some, view) for some, view in asked):
            views = [(some, view.masked(some.shape[2])) for some, view in asked]
            mixed = [
                attend(some, *view[:3], self.scale, view.slots, view.visible, view.before, *view.masses)
                for some, view in views
            ]
            return mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return read(asked, self.scale).transpose(1, 2).reshape(len(qkv), -1)


def compiled_reads(query: Tensor, view: KVView) -> bool:
    """Whether the library attends for these queries [1, Hq, n, D]."""
    few = query.shape[2] <= FEW and len(view.masses) < 2
    return few and view.shared is None and view.keys.dtype != FP8


def projection(*layers: Any, norm: Any = None, gated: bool = False) -> Projection:
    """One in place of several layers of quantized weights with the same input."""
    parts = [Linear(each.matrix, each.bias, each.down, each.up) for each in layers]
    return Projection(parts, norm_of(norm), gated)


def norm_of(norm: Any) -> Norm | None:
    """The parameters of a norm module of transformers."""
    return norm and Norm(norm.weight, norm.variance_epsilon)


def keep_in_16_bits(model: Any) -> None:
    """Store in 16 bits what 16 bits hold exactly: fp32 matrices of linear layers, on a CPU.

    For a draft model, which reads all of its weights for a token or two: they are read in half the time, and its layers
    can be fused. A forward of many tokens is faster with fp32 weights. Nothing is done without the compiled library.
    """
    if not (onednn.available(model.device, model.dtype) and supports(model.config)):
        return
    if compiled.will_compile() or compiled.library().library is None:
        return
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear) and (matrix := in_16_bits(child.weight.detach())):
                setattr(module, name, QuantizedLinear(matrix, child.bias))


def in_16_bits(weight: Tensor) -> QuantizedMatrix | None:
    """The same numbers in 16 bits each; None if these cannot hold them. weight: fp32 [O, I]."""
    for kind, dtype in HALVES:
        narrow = weight.to(dtype)
        if torch.equal(narrow.float(), weight):
            return QuantizedMatrix(narrow.view(torch.uint8), kind, weight.shape[1])
    return None


def fuse_layers(model: Any) -> None:
    """Replace the decoder layers that a ``CpuLayer`` computes."""
    layers = model.base_model.layers
    for number, layer in enumerate(layers):
        if fusible(layer, model.config):
            layers[number] = CpuLayer(layer)


def fusible(layer: Any, config: Any) -> bool:
    """Whether the layer is of a known family and all of its matrices are quantized."""
    if not supports(config):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    linears = (*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return attention.head_dim in DIMS and all(
        isinstance(getattr(each, "matrix", None), QuantizedMatrix) for each in linears
    )
