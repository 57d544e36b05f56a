"""The attention function of all models: registered with transformers, and reading the caches of each forward.

The new tokens of several sequences may pass a forward one sequence after the other. Sequences that share a prefix read
it together: their queries are rows of one matrix, so its keys and values are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from triforce_chat.engine.cache.kv_cache import KVCache
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.forward import onednn, prefill_attention
from triforce_chat.engine.forward.attention_backend import OverView
from triforce_chat.engine.forward.prefill_attention import merged

NAME = "triforce"
# New tokens on a GPU without flash-attention up to which ``folded_attention`` is used, which reads every key once.
FEW = 16


class Part(NamedTuple):
    """The share of one sequence in a forward: its next n tokens go to ``cache``."""

    cache: KVCache
    n: int
    visible: Tensor | None = None  # see ``KVView``


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of n new tokens over the caches that were passed to the model as ``kv=``, in transformers' signature.

    query: [1, Hq, n, D], key and value: [1, Hkv, n, D], all after RoPE; ``kv`` is a sequence of ``Part``, whose tokens
    are n in all, and ``many``, if given, as in ``read_attention``. Returns [1, n, Hq, D].
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: Any = module.layer_idx
    mixed = update_and_read(kwargs["kv"], layer, query, key, value, scale, kwargs.get("many"))
    return mixed.transpose(1, 2), None


def update_and_read(
    parts: Sequence[Part],
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    many: OverView | None = None,
) -> Tensor:
    """Append one layer's keys and values to each part's cache, and attend over it: [1, Hq, n, D]."""
    return read(updated(parts, layer, query, key, value), scale, many)


def updated(
    parts: Sequence[Part], layer: int, query: Tensor, key: Tensor, value: Tensor
) -> list[tuple[Tensor, KVView]]:
    """Append one layer's keys and values to each part's cache: its queries, and the view that they ask."""
    shares = zip(*(each.split([part.n for part in parts], 2) for each in (query, key, value)), strict=True)
    return [
        (q, seen_by(part, part.cache.update(layer, q, k, v)))
        for part, (q, k, v) in zip(parts, shares, strict=True)
    ]


def seen_by(part: Part, view: KVView) -> KVView:
    """The view as the tokens of a part read it."""
    return view if part.visible is None else view._replace(visible=part.visible)


def read(asked: Sequence[tuple[Tensor, KVView]], scale: float, many: OverView | None = None) -> Tensor:
    """``read_attention`` of one sequence or several: [1, Hq, n, D]."""
    return read_attention(*asked[0], scale, many) if len(asked) == 1 else read_together(asked, scale)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x with each dimension of the first half rotated with its twin in the second: [n, H, D], or [1, H, n, D].

    cos and sin: [n, D], or [1, n, D].
    """
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


class RotaryEmbedding:
    """Rotates queries and keys at ``positions`` [n] as a rotary module of transformers does."""

    def __init__(self, rotary: Any, positions: Tensor) -> None:
        self.module, self.positions = rotary, positions
        self.frequencies: Tensor = rotary.inv_freq.float()  # [D/2]
        self.factor: float = rotary.attention_scaling
        self._tables: tuple[Tensor, Tensor] | None = None  # cos and sin

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q [n, Hq, D] and k [n, Hkv, D] rotated to their positions."""
        tables = self._cos_sin(q)
        return rotated(q, *tables), rotated(k, *tables)

    def _cos_sin(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [n, D], computed once for all layers."""
        if self._tables is None:
            cos, sin = self.module(like, self.positions[None])
            self._tables = cos[0], sin[0]
        return self._tables


def attend_in(
    parts: Sequence[Part],
    many: OverView | None,
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: RotaryEmbedding,
) -> Tensor:
    """``update_and_read`` before RoPE: q and k are rotated here.

    q: [n, Hq, D], k and v: [n, Hkv, D]. Returns [n, Hq, D].
    """
    q, k = rotary.rotate(q, k)
    query, key, value = (each.transpose(0, 1)[None] for each in (q, k, v))
    return update_and_read(parts, layer, query, key, value, q.shape[-1] ** -0.5, many)[0].transpose(0, 1)


def read_attention(query: Tensor, view: KVView, scale: float, many: OverView | None = None) -> Tensor:
    """Attention of n tokens over a view that ends with them: query [1, Hq, n, D] -> [1, Hq, n, D].

    Causal, unless the view says what they see. ``many`` is taken on a GPU in place of ``causal_attention``.
    """
    if view.shared is not None:
        if not query.is_cuda:
            return shared_attention([(query, view)], scale)
        if prefill_attention.joins(query) and query.shape[2] > FEW and view.visible is None:
            return joined_attention(query, view, scale)
        view = KVView(*view.whole, view.end)  # as one, for the few forwards that no graph takes
    if view.repeated and prefill_attention.joins(query):
        return prefill_attention.over_groups(query, view, scale)
    view = view.masked(query.shape[2])
    # What torch chooses on Hopper, cuDNN's kernel, needs a plan for every new length: tens of milliseconds.
    few = query.shape[2] <= FEW and not prefill_attention.flash_runs(query)
    if query.is_cuda and not few and view.visible is None:
        return (many or causal_attention)(query, view.gathered, scale)
    return folded_attention(query, view.gathered, scale)


def joined_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """``read_attention`` of many tokens after a shared prefix, whose keys and values stay where they are."""
    assert view.shared
    before, own = (each.all_heads(query.dtype) for each in (view.shared.prefix, view._replace(shared=None)))
    return prefill_attention.after_prefix(query, before, own, scale)


def read_together(asked: Sequence[tuple[Tensor, KVView]], scale: float) -> Tensor:
    """``read_attention`` of several sequences, one after the other in the result: [1, Hq, n, D].

    All views that share a prefix share the same one.
    """
    sharing = [each for each in asked if each[1].shared is not None]
    if len(sharing) == len(asked):
        return shared_attention(asked, scale)
    lengths = [query.shape[2] for query, _ in sharing]
    parts = iter(shared_attention(sharing, scale).split(lengths, 2) if sharing else ())
    each = (next(parts) if view.shared else read_attention(query, view, scale) for query, view in asked)
    return torch.cat([*each], 2)


def shared_attention(asked: Sequence[tuple[Tensor, KVView]], scale: float) -> Tensor:
    """``read_attention`` of sequences with the same prefix, one after the other in the result: [1, Hq, n, D].

    The prefix's keys and values are read once for all of them. Then come each sequence's own tokens, side by side; the
    results are merged by their log-sum-exps.
    """
    shared = [view.shared for _, view in asked if view.shared is not None]
    prefix, kv_heads = shared[0].prefix, shared[0].keys.shape[1]
    queries = torch.cat([query[0] for query, _ in asked], 1)  # [Hq, n, D]
    rows = queries.unflatten(0, (kv_heads, -1))  # [Hkv, G, n, D]
    before = partial_attention(rows.flatten(1, 2)[None], prefix, None, scale)
    sizes = tuple((query.shape[2], view.length) for query, view in asked)
    width = max(view.keys.shape[2] for _, view in asked)
    places = [each.place for each in shared]
    own = KVView(rows_at(shared[0].keys, places, width), rows_at(shared[0].values, places, width), width)
    rows_of, causal = own_tokens(sizes, width, rows.shape[1], rows.dtype, rows.device)
    visible = with_trees(causal, asked, rows.shape[1])
    padded = rows.new_zeros(*rows.shape[:2], len(sizes) * most_of(sizes), rows.shape[3])
    padded[:, :, rows_of] = rows
    grouped = padded.unflatten(2, (len(sizes), -1)).permute(2, 0, 1, 3, 4).flatten(2, 3)  # [B, Hkv, G*N, D]
    after = partial_attention(grouped, own, visible, scale)
    mixed, summed = (
        each.unflatten(2, (rows.shape[1], -1)).movedim(0, 2).flatten(2, 3)[:, :, rows_of].flatten(1, 2)[None]
        for each in after
    )
    both, _ = merged(before[0].float(), before[1], mixed, summed)
    return both.to(rows.dtype).reshape(1, *queries.shape)


def most_of(sizes: Sequence[tuple[int, int]]) -> int:
    """The largest number of new tokens of any sequence, for sizes (n, length)."""
    return max(n for n, _ in sizes)


def rows_at(part: Tensor, places: Sequence[int], width: int) -> Tensor:
    """The first ``width`` slots of these sequences: part [sequences, Hkv, S, D] -> [B, Hkv, width, D]."""
    first, start = part[:, :, :width], places[0]
    if list(places) == list(range(start, start + len(places))):
        return first[start : start + len(places)]
    return first.index_select(0, torch.tensor(places, device=part.device))


@lru_cache(maxsize=8)
def own_tokens(
    sizes: tuple[tuple[int, int], ...], width: int, group: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where the new tokens of sequences stand that are padded to N each, and which slots they see.

    sizes: (n, length) of each sequence, whose last n of ``length`` slots are new. Returns which of the B*N rows hold a
    token (the last n of each sequence's N), and the causal mask of the rows [B, 1, G*N, width], to be added to the
    scores; rows without a token see the first slot.
    """
    most = most_of(sizes)
    rows = [i * most + at for i, (n, _) in enumerate(sizes) for at in range(most - n, most)]
    lengths = torch.tensor([length for _, length in sizes], device=device)
    ends = (lengths[:, None] - torch.arange(most - 1, -1, -1, device=device)).clamp_min(1)  # [B, N]
    hidden = torch.arange(width, device=device) >= ends[..., None]  # [B, N, width]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    return torch.tensor(rows, device=device), mask.repeat(1, group, 1)[:, None]


def with_trees(causal: Tensor, asked: Sequence[tuple[Tensor, KVView]], group: int) -> Tensor:
    """The mask of ``own_tokens`` where the tokens of some sequences are nodes of trees."""
    if all(view.visible is None for _, view in asked):
        return causal
    made = causal.view(len(asked), 1, group, -1, causal.shape[3]).clone()  # [B, 1, G, N, width]
    for own, (query, view) in zip(made, asked, strict=True):
        if view.visible is not None:
            first = view.length - view.visible.shape[1]
            tail = own[:, :, -query.shape[2] :, first : view.length]
            tail.zero_().masked_fill_(~view.visible, float("-inf"))
    return made.flatten(2, 3)


def causal_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """``read_attention`` for many tokens.

    No mask is stored, so that a GPU can use its flash kernel in 16 bits and its memory-efficient kernel in fp32. Only
    for the latter, which does not support groups, keys and values are repeated for the heads that share them.
    """
    _, heads, n, _ = query.shape
    keys, values = view.all_heads(query.dtype)
    if prefill_attention.serves(query, view.total):
        return prefill_attention.attention(query, keys, values, scale)
    if prefill_attention.flash_runs(query):
        return prefill_attention.masked(query, keys, values, scale)[0]
    keys, values = repeated(keys, heads), repeated(values, heads)
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler, which takes a second

    mask = causal_lower_right(n, view.total)
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)


def repeated(part: Tensor, heads: int) -> Tensor:
    """Repeat each KV head for the query heads that share it: [1, Hkv, S, D] -> [1, heads, S, D]."""
    group = heads // part.shape[1]
    return part[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)


def folded_attention(query: Tensor, view: KVView, scale: float) -> Tensor:
    """``read_attention`` for few tokens: the query heads that share a KV head become rows of one matrix.

    So keys and values are read once and never repeated. query: [1, Hq, n, D]; returns [1, Hq, n, D].
    """
    return softmax_attention(folded(query, view), view, tail_of(query, view), scale).reshape(query.shape)


def folded(query: Tensor, view: KVView) -> Tensor:
    """Queries [1, Hq, n, D] as rows of the KV heads that they read: [1, Hkv, G*n, D]."""
    return query.reshape(1, view.keys.shape[1], -1, query.shape[3])


def tail_of(query: Tensor, view: KVView) -> Tensor | None:
    """The mask of queries [1, Hq, n, D] that are the last n tokens of a view; None for one that sees all of it.

    Causal, unless the view says what is visible: then [G*n, t], of the last t keys.
    """
    _, heads, n, _ = query.shape
    if view.visible is not None:
        mask = torch.zeros(view.visible.shape, dtype=query.dtype, device=query.device)
        return mask.masked_fill_(~view.visible, float("-inf")).repeat(heads // view.keys.shape[1], 1)
    return causal_tail(n, heads // view.keys.shape[1], query.dtype, query.device) if n > 1 else None


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
    keys, values = view.all_heads(rows.dtype)
    mask = None if tail is None else pad(tail, (view.total - tail.shape[1], 0))
    for mass in view.masses:
        mass.add(weights_of(rows, keys, mask, scale).sum((0, 2)))
    return scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)


def weights_of(rows: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The weights of softmax attention: rows [1, Hkv, R, D], keys [1, Hkv, S, D] -> fp32 [1, Hkv, R, S]."""
    scores = (rows * scale @ keys.transpose(-1, -2)).float()
    return torch.softmax(scores if mask is None else scores + mask, -1)


def partial_attention(rows: Tensor, view: KVView, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention on a CPU over the slots of a view, and its log-sum-exps, to be merged with other keys'.

    rows: [B, Hkv, R, D], of as many sequences as the view has; mask: [B, 1, R, length], added to the scores. Returns
    [B, Hkv, R, D] and, in fp32, [B, Hkv, R].
    """
    keys, values = view.all_heads(rows.dtype)
    mixed, summed = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        rows, keys, values, attn_mask=mask, scale=scale
    )
    return mixed, summed


def attach(model: Any) -> None:
    """Have a model of transformers attend by ``attend``, as this program's own modules do anyway."""
    if hasattr(model, "set_attn_implementation"):
        register()
        model.set_attn_implementation(NAME)


def register() -> None:
    """Register ``attend`` with transformers under NAME, without a mask function."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *_, **__: None)
