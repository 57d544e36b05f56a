"""Runs transformers' own forward of one model under any cache."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from triforce_chat.engine import attention, onednn
from triforce_chat.engine.cache.slab import KVCache, Shape


class Forward(Protocol):
    """A model as the levels see it."""

    vocabulary: int
    device: torch.device

    def __call__(self, ids: Tensor, cache: KVCache, rows: int) -> Tensor:
        """Feed ids [n] behind what the cache holds; logits [rows, V] of the last ``rows`` tokens."""
        ...


class Runner:
    """One model's weights; the cache is an argument, so the target serves two levels.

    Takes the model over: it gets this program's attention function and, on a CPU, packed weights.
    """

    def __init__(self, model: Any) -> None:
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self.model = model
        self.vocabulary: int = model.config.vocab_size
        self.device: torch.device = model.device
        self.shape = Shape.of(model.config, model.dtype, model.device)
        if onednn.available(self.device, self.shape.dtype):
            onednn.pack_linears(model)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, cache: KVCache, rows: int) -> Tensor:
        n = len(ids)
        hidden = self._hidden(ids, cache)
        logits: Tensor = self.model.lm_head(hidden[0, n - rows :])
        cache.advance(n)
        return logits

    @torch.inference_mode()
    def prefill(self, ids: Tensor, cache: KVCache) -> None:
        """Feed ids [n] for their keys and values only."""
        self._hidden(ids, cache)
        cache.advance(len(ids))

    def _hidden(self, ids: Tensor, cache: KVCache) -> Tensor:
        positions = torch.arange(cache.position, cache.position + len(ids), device=self.device)
        out = self.model.base_model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, kv=cache
        )
        hidden: Tensor = out.last_hidden_state
        return hidden
