"""A model of this program's modules is the one of transformers, number by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import HIDDEN, VOCABULARY, save_model
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.forward import attention
from triforce_chat.engine.forward.modules import LanguageModel
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.models.assemble import SAFETENSORS, as_transformers
from triforce_chat.models.load import load_model
from triforce_chat.storage.kv.fingerprint import fingerprint

IDS = torch.randint(3, len(VOCABULARY), (1, 60), generator=torch.Generator().manual_seed(0))
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "linear": ("llama", {"rope_parameters": LINEAR}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"attention_bias": True}),
    "derived head": ("llama", {"head_dim": None}),
}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    family, changes = KINDS[request.param]
    return noisy(save_model(tmp_path / "tiny", family, **{"initializer_range": 0.3, **changes}))


def noisy(folder: Path) -> Path:
    """The model with random norms and biases in place of ones and zeros."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / SAFETENSORS)
    for name, weight in weights.items():
        if "norm" in name or name.endswith("bias"):
            weight.uniform_(0.2, 2.0)
    save_file(weights, folder / SAFETENSORS, {"format": "pt"})
    return folder


def models(folder: Path) -> tuple[Any, Any]:
    """Of this program's modules, and of transformers'."""
    own, theirs = (load_model(str(folder), attention=each) for each in (attention.NAME, "sdpa"))
    assert type(own.model) is LanguageModel
    assert type(theirs.model).__module__.startswith("transformers.")
    assert fingerprint(own.model, own.tokenizer) == fingerprint(theirs.model, theirs.tokenizer)
    assert (own.eos_ids, own.context, own.format) == (theirs.eos_ids, theirs.context, theirs.format)
    return own.model, theirs.model


@torch.inference_mode()
def fed(model: Any, *widths: int) -> Tensor:
    """Logits of the first ids, fed so many at a time."""
    runner, at, parts = Runner(model), 0, []
    cache, ids = FullCache(runner.shape, 80), IDS.to(runner.device)
    for n in widths:
        parts.append(runner(ids[:, at : at + n], cache, n).clone())
        at += n
    return torch.cat(parts, 1)


def test_logits_are_those_of_transformers_modules(folder: Path) -> None:
    own, theirs = (fed(model, 1, 8, 40, 1, 3) for model in models(folder))
    assert theirs.std() > 0.1
    assert torch.equal(own, theirs)


def test_a_model_of_transformers_is_made_of_its_weights(folder: Path) -> None:
    own, theirs = models(folder)
    made = as_transformers(own)
    assert type(made) is type(theirs)
    assert made.lm_head.weight.data_ptr() == own.lm_head.weight.data_ptr()
    ids = IDS[:, :20]
    for model in (made, theirs):
        model.set_attn_implementation("sdpa")
    assert torch.equal(made(ids).logits, theirs(ids).logits)
    assert as_transformers(theirs) is theirs


def test_16_bits_round_alike(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny", initializer_range=0.3)
    own, theirs = (
        load_model(str(folder), attention=each, dtype=torch.bfloat16).model
        for each in (attention.NAME, "sdpa")
    )
    assert (own.dtype, own.model.rotary_emb.inv_freq.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(fed(own, 30, 1), fed(theirs, 30, 1))


def test_other_tensors_than_expected_are_left_to_transformers(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "tiny", tie_word_embeddings=True)
    weights = load_file(folder / SAFETENSORS)
    output = torch.randn(len(VOCABULARY), HIDDEN)
    save_file({**weights, "lm_head.weight": output}, folder / SAFETENSORS, {"format": "pt"})
    loaded = load_model(str(folder), attention=attention.NAME)
    assert not isinstance(loaded.model, LanguageModel)
    assert torch.equal(loaded.model.lm_head.weight, output)


def test_weights_in_several_files(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = save_model(tmp_path / "tiny", initializer_range=0.3)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="10KB")
    (folder / SAFETENSORS).unlink(missing_ok=True)
    assert len(list(folder.glob("*.safetensors"))) > 1
    own, theirs = models(folder)
    assert torch.equal(fed(own, 9), fed(theirs, 9))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [16, 24], ids=["fused blocks", "one by one"])
def test_on_a_gpu(tmp_path: Path, head_dim: int) -> None:
    folder = save_model(tmp_path / "tiny", head_dim=head_dim, initializer_range=0.3)
    own, theirs = (
        load_model(str(folder), attention=each, device="cuda", dtype=torch.bfloat16).model
        for each in (attention.NAME, "sdpa")
    )
    assert type(own) is LanguageModel
    assert own.device == theirs.device
    logits = fed(own, 20, 1, 5)
    assert logits.float().std() > 0.1
    assert torch.equal(logits, fed(theirs, 20, 1, 5))
