"""A kept configuration has the fields that transformers gives it, and becomes transformers' own again."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import write_gguf

from triforce_chat.engine.forward.frequencies import KINDS, frequencies_of
from triforce_chat.models.configuration import Configuration, for_transformers
from triforce_chat.models.load import load_config
from triforce_chat.models.presets import PRESETS, Preset
from triforce_chat.models.registry import ModelSource, resolve

OWN = ("_name_or_path", "_model_name_or_path", "transformers_version", "model_type")  # of a class or a file
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
PUBLISHED = [preset for preset in PRESETS if preset.sizes]


def fields(config: Any) -> dict[str, Any]:
    """As a config.json has them."""
    found = {name: value for name, value in config.to_dict().items() if name not in OWN}
    made: dict[str, Any] = json.loads(json.dumps(found))
    return made


def theirs_and_own(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder), load_config(ModelSource("m", folder, None, None))


@pytest.mark.parametrize("preset", PUBLISHED, ids=lambda preset: preset.name)
def test_of_every_preset(tmp_path: Path, preset: Preset) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"sliding_window": None, **preset.sizes}))
    theirs, own = theirs_and_own(tmp_path)
    assert isinstance(own, Configuration)
    assert fields(own) == fields(theirs)
    assert own.model_type == theirs.model_type
    again = for_transformers(own)
    assert type(again) is type(theirs)
    assert fields(again) == fields(theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults(tmp_path: Path, family: str) -> None:
    fewest = {"model_type": family, "use_sliding_window": False, "sliding_window": None}
    (tmp_path / "config.json").write_text(json.dumps(fewest))
    theirs, own = theirs_and_own(tmp_path)
    assert fields(own) == fields(theirs)
    assert fields(for_transformers(own)) == fields(theirs)


def test_of_a_gguf_file(tmp_path: Path) -> None:
    from transformers import AutoConfig

    file = write_gguf(tmp_path / "tiny.gguf")
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file=file.name)
    assert fields(load_config(resolve(str(file)))) == fields(theirs)


def test_it_is_changed_and_copied_like_theirs() -> None:
    config = Configuration(model_type="llama", hidden_size=8, rope_parameters={"rope_type": "default"})
    config._attn_implementation, config.dtype = "sdpa", torch.bfloat16
    other = deepcopy(config)
    other.update({"hidden_size": 16})
    other.rope_parameters["rope_type"] = "yarn"
    given = {"model_type": "llama", "hidden_size": 8, "rope_parameters": {"rope_type": "default"}}
    assert config.to_dict() == {**given, "dtype": "bfloat16"}
    config.to_dict()["rope_parameters"].clear()
    assert config.rope_parameters
    assert (other.hidden_size, other._attn_implementation) == (16, "sdpa")
    assert not hasattr(config, "sliding_window")


ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 2.5, "partial_rotary_factor": 0.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8_192, "rope_theta": 100_000.0},
    {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4_096, "beta_fast": 64},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4_096, "attention_factor": 1.5},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4_096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4_096,
        "truncate": False,
        "beta_slow": 2,
    },
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4, "rope_theta": 5e8},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    },
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
        "partial_rotary_factor": 0.5,
    },
]


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("head_dim", [64, 128, None])
def test_the_same_frequencies_bit_for_bit(rope: dict[str, Any], head_dim: int | None) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_theta": 500_000.0, **rope}
    config = LlamaConfig(
        hidden_size=768, num_attention_heads=8, head_dim=head_dim, max_position_embeddings=131_072
    )
    config.rope_parameters = dict(rope)
    expected, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    own = Configuration(**{**config.to_dict(), "rope_parameters": rope})
    found, own_factor = frequencies_of(own)
    assert torch.equal(found, expected)
    assert own_factor == factor


@pytest.mark.parametrize("head_dim", [64, 128])
def test_plain_frequencies_bit_for_bit(head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=768, num_attention_heads=8, head_dim=head_dim)
    assert torch.equal(
        frequencies_of(Configuration(**config.to_dict()))[0], LlamaRotaryEmbedding(config).inv_freq
    )
    assert {"default", "linear", "yarn", "llama3"} == {*KINDS}
