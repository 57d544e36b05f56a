"""Runs transformers' own forward of one model under any cache."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

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
    ``vocabulary`` is the width that its logits shall have, a target's for its draft: families pad the same
    tokens to different widths. None keeps the model's own.
    """

    def __init__(self, model: Any, vocabulary: int | None = None) -> None:
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self.model = model
        self.known: int = model.config.vocab_size  # ids from here on have no embedding
        self.vocabulary = vocabulary or self.known
        self.device: torch.device = model.device
        ranks: int = model.tp_size or 1
        self.shape = Shape.of(model.config, model.dtype, model.device, ranks)
        # transformers reads its shards of a weight in the forward; there is no dense one to pack.
        if ranks == 1 and onednn.available(self.device, self.shape.dtype):
            onednn.pack_linears(model)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, cache: KVCache, rows: int) -> Tensor:
        n = len(ids)
        hidden = self._hidden(ids, cache)
        logits: Tensor = self.model.lm_head(hidden[0, n - rows :])
        cache.advance(n)
        return logits if self.known == self.vocabulary else fitted(logits, self.vocabulary)

    @torch.inference_mode()
    def prefill(self, ids: Tensor, cache: KVCache) -> None:
        """Feed ids [n] for their keys and values only."""
        self._hidden(ids, cache)
        cache.advance(len(ids))

    def _hidden(self, ids: Tensor, cache: KVCache) -> Tensor:
        if self.known < self.vocabulary:  # padding that a target drew has no text: any token will do
            ids = ids.clamp_max(self.known - 1)
        positions = torch.arange(cache.position, cache.position + len(ids), device=self.device)
        out = self.model.base_model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, kv=cache
        )
        hidden: Tensor = out.last_hidden_state
        return hidden


def fitted(logits: Tensor, width: int) -> Tensor:
    """Cut or pad logits [n, V] to [n, width]; what is padded has no probability."""
    missing = max(0, width - logits.shape[1])
    return pad(logits[:, :width], (0, missing), value=float("-inf"))
