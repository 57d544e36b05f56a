"""The fields of published config.json files that determine how much memory a model takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Fields = Mapping[str, Any]


def _llama(
    hidden: int, layers: int, heads: tuple[int, int], mlp: int, vocabulary: int, **more: Any
) -> Fields:
    """A Llama with ``heads`` (query heads, KV heads); ``more`` are further fields."""
    return MappingProxyType(
        {
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1],
            "head_dim": hidden // heads[0],
            "intermediate_size": mlp,
            "vocab_size": vocabulary,
            "tie_word_embeddings": False,
            **more,
        }
    )


_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}

SMOLLM2_135M = _llama(576, 30, (9, 3), 1536, 49_152, tie_word_embeddings=True)
LLAMA_2_7B = _llama(4096, 32, (32, 32), 11_008, 32_000)
LLAMA_2_13B = _llama(5120, 40, (40, 40), 13_824, 32_000)
LLAMA_2_70B = _llama(8192, 80, (64, 8), 28_672, 32_000)
CODELLAMA_34B = _llama(8192, 48, (64, 8), 22_016, 32_000)
YARN_LLAMA_2_7B = MappingProxyType({**LLAMA_2_7B, "rope_parameters": _YARN})
YARN_LLAMA_2_13B = MappingProxyType({**LLAMA_2_13B, "rope_parameters": _YARN})
LLAMA_68M = _llama(768, 2, (12, 12), 3072, 32_000)
LLAMA_3_1_8B = _llama(4096, 32, (32, 8), 14_336, 128_256)
LLAMA_3_2_1B = _llama(2048, 16, (32, 8), 8192, 128_256, tie_word_embeddings=True)
QWEN2_5_7B = _llama(3584, 28, (28, 4), 18_944, 152_064, model_type="qwen2")
QWEN2_5_0_5B = _llama(896, 24, (14, 2), 4864, 151_936, model_type="qwen2", tie_word_embeddings=True)
# As in the GGUF files, which hold the embedding and the output matrix apart, quantized differently.
QWEN2_5_CODER_0_5B = _llama(896, 24, (14, 2), 4864, 151_936, model_type="qwen2")
QWEN2_5_CODER_1_5B = _llama(1536, 28, (12, 2), 8960, 151_936, model_type="qwen2")
QWEN3_8B = _llama(4096, 36, (32, 8), 12_288, 151_936, model_type="qwen3")
QWEN3_0_6B = _llama(
    1024, 28, (16, 8), 3072, 151_936, model_type="qwen3", head_dim=128, tie_word_embeddings=True
)
MISTRAL_7B = _llama(4096, 32, (32, 8), 14_336, 32_768, model_type="mistral")
