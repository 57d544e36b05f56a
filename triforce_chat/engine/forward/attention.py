"""One attention function, registered with transformers, which reads whatever cache the forward was given."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention

from triforce_chat.engine.cache.storage import KVCache, KVView
from triforce_chat.engine.forward import onednn, prefill_attention

NAME = "triforce"
FEW = 16  # new tokens on a GPU up to which folded rows serve, which read every key once


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of n new tokens over the cache passed to the model as ``kv=``.

    query: [1, Hq, n, D], key and value: [1, Hkv, n, D], all post-RoPE. Returns [1, n, Hq, D].
    """
    view = kwargs["kv"].update(module.layer_idx, query, key, value)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return read(query, view, scale).transpose(1, 2), None


class RotaryEmbedding:
    """How far queries and keys turn at ``positions`` [n], by a rotary module of transformers'."""

    def __init__(self, rotary: Any, positions: Tensor) -> None:
        self.rotary, self.positions = rotary, positions
        self.frequencies: Tensor = rotary.inv_freq.float()  # [D/2]
        self.factor: float = rotary.attention_scaling
        self._known: tuple[Tensor, Tensor] | None = None

    def turned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q [n, Hq, D] and k [n, Hkv, D] at their positions."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        turned: tuple[Tensor, Tensor] = apply_rotary_pos_emb(q, k, *self._tables(q))
        return turned

    def _tables(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [n, D], computed once for all layers."""
        if self._known is None:
            cos, sin = self.rotary(like, self.positions[None])
            self._known = cos[0], sin[0]
        return self._known


def attend_in(cache: KVCache, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryEmbedding) -> Tensor:
    """The same for one layer by its number, with queries and keys that are not rotated yet.

    q: [n, Hq, D], k and v: [n, Hkv, D]. Returns [n, Hq, D].
    """
    q, k = rotary.turned(q, k)
    query, key, value = (part.transpose(0, 1)[None] for part in (q, k, v))
    view = cache.update(layer, query, key, value)
    return read(query, view, q.shape[-1] ** -0.5)[0].transpose(0, 1)


def read(query: Tensor, view: KVView, scale: float) -> Tensor:
    """Attention of n tokens over a view that ends with them: query [1, Hq, n, D] -> [1, Hq, n, D]."""
    many = query.is_cuda and query.shape[2] > FEW
    return (causal_attention if many else folded_attention)(query, view, scale)


def causal_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """The same with many tokens.

    No mask is stored, so a GPU takes its flash kernel in 16 bit, and its memory-efficient one in fp32. For these
    keys and values are repeated for the heads that share them, because the latter knows no groups.
    """
    _, heads, n, _ = query.shape
    keys, values = view.keys[:, :, : view.length], view.values[:, :, : view.length]
    if prefill_attention.serves(query, view.length):
        return prefill_attention.attention(query, keys, values, scale)
    keys, values = repeated(keys, heads), repeated(values, heads)
    mask = causal_lower_right(n, view.length)
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)


def repeated(part: Tensor, heads: int) -> Tensor:
    """Each KV head once per query head that reads it: [1, Hkv, S, D] -> [1, heads, S, D]."""
    group = heads // part.shape[1]
    return part[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)


def folded_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """The same with few tokens: the query heads that share a KV head become rows of one matrix.

    So keys and values are never repeated. query: [1, Hq, n, D]; returns [1, Hq, n, D].
    """
    _, heads, n, dim = query.shape
    kv_heads = view.keys.shape[1]
    rows = query.reshape(1, kv_heads, -1, dim)  # [1, Hkv, G*n, D]
    tail = causal_tail(n, heads // kv_heads, rows.dtype, rows.device) if n > 1 else None
    return softmax_attention(rows, view, tail, scale).reshape(1, heads, n, dim)


@lru_cache(maxsize=8)
def causal_tail(n: int, group: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What the last n keys add to the scores of n queries times ``group`` heads: [G*n, n]."""
    return torch.full((n, n), float("-inf"), dtype=dtype, device=device).triu(1).repeat(group, 1)


def softmax_attention(rows: Tensor, view: KVView, tail: Tensor | None, scale: float) -> Tensor:
    """Attention by the fastest kernel for the device.

    rows: [1, Hkv, R, D]; tail: [R, n] is added to the scores of the last n keys. Returns [1, Hkv, R, D].
    """
    if onednn.available(rows.device, rows.dtype):
        return onednn.attention(rows, view, tail, scale)
    keys, values = view.keys[:, :, : view.length], view.values[:, :, : view.length]
    mask = None if tail is None else pad(tail, (view.length - tail.shape[1], 0))
    return scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)


def register() -> None:
    """Make ``attend`` known to transformers under NAME, with no mask of its own."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *_, **__: None)
