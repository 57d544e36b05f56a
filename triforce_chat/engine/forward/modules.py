"""A Llama, Mistral, Qwen2 or Qwen3 of plain modules of torch.

Modules and weights have the names that they have in transformers, and compute the same numbers, but over this program's
caches alone. To import transformers' own takes half a second or more and 170 MB: they come with what training,
compiling and many other architectures need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from triforce_chat.engine.forward.attention import NAME, Part, rotated, update_and_read
from triforce_chat.engine.forward.attention_backend import OverView
from triforce_chat.engine.forward.frequencies import KINDS, frequencies_of, head_dim_of

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ACTIVATION = "silu"


class States(NamedTuple):
    """What a forward without the output matrix returns."""

    last_hidden_state: Tensor  # [1, n, C], normed


class Linear(nn.Linear):
    """A linear layer whose weights are yet to come from a file."""

    def __init__(self, inputs: int, outputs: int, biased: bool, dtype: torch.dtype) -> None:
        super().__init__(inputs, outputs, biased, "meta", dtype)

    def reset_parameters(self) -> None:
        """No random numbers: those of meta tensors have torch's compiler imported."""


class Norm(nn.Module):
    """An RMS norm, computed in fp32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta", dtype=dtype))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class Rotary(nn.Module):
    """The rotary embeddings of a configuration; the frequencies are computed, not stored."""

    inv_freq: Tensor  # fp32 [D/2]

    def __init__(self, config: Any) -> None:
        super().__init__()
        frequencies, self.attention_scaling = frequencies_of(config)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("original_inv_freq", frequencies.clone(), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [1, n, D] at the positions [1, n], in the dtype of x."""
        angles = position_ids[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class SelfAttention(nn.Module):
    """Queries, keys and values of the new tokens, attention over the caches, and what it adds to the stream."""

    def __init__(self, config: Any, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer_idx, self.head_dim = number, head_dim_of(config)
        self.scaling = self.head_dim**-0.5
        width, read = (
            heads * self.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        family = config.model_type
        all_biased = family in ("llama", "qwen3") and config.attention_bias
        biased = all_biased or family == "qwen2"
        self.q_proj = Linear(config.hidden_size, width, biased, dtype)
        self.k_proj = Linear(config.hidden_size, read, biased, dtype)
        self.v_proj = Linear(config.hidden_size, read, biased, dtype)
        self.o_proj = Linear(width, config.hidden_size, all_biased, dtype)
        if family == "qwen3":
            self.q_norm = Norm(self.head_dim, config.rms_norm_eps, dtype)
            self.k_norm = Norm(self.head_dim, config.rms_norm_eps, dtype)

    def forward(
        self, x: Tensor, tables: tuple[Tensor, Tensor], kv: Sequence[Part], many: OverView | None
    ) -> Tensor:
        """x: [1, n, C]; ``tables``: cos and sin; ``kv``: the sequences whose tokens they are."""
        q, k, v = (
            each(x).unflatten(-1, (-1, self.head_dim)) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (rotated(each.transpose(1, 2), *tables) for each in (q, k))
        out: Tensor = self.o_proj(self.mixed(q, k, v.transpose(1, 2), kv, many))
        return out

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, kv: Sequence[Part], many: OverView | None) -> Tensor:
        """What the new tokens attend to, themselves included: [1, n, Hq * D]."""
        found = update_and_read(kv, self.layer_idx, q, k, v, self.scaling, many)
        return found.transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        super().__init__()
        biased = config.model_type == "llama" and config.mlp_bias
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, biased, dtype)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, biased, dtype)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, biased, dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, config: Any, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(config, number, dtype), Mlp(config, dtype)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps, dtype)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps, dtype)

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        kv: Sequence[Part],
        many: OverView | None = None,
    ) -> Tensor:
        """The residual stream [1, n, C] after the layer; cos and sin: [1, n, D]."""
        x = hidden_states
        x = x + self.self_attn(self.input_layernorm(x), position_embeddings, kv, many)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """The model without its output matrix."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        table = torch.empty(config.vocab_size, config.hidden_size, device="meta", dtype=dtype)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=table)
        self.layers = nn.ModuleList(
            DecoderLayer(config, each, dtype) for each in range(config.num_hidden_layers)
        )
        self.norm = Norm(config.hidden_size, config.rms_norm_eps, dtype)
        self.rotary_emb = Rotary(config).to(device)

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        position_ids: Tensor,
        kv: Sequence[Part],
        many: OverView | None = None,
        **_: Any,
    ) -> States:
        """Feed ids [1, n], or their embeddings [1, n, C], at the positions [1, n]; ``kv`` as in ``attend``."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        tables = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, position_embeddings=tables, kv=kv, many=many)
        return States(self.norm(x))


class LanguageModel(nn.Module):
    """A model by its configuration, as transformers reads that, whose weights are yet to be put in their places."""

    generation_config: Any = None  # of its authors

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        config.dtype, config._attn_implementation = dtype, NAME  # as transformers notes them
        self.config = config
        self.model = Body(config, dtype, device)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, False, dtype)

    @property
    def base_model(self) -> Body:
        return self.model

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of everything that is not quantized."""
        return self.model.norm.weight.dtype

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, layer: nn.Module) -> None:
        self.lm_head = layer  # type: ignore[assignment]


def supports(config: Any) -> bool:
    """Whether these modules are the model's."""
    rope = (config.rope_parameters or {}).get("rope_type")
    return config.model_type in FAMILIES and config.hidden_act == ACTIVATION and rope in KINDS
