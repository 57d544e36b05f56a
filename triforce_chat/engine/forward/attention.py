"""The attention function of all models: registered with transformers, and reading the cache of each forward."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from triforce_chat.engine.cache.storage import KVCache, KVView
from triforce_chat.engine.forward import onednn, prefill_attention

NAME = "triforce"
FEW = 16  # new tokens on a GPU up to which ``folded_attention`` is used, which reads every key once


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of n new tokens over the cache that was passed to the model as ``kv=``, in transformers' signature.

    query: [1, Hq, n, D], key and value: [1, Hkv, n, D], all after RoPE. Returns [1, n, Hq, D].
    """
    view = kwargs["kv"].update(module.layer_idx, query, key, value)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return read_attention(query, view, scale).transpose(1, 2), None


class RotaryEmbedding:
    """Rotates queries and keys at ``positions`` [n] as a rotary module of transformers does."""

    def __init__(self, rotary: Any, positions: Tensor) -> None:
        self.module, self.positions = rotary, positions
        self.frequencies: Tensor = rotary.inv_freq.float()  # [D/2]
        self.factor: float = rotary.attention_scaling
        self._tables: tuple[Tensor, Tensor] | None = None  # cos and sin

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q [n, Hq, D] and k [n, Hkv, D] rotated to their positions."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        rotated: tuple[Tensor, Tensor] = apply_rotary_pos_emb(q, k, *self._cos_sin(q))
        return rotated

    def _cos_sin(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [n, D], computed once for all layers."""
        if self._tables is None:
            cos, sin = self.module(like, self.positions[None])
            self._tables = cos[0], sin[0]
        return self._tables


def attend_in(cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryEmbedding) -> Tensor:
    """Append one layer's keys and values to ``cache`` and attend over it; q and k are rotated here.

    q: [n, Hq, D], k and v: [n, Hkv, D]. Returns [n, Hq, D].
    """
    q, k = rotary.rotate(q, k)
    query, key, value = (part.transpose(0, 1)[None] for part in (q, k, v))
    view = cache.update(layer, query, key, value)
    return read_attention(query, view, q.shape[-1] ** -0.5)[0].transpose(0, 1)


def read_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """Causal attention of n tokens over a view that ends with them: query [1, Hq, n, D] -> [1, Hq, n, D]."""
    many = query.is_cuda and query.shape[2] > FEW
    return (causal_attention if many else folded_attention)(query, view, scale)


def causal_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """``read_attention`` for many tokens.

    No mask is stored, so that a GPU can use its flash kernel in 16 bits and its memory-efficient kernel in fp32. Keys
    and values are repeated for the heads that share them, because the latter does not support groups.
    """
    _, heads, n, _ = query.shape
    keys, values = view.keys[:, :, : view.length], view.values[:, :, : view.length]
    if prefill_attention.serves(query, view.length):
        return prefill_attention.attention(query, keys, values, scale)
    keys, values = repeated(keys, heads), repeated(values, heads)
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler, which takes a second

    mask = causal_lower_right(n, view.length)
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)


def repeated(part: Tensor, heads: int) -> Tensor:
    """Repeat each KV head for the query heads that share it: [1, Hkv, S, D] -> [1, heads, S, D]."""
    group = heads // part.shape[1]
    return part[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)


def folded_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """``read_attention`` for few tokens: the query heads that share a KV head become rows of one matrix.

    So keys and values are read once and never repeated. query: [1, Hq, n, D]; returns [1, Hq, n, D].
    """
    _, heads, n, dim = query.shape
    kv_heads = view.keys.shape[1]
    rows = query.reshape(1, kv_heads, -1, dim)  # [1, Hkv, G*n, D]
    tail = causal_tail(n, heads // kv_heads, rows.dtype, rows.device) if n > 1 else None
    return softmax_attention(rows, view, tail, scale).reshape(1, heads, n, dim)


@lru_cache(maxsize=8)
def causal_tail(n: int, group: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The causal mask of the last n keys, to be added to the scores of n queries times ``group`` heads: [G*n, n]."""
    return torch.full((n, n), float("-inf"), dtype=dtype, device=device).triu(1).repeat(group, 1)


def softmax_attention(rows: Tensor, view: KVView, tail: Tensor | None, scale: float) -> Tensor:
    """Softmax attention by the fastest kernel for the device.

    rows: [1, Hkv, R, D]; tail: [R, n] is added to the scores of the last n keys. Returns [1, Hkv, R, D].
    """
    if onednn.available(rows.device, rows.dtype):
        return onednn.attention(rows, view, tail, scale)
    keys, values = view.keys[:, :, : view.length], view.values[:, :, : view.length]
    mask = None if tail is None else pad(tail, (view.length - tail.shape[1], 0))
    return scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)


def register() -> None:
    """Register ``attend`` with transformers under NAME, without a mask function."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *_, **__: None)
