"""Checks that a model's architecture is supported, and explains why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triforce_chat.errors import ModelError

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")

RECURRENT = "is recurrent: it keeps a running state, not the keys and values of every token"
ENCODER = "is an encoder: it does not continue a text"
ENCODER_DECODER = "is an encoder-decoder; this program runs decoder-only models"
SLIDING = "uses sliding-window attention: its layers do not see the whole text"
LATENT = "uses latent attention (MLA): its cache does not hold plain keys and values"
NO_ROPE = "does not use rotary position embeddings"

_FAMILIES = {
    RECURRENT: (
        "mamba mamba2 falcon_mamba rwkv rwkv7 recurrent_gemma jamba zamba zamba2 bamba nemotron_h "
        "granitemoehybrid qwen3_next qwen3_5 qwen3_5_text falcon_h1 lfm2 lfm2_moe xlstm minimax plamo2 "
        "kimi_linear retnet hyena"
    ),
    ENCODER: (
        "bert roberta distilbert electra deberta deberta-v2 albert xlm-roberta camembert mpnet modernbert "
        "longformer big_bird ernie funnel"
    ),
    ENCODER_DECODER: (
        "t5 mt5 umt5 longt5 switch_transformers bart mbart pegasus pegasus_x marian m2m_100 led whisper "
        "blenderbot blenderbot-small prophetnet t5gemma"
    ),
    SLIDING: (
        "gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text gpt_oss cohere2 exaone4 olmo3 "
        "ministral gpt_neo llama4 llama4_text"
    ),
    LATENT: "deepseek_v2 deepseek_v3 deepseek_v32 minicpm3 longcat_flash kimi_k2 mistral4 glm4_moe_lite",
    NO_ROPE: "gpt2 gpt_bigcode openai-gpt opt bloom mpt biogpt xglm ctrl codegen2",
}
REASONS = {model_type: reason for reason, names in _FAMILIES.items() for model_type in names.split()}

SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"),
    "max_position_embeddings",
)
LARGEST_SIZE = 2**31

# Their frequencies change as the text grows, which invalidates cached keys.
SHIFTING_ROPE = ("dynamic", "longrope")


def check_declared(name: str, config: Mapping[str, Any]) -> None:
    """Check config.json itself, before transformers or any weight is touched.

    Raises ModelError with the reason if the model is not supported.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{name}: config.json has no model_type, so this is not a transformers model")
    if model_type not in SUPPORTED:
        raise _refusal(name, model_type, _reason(model_type, config))
    if config.get("transformers_weights"):  # transformers would load that file, even a pickle
        raise ModelError(
            f"{name}: config.json names other weights (transformers_weights), which are not read"
        )
    if "quantization_config" in config:
        quantized = config["quantization_config"]
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        method = method if isinstance(method, str) else "an unnamed method"
        raise ModelError(
            f"{name}: weights quantized with {method} are not supported; use plain safetensors or GGUF"
        )


def check_config(name: str, config: Any) -> None:
    """Check a config with its defaults filled in: every layer must attend to the whole text.

    Raises ModelError with the reason if the model is not supported.
    """
    if config.model_type not in SUPPORTED:
        raise _refusal(name, config.model_type, _reason(config.model_type, {}))
    check_sizes(name, config)
    if _uses_sliding_window(config):
        raise _refusal(name, config.model_type, SLIDING)
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope in SHIFTING_ROPE:
        reason = f"with {rope!r} RoPE scaling invalidates cached keys as the text grows"
        raise _refusal(name, config.model_type, reason)


def check_sizes(name: str, config: Any) -> None:
    """Check that the sizes from which everything is allocated are such. Raises ModelError."""
    for size in SIZES:
        value = getattr(config, size, None)
        if type(value) is not int or not 1 <= value <= LARGEST_SIZE:
            raise ModelError(
                f"{name}: {size} is {value!r:.40}, not a whole number from 1 to {LARGEST_SIZE:,}"
            )


def _uses_sliding_window(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    window = getattr(config, "sliding_window", None)
    return window is not None and window < config.max_position_embeddings


def _reason(model_type: str, config: Mapping[str, Any]) -> str:
    if model_type in REASONS:
        return REASONS[model_type]
    if config.get("is_encoder_decoder"):
        return ENCODER_DECODER
    if config.get("kv_lora_rank"):
        return LATENT
    return "is untested"


def _refusal(name: str, model_type: str, reason: str) -> ModelError:
    return ModelError(f"{name}: architecture {model_type!r} {reason}; supported: {', '.join(SUPPORTED)}")
