"""Thousands of continuations at once: many sequences share the keys and values of a few long prefixes.

Attention over a prefix and over a sequence's own tokens is computed apart and joined by the log-sum-exp
(Hydragen, arXiv 2402.05099), so a document is read once for all questions about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NAME = "triforce-shared"
LOOK = 16  # steps between two looks at whether all sequences have ended
PREFIX_TOKENS = 65_536  # encoded at a time


@dataclass(frozen=True, slots=True)
class Sampled:
    """What B sequences became."""

    tokens: Tensor  # [B, n]; meaningless after a sequence's length
    lengths: Tensor  # [B], tokens up to and including the end token
    hidden: Tensor  # [B, n, d], the final hidden states that predicted the tokens


@dataclass(frozen=True, slots=True)
class SequenceSampling:
    """How each of B sequences is sampled."""

    temperature: Tensor  # [B]; 0 is greedy
    penalty: Tensor  # [B]; over the tokens generated so far, 1 is none


class SharedKV:
    """Keys and values of G prefixes of equal length P and of B sequences, B/G after each prefix."""

    def __init__(self, config: Any, model: Any, groups: int, prefix: int, sequences: int, room: int) -> None:
        heads, dim = config.num_key_value_heads, getattr(config, "head_dim", None)
        dim = dim or config.hidden_size // config.num_attention_heads
        layers = config.num_hidden_layers

        def slab(rows: int, slots: int) -> Tensor:
            return torch.zeros(layers, rows, heads, slots, dim, dtype=model.dtype, device=model.device)

        self.prefix_keys, self.prefix_values = slab(groups, prefix), slab(groups, prefix)
        self.keys, self.values = slab(sequences, room), slab(sequences, room)
        self.valid = torch.zeros(sequences, room, dtype=torch.bool, device=model.device)
        self.rows: slice | None = None  # the prefixes being encoded; None: the sequences go on
        self.slots = torch.zeros(0, dtype=torch.long, device=model.device)  # where new tokens go

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q [b, Hq, n, D], k and v [b, Hkv, n, D] -> [b, Hq, n, D]."""
        if self.rows is not None:
            self.prefix_keys[layer, self.rows] = k
            self.prefix_values[layer, self.rows] = v
            return nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=True
            )
        self.keys[layer].index_copy_(2, self.slots, k)
        self.values[layer].index_copy_(2, self.slots, v)
        far, far_mass = self._over_prefix(layer, q, scale)
        near, near_mass = self._over_own(layer, q, scale)
        share = torch.sigmoid(near_mass - far_mass)[..., None]  # of the attention, for what is near
        return torch.lerp(far.float(), near.float(), share).to(q.dtype)

    def _over_prefix(self, layer: int, q: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        keys, values = self.prefix_keys[layer], self.prefix_values[layer]
        groups, heads = keys.shape[:2]
        b, dim = q.shape[0], q.shape[3]
        rows = q.reshape(groups, b // groups, heads, -1, dim).transpose(1, 2)  # [G, Hkv, B/G, g*n, D]
        shape = rows.shape
        out, mass = with_mass(rows.reshape(groups, heads, -1, dim), keys, values, scale)
        out = out.reshape(shape).transpose(1, 2).reshape(q.shape)
        return out, mass.reshape(shape[:-1]).transpose(1, 2).reshape(q.shape[:-1])

    def _over_own(self, layer: int, q: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[layer], self.values[layer]
        b, heads, room, dim = keys.shape
        n = q.shape[2]
        rows = q.reshape(b, heads, -1, dim)  # [B, Hkv, g*n, D]
        scores = (rows @ keys.transpose(-1, -2)).float().mul_(scale).view(b, heads, -1, n, room)
        seen = self.valid[:, None, None, None] & (torch.arange(room, device=q.device) <= self.slots[:, None])
        scores.masked_fill_(~seen, float("-inf"))
        mass = scores.logsumexp(-1)
        weights = (scores - mass[..., None]).exp().to(q.dtype).view(b, heads, -1, room)
        return (weights @ values).view(q.shape), mass.reshape(q.shape[:-1])


def with_mass(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of all rows to all keys, with the log of the sum of exponentials: [.., n, D], [.., n] in fp32."""
    if q.is_cuda and q.dtype != torch.float32:
        out, mass, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)
        return out, mass.float()
    scores = (q @ k.transpose(-1, -2)).float() * scale
    mass = scores.logsumexp(-1)
    return ((scores - mass[..., None]).exp().to(q.dtype) @ v), mass


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; the cache comes as ``kv=``."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = kwargs["kv"].attend(module.layer_idx, query, key, value, scale)
    return out.transpose(1, 2), None


class Generator:
    """Samples from a transformers causal language model on the model's device."""

    def __init__(self, model: Any, ends: Iterable[int]) -> None:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, lambda *_, **__: None)
        self.model = model
        self.ends = torch.tensor(sorted(ends), device=model.device)

    @torch.no_grad()
    def run(
        self, prefixes: Tensor, suffixes: Sequence[Sequence[int]], sampling: SequenceSampling, tokens: int
    ) -> Sampled:
        """Continue every suffix by up to ``tokens`` tokens.

        prefixes: [G, P]; suffixes: B lists of at least one token, the first B/G after prefix 0 and so on.
        """
        usual = self.model.config._attn_implementation
        self.model.set_attn_implementation(NAME)
        try:
            return self._run(prefixes, suffixes, sampling, tokens)
        finally:
            self.model.set_attn_implementation(usual)

    def _run(
        self, prefixes: Tensor, suffixes: Sequence[Sequence[int]], sampling: SequenceSampling, tokens: int
    ) -> Sampled:
        (groups, length), b = prefixes.shape, len(suffixes)
        widest = max(map(len, suffixes))
        kv = SharedKV(self.model.config, self.model, groups, length, b, widest + tokens)
        self._encode(prefixes, kv)
        hidden, lengths = self._ask(suffixes, length, kv)
        batch = Batch(self, kv, sampling, length + lengths, widest, tokens)
        batch.take(hidden)
        return batch.finish()

    def _encode(self, prefixes: Tensor, kv: SharedKV) -> None:
        at_once = max(1, PREFIX_TOKENS // prefixes.shape[1])
        for first in range(0, len(prefixes), at_once):
            kv.rows = slice(first, min(first + at_once, len(prefixes)))
            self.forward(prefixes[kv.rows], torch.arange(prefixes.shape[1], device=prefixes.device)[None], kv)
        kv.rows = None

    def _ask(self, suffixes: Sequence[Sequence[int]], start: int, kv: SharedKV) -> tuple[Tensor, Tensor]:
        """Feed the suffixes: the last hidden state of each [B, d], and their lengths [B]."""
        device, widest = self.model.device, max(map(len, suffixes))
        ids = torch.tensor([[*suffix, *[0] * (widest - len(suffix))] for suffix in suffixes], device=device)
        lengths = torch.tensor([len(suffix) for suffix in suffixes], device=device)
        kv.slots = torch.arange(widest, device=device)
        kv.valid[:, :widest] = kv.slots < lengths[:, None]
        hidden = self.forward(ids, start + kv.slots[None], kv)
        return hidden[torch.arange(len(ids), device=device), lengths - 1], lengths

    def forward(self, ids: Tensor, positions: Tensor, kv: SharedKV) -> Tensor:
        """Final hidden states [b, n, d]."""
        out = self.model.base_model(input_ids=ids, position_ids=positions, use_cache=False, kv=kv)
        hidden: Tensor = out.last_hidden_state
        return hidden


class Batch:
    """Decoding of B sequences in lockstep; every tensor keeps its place, so a step can be a CUDA graph."""

    def __init__(
        self,
        generator: Generator,
        kv: SharedKV,
        sampling: SequenceSampling,
        positions: Tensor,
        slot: int,
        tokens: int,
    ) -> None:
        model, b, device = generator.model, len(positions), positions.device
        self.generator, self.kv, self.sampling = generator, kv, sampling
        self.positions = positions.clone()  # of the next token, [B]
        kv.slots = torch.tensor([slot], device=device)
        self.tokens = torch.zeros(b, tokens, dtype=torch.long, device=device)
        self.hidden = torch.zeros(b, tokens, model.config.hidden_size, dtype=model.dtype, device=device)
        self.seen = torch.zeros(b, model.config.vocab_size, dtype=torch.bool, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)  # tokens made, the same for all
        self.lengths = torch.zeros(b, dtype=torch.long, device=device)
        self.ids = torch.zeros(b, 1, dtype=torch.long, device=device)

    def take(self, hidden: Tensor) -> None:
        """Draw the token that follows each final hidden state [B, d]."""
        logits = self.generator.model.lm_head(hidden).float()
        penalty = self.sampling.penalty[:, None]
        damped = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(self.seen, damped, logits)
        temperature = self.sampling.temperature[:, None]
        noise = -torch.empty_like(logits).exponential_().log()  # Gumbel: the largest sum is a sample
        self.ids.copy_((logits + temperature * noise).argmax(-1, keepdim=True))
        ended = torch.isin(self.tokens, self.generator.ends)
        ended &= torch.arange(self.tokens.shape[1], device=hidden.device) < self.count
        self.lengths += ~ended.any(-1)
        self.tokens.index_copy_(1, self.count, self.ids)
        self.hidden.index_copy_(1, self.count, hidden[:, None])
        self.seen.scatter_(1, self.ids, True)
        self.count += 1

    def step(self) -> None:
        """Feed the drawn tokens and draw the next."""
        kv = self.kv
        kv.valid.index_fill_(1, kv.slots, True)
        hidden = self.generator.forward(self.ids, self.positions[:, None], kv)
        self.positions += 1
        kv.slots += 1
        self.take(hidden[:, -1])

    def finish(self) -> Sampled:
        step = self.step
        for made in range(1, self.tokens.shape[1]):
            if made % LOOK == 0 and bool((self.lengths < made).all()):
                break
            if made == 3:
                step = captured(self.step, self.tokens.device)
            step()
        return Sampled(self.tokens, self.lengths, self.hidden)


def captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a CUDA graph, on a CPU itself."""
    if device.type != "cuda":
        return step
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
