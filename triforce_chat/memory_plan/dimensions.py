"""A model's dimensions, read off its configuration, and how many numbers its weights are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Which families have what, as transformers makes them; others pass over such a field.
ALWAYS_BIASED = ("qwen2",)  # queries, keys and values alone
BIASED_ATTENTION = ("llama", "qwen3")  # where config.json says so
BIASED_MLP = ("llama",)
HEAD_NORMS = ("qwen3",)  # on the queries and the keys of every head


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What decides how much memory a decoder of the supported families takes."""

    vocabulary: int
    hidden: int
    mlp: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    tied: bool  # the output matrix is the embedding
    qkv_bias: bool
    out_bias: bool  # of the attention
    mlp_bias: bool
    head_norms: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> Dimensions:
        """Out of the fields of a config.json."""
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
        """Numbers of the embedding."""
        return self.vocabulary * self.hidden

    def divides_among(self, gpus: int) -> bool:
        """Whether so many GPUs can share it: transformers' plans leave no remainder."""
        sizes = (self.query_heads, self.kv_heads, self.mlp, self.vocabulary)
        return all(size % gpus == 0 for size in sizes)

    def parameters(self, gpus: int = 1) -> int:
        """Numbers that each of so many GPUs holds: its share of all matrices, and all of the rest."""
        vocabulary = (1 if self.tied else 2) * (self.embedding // gpus)
        whole = self.hidden + self.layers * self._norms_and_biases
        return whole + vocabulary + self.layers * (self._linear // gpus)

    def prefill_flops(self, tokens: int, gpus: int = 1) -> float:
        """Operations of each GPU that reads so many tokens: a multiplication and an addition are two."""
        products = 2 * self._linear * tokens
        attention = 2 * 2 * self.queries * tokens * tokens / 2  # a token reads half of the others on average
        return self.layers * (products + attention) / gpus

    @property
    def _linear(self) -> int:
        """Numbers of one layer that tensor parallelism divides."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        biases = self.qkv_bias * (self.queries + 2 * self.keys) + self.mlp_bias * 2 * self.mlp
        return attention + 3 * self.hidden * self.mlp + biases

    @property
    def _norms_and_biases(self) -> int:
        """Numbers of one layer that every GPU holds: biases behind a sum over all of them are among these."""
        biases = (self.out_bias + self.mlp_bias) * self.hidden
        return 2 * self.hidden + self.head_norms * 2 * self.head_dim + biases
