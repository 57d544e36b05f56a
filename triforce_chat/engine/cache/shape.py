"""The dimensions of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from triforce_chat.engine.cache.quantization import BITS, bytes_of


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of one model's keys and values, or of one rank's share of them.

    ``kv``: the format that they are kept in, if that is not the model's dtype: another one, or ``torch.int8`` or
    ``torch.int4`` for quantized ones.
    """

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    kv: torch.dtype | None = None

    @staticmethod
    def of(
        config: Any,
        dtype: torch.dtype,
        device: torch.device,
        ranks: int = 1,
        kv: torch.dtype | None = None,
    ) -> Shape:
        """Read from a transformers configuration; the heads are split evenly between ``ranks``."""
        heads = config.num_attention_heads
        return Shape(
            layers=config.num_hidden_layers,
            query_heads=heads // ranks,
            kv_heads=(getattr(config, "num_key_value_heads", None) or heads) // ranks,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype,
            device=device,
            kv=kv,
        )

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def kv_format(self) -> torch.dtype:
        """The format of keys and values in the full cache."""
        return self.kv or self.dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        """The dtype of unquantized keys and values: 16 bits for those kept beside quantized ones."""
        if self.kv_format in BITS:
            return self.dtype if self.dtype.itemsize == 2 else torch.float16
        return self.kv_format

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers of the full cache."""
        if self.kv_format in BITS:
            return self.layers * self.kv_heads * bytes_of(1, self.head_dim, BITS[self.kv_format])
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_dtype.itemsize
