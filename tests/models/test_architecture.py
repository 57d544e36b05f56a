"""Models that cannot be decoded here are refused by name and reason, from their config alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from triforce_chat.errors import ModelError
from triforce_chat.models.architecture import SUPPORTED, check_config, check_declared
from triforce_chat.models.load import load_model


def config(model_type: str, **changes: Any) -> Any:
    return AutoConfig.for_model(model_type, **{"max_position_embeddings": 128, **changes})


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", "is recurrent"),
        ("rwkv", "is recurrent"),
        ("jamba", "is recurrent"),
        ("recurrent_gemma", "is recurrent"),
        ("bert", "is an encoder"),
        ("t5", "is an encoder-decoder"),
        ("gemma2", "sliding-window"),
        ("gemma3_text", "sliding-window"),
        ("deepseek_v2", "latent attention"),
        ("deepseek_v3", "latent attention"),
        ("gpt2", "rotary"),
        ("opt", "rotary"),
        ("bloom", "rotary"),
        ("brand_new", "is untested"),
    ],
)
def test_refusals_name_the_architecture_and_the_reason(model_type: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"'{model_type}' .*{reason}.*supported: llama") as caught:
        check_declared("some/model", {"model_type": model_type})
    assert str(caught.value).startswith("some/model: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"model_type": "new", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "new", "kv_lora_rank": 512}, "latent attention"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "quantized with gptq"),
        ({"model_type": None}, "no model_type"),
        ({}, "no model_type"),
    ],
)
def test_what_a_config_declares_is_understood(declared: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_declared("m", declared)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("mistral", {"sliding_window": 64}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}),
        ("qwen2", {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_a_sliding_window_in_use_is_refused(model_type: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"'{model_type}' uses sliding-window attention"):
        check_config("m", config(model_type, **changes))


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rope_that_shifts_with_the_length_is_refused(rope: str) -> None:
    llama = config("llama")
    llama.rope_parameters = {"rope_type": rope, "rope_theta": 10_000.0, "factor": 2.0}
    with pytest.raises(ModelError, match=rope):
        check_config("m", llama)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        *((model_type, {}) for model_type in SUPPORTED if model_type != "mistral"),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 128}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
    ],
)
def test_full_attention_passes(model_type: str, changes: dict[str, Any]) -> None:
    check_declared("m", {"model_type": model_type})
    check_config("m", config(model_type, **changes))


@pytest.mark.parametrize("model_type", ["mamba", "t5", "gemma2", "brand_new"])
def test_a_folder_is_refused_before_its_weights_are_read(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    (tmp_path / "model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(ModelError, match=f"architecture '{model_type}'"):
        load_model(str(tmp_path), attention="sdpa")
