"""The kernels as plain arithmetic: Triton's interpreter is too slow for whole answers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.chunk_mass import chunk_mass
from triforce_chat.engine.cache.quantization import GROUP, QuantizedTokens, narrowed
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.forward.attention import folded_attention
from triforce_chat.engine.kernels.quantized_weight import RUN
from triforce_chat.engine.sampling.ops import Uniforms, imposed, warp
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.tree import WORD


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def silu_mul(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    factor: float,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    places: Tensor | None = None,
) -> None:
    angles = (positions[:, None].float() * frequencies).repeat(1, 2)
    cos, sin = ((turn(angles) * factor).to(q.dtype) for turn in (torch.cos, torch.sin))
    turned_q, turned_k = apply_rotary_pos_emb(q, k, cos, sin)
    q.copy_(turned_q)
    turned_k, v = (narrowed(each, keys.dtype).to(keys.dtype) for each in (turned_k, v))
    if places is not None:
        used = at >= 0
        keys[places[used], :, at[used]], values[places[used], :, at[used]] = turned_k[used], v[used]
        return
    slots = slice(int(at), int(at) + len(q))
    keys[:, slots], values[:, slots] = turned_k.transpose(0, 1), v.transpose(0, 1)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    scale: float,
    most: int,
    listed: Tensor | None = None,
    weighing: kernels.Weighing | None = None,
    tree: kernels.Ancestors | None = None,
) -> Tensor:
    end = int(at) + len(q)
    assert end <= most
    if listed is not None:
        picked = torch.nn.functional.pad(listed[:, :end].long(), (0, rounded_up(end) - end))
        heads = torch.arange(len(keys))[:, None]
        keys, values = keys[heads, picked], values[heads, picked]
    if weighing is not None:
        add(weighing, q, keys[:, :end], scale)
    width = rounded_up(end)
    view = KVView(keys[None, :, :width], values[None, :, :width], end)
    if tree is not None:
        origin = int(tree.origin)
        node = torch.arange(end - origin)
        flags = tree.masks[:, node // WORD] >> node % WORD & 1 == 1
        view = view._replace(visible=torch.cat([torch.ones(len(q), 1, dtype=torch.bool), flags], 1))
    return folded_attention(q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)


def decode_quantized(
    q: Tensor,
    before: tuple[Tensor, Tensor, Tensor, Tensor],
    quantized: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    scale: float,
) -> Tensor:
    count, end = int(quantized), int(at) + len(q)
    assert count % GROUP == 0
    width = min(keys.shape[1], rounded_up(end))
    own = KVView(keys[None, :, :width], values[None, :, :width], end)
    view = own._replace(before=QuantizedTokens(*before, count)) if count else own
    return folded_attention(q.transpose(0, 1)[None], view, scale)[0].transpose(0, 1)


def decode_grouped(
    q: Tensor,
    before: tuple[Tensor, Tensor, Tensor, Tensor],
    at: Tensor,
    keys: Tensor,
    values: Tensor,
    own: kernels.Sequences,
    scale: float,
) -> Tensor:
    out = torch.full_like(q, float("nan"))
    for i, (start, end) in enumerate(pairwise(own.starts.tolist())):
        if start == end:
            continue
        newest = keys[own.places[i]], values[own.places[i]]
        count = (int(at) + start) // GROUP * GROUP
        out[start:end] = decode_quantized(
            q[start:end], before, torch.tensor(count), *newest, own.at[i], scale
        )
    return out


def quantize_full(
    keys: Tensor, values: Tensor, before: tuple[Tensor, Tensor, Tensor, Tensor], at: Tensor, n: int
) -> None:
    group = int(at) // GROUP
    assert n < GROUP
    if (int(at) + n) // GROUP > group:
        place = group % len(keys)
        QuantizedTokens(*before, 0).write(group * GROUP, keys[place], values[place])


def add(to: kernels.Weighing, q: Tensor, keys: Tensor, scale: float) -> None:
    count = int(to.counted)
    assert 0 <= count <= len(q)
    to.total.mul_(0.5 ** (count / to.half_life))
    if count:
        keys = keys[:, : keys.shape[1] - (len(q) - count)]
        paid = chunk_mass(q[:count].transpose(0, 1), keys, to.chunk, scale).sum((1, 2))
        to.total[:, : paid.shape[1]] += paid


def attend_together(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sequences: kernels.Sequences,
    scale: float,
    most: int,
    prefix: kernels.Prefix | None = None,
    tree: kernels.Ancestors | None = None,
) -> Tensor:
    out = torch.full_like(q, float("nan"))
    starts = sequences.starts.tolist()
    for i, (start, end) in enumerate(pairwise(starts)):
        assert end - start <= sequences.most
        if start == end:
            continue
        place, at = int(sequences.places[i]), int(sequences.at[i])
        assert at + end - start <= most
        parts, shared = (keys[place], values[place]), 0
        if prefix is not None:
            length = int(prefix.length)
            before = prefix.keys[:, :length], prefix.values[:, :length]
            parts = torch.cat([before[0], parts[0]], 1), torch.cat([before[1], parts[1]], 1)
            at, shared = at + length, length
        own = None
        if tree is not None:
            own = kernels.Ancestors(tree.masks[start:end], tree.origin[i] + shared)
        out[start:end] = decode_attention(q[start:end], *parts, torch.tensor(at), scale, 1 << 30, tree=own)
    return out


def quantized_linear(
    x: Tensor,
    weight: kernels.QuantizedWeight,
    add: Tensor | None = None,
    norm: kernels.Norm | None = None,
    gated: bool = False,
) -> Tensor:
    x = x if norm is None else rms_norm(x, *norm)
    if weight.whole:
        out = x @ weight.data.to(x.dtype).t() * weight.scale[:, 0]
    else:
        out = (x.float() @ numbers_of(weight).t()).to(x.dtype)
    out = silu_mul(out) if gated else out
    return out if add is None else add + out


def expand(weight: kernels.QuantizedWeight, out: Tensor) -> None:
    out.copy_(numbers_of(weight))


def numbers_of(weight: kernels.QuantizedWeight) -> Tensor:
    """What a grouped weight stands for: fp32 [O, I]."""
    codes, data = weight.codes, weight.data
    if codes.parts == 2:
        runs = data.view(len(data), -1, RUN)
        data = torch.stack([runs & 15, runs >> 4], 2).flatten(1)
    groups = data.float().unflatten(1, (-1, weight.group))
    if weight.sided:
        scale, least = weight.scale.view(torch.float16).float().view(len(data), -1, 2, 1).unbind(2)
        numbers: Tensor = groups * scale + least
    else:
        numbers = (groups - codes.zero) * weight.scale[..., None]
    return numbers.flatten(1)


def draw_token(logits: Tensor, how: kernels.Drawing, step: int, tokens: Tensor, probs: Tensor) -> None:
    scores = logits.float()
    if how.since is not None:
        damped = torch.where(scores > 0, scores / how.penalty, scores * how.penalty)
        scores = torch.where(how.since <= step, damped, scores)
    law, _ = warp(scores, Sampling(how.temperature))
    last = how.uniforms[:, step : step + 1]
    drawn = law.argmax(-1) if how.temperature == 0 else Uniforms(law[:, :0], last).draw(law)
    if how.forced is not None:
        drawn = imposed(how.forced[:, step], drawn)
    tokens[:, step], probs[:, step] = drawn, law
    if how.since is not None:
        following = torch.full_like(drawn[:, None], step + 1, dtype=how.since.dtype)
        how.since.scatter_reduce_(1, drawn[:, None], following, "amin")


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (
        rms_norm,
        silu_mul,
        rotate_and_store,
        decode_attention,
        decode_grouped,
        decode_quantized,
        quantize_full,
        attend_together,
        quantized_linear,
        expand,
        draw_token,
    ):
        monkeypatch.setattr(kernels, function.__name__, function)
