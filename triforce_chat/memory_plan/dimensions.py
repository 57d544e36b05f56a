"""A model's dimensions, read from its configuration, and its number of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Families whose implementation in transformers has biases and norms; the others ignore these fields.
ALWAYS_BIASED = ("qwen2",)  # only queries, keys and values
BIASED_ATTENTION = ("llama", "qwen3")  # if config.json says so
BIASED_MLP = ("llama",)
HEAD_NORMS = ("qwen3",)  # on the queries and the keys of every head


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The dimensions that determine the memory of a decoder of the supported families."""

    vocabulary: int
    hidden: int
    mlp: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    tied: bool  # output matrix and embedding are one matrix
    qkv_bias: bool
    out_bias: bool  # of attention's output projection
    mlp_bias: bool
    head_norms: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> Dimensions:
        """Dimensions from the fields of a config.json."""
        family, heads = config["model_type"], config["num_attention_heads"]
        bias = family in BIASED_ATTENTION and bool(config.get("attention_bias"))
        return Dimensions(
            vocabulary=config["vocab_size"],
            hidden=config["hidden_size"],
            mlp=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            query_heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            tied=bool(config.get("tie_word_embeddings")),
            qkv_bias=bias or family in ALWAYS_BIASED,
            out_bias=bias,
            mlp_bias=family in BIASED_MLP and bool(config.get("mlp_bias")),
            head_norms=family in HEAD_NORMS,
        )

    @property
    def queries(self) -> int:
        """Width of one token's queries in a layer."""
        return self.query_heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of one token's keys in a layer."""
        return self.kv_heads * self.head_dim

    @property
    def embedding(self) -> int:
        """Parameters of the embedding."""
        return self.vocabulary * self.hidden

    def divides_among(self, gpus: int) -> bool:
        """True if tensor parallelism over this many GPUs is possible; transformers requires even shares."""
        sizes = (self.query_heads, self.kv_heads, self.mlp, self.vocabulary)
        return all(size % gpus == 0 for size in sizes)

    def parameters(self, gpus: int = 1) -> int:
        """Parameters on each of ``gpus`` GPUs: its share of the matrices, and all norms and undivided biases."""
        vocabulary = (1 if self.tied else 2) * (self.embedding // gpus)
        whole = self.hidden + self.layers * self._norms_and_biases
        return whole + vocabulary + self.layers * (self._linear // gpus)

    @property
    def matrices(self) -> int:
        """Parameters of one layer's matrices."""
        return 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.mlp

    def prefill_flops(self, tokens: int, gpus: int = 1) -> float:
        """Floating-point operations of each GPU in a prefill; a multiply-add counts as two."""
        products = 2 * self._linear * tokens
        attention = 2 * 2 * self.queries * tokens * tokens / 2  # on average a token attends to half of them
        return self.layers * (products + attention) / gpus

    @property
    def _linear(self) -> int:
        """Parameters of one layer that tensor parallelism divides."""
        biases = self.qkv_bias * (self.queries + 2 * self.keys) + self.mlp_bias * 2 * self.mlp
        return self.matrices + biases

    @property
    def _norms_and_biases(self) -> int:
        """Parameters of one layer that every GPU holds, including biases added after a sum over all GPUs."""
        biases = (self.out_bias + self.mlp_bias) * self.hidden
        return 2 * self.hidden + self.head_norms * 2 * self.head_dim + biases
