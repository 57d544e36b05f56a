"""Adapter folders: the sum of base and low-rank product, the context it was trained for, clear refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import VOCABULARY, save_adapter, save_model, save_weights
from torch import Tensor

from triforce_chat.errors import ModelError
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.models import presets, registry
from triforce_chat.models.load import LoadedModel, load_model
from triforce_chat.models.presets import Preset
from triforce_chat.models.registry import resolve
from triforce_chat.settings.settings import Settings

Q0 = "model.layers.0.self_attn.q_proj"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_model(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return save_adapter(tmp_path / "adapter", base)


def load(name: Path | str, **options: Any) -> LoadedModel:
    return load_model(str(name), attention="sdpa", **options)


def rewrite(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON object or a file of tensors in place."""
    if file.suffix == ".json":
        value = json.loads(file.read_text())
        change(value)
        file.write_text(json.dumps(value))
    else:
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})


def test_weights_are_base_plus_scaled_product(base: Path, adapter: Path) -> None:
    plain, adapted = load(base).model.state_dict(), load(adapter).model.state_dict()
    parts = load_file(adapter / WEIGHTS)
    for name, weight in plain.items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        expected = weight
        if f"{path}.lora_A.weight" in parts:
            down, up = (parts[f"{path}.lora_{side}.weight"].double() for side in "AB")
            expected = (weight.double() + 8 / 4 * up @ down).float()
            assert not torch.allclose(expected, weight, atol=0.1)
        torch.testing.assert_close(adapted[name], expected, rtol=1e-6, atol=1e-6)


def test_the_sum_is_rounded_once(base: Path, adapter: Path) -> None:
    weight = load(base, dtype=torch.bfloat16).model.get_submodule(Q0).weight
    parts = load_file(adapter / WEIGHTS)
    down, up = (parts[f"base_model.model.{Q0}.lora_{side}.weight"].float() for side in "AB")
    found = load(adapter, dtype=torch.bfloat16).model.get_submodule(Q0).weight
    assert torch.equal(found, (weight.float() + 2 * (up @ down)).bfloat16())


def test_rotary_embeddings_and_context_are_the_adapters(adapter: Path) -> None:
    loaded = load(adapter)
    assert (loaded.name, loaded.context) == (str(adapter), 2048)
    assert loaded.model.config.rope_parameters["factor"] == 16
    assert loaded.model.base_model.rotary_emb.attention_scaling == pytest.approx(0.1 * math.log(16) + 1)
    slowest = loaded.model.base_model.rotary_emb.inv_freq[-1]
    assert float(slowest) == pytest.approx(10_000 ** (-6 / 8) / 16, rel=1e-5)


def test_a_base_may_lie_beside_its_adapter(adapter: Path) -> None:
    rewrite(adapter / "adapter_config.json", lambda config: config.update(base_model_name_or_path="../base"))
    assert resolve(str(adapter)).folder == (adapter / "../base").absolute()


def test_a_base_may_be_a_preset(base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "wheel_model", lambda **_: base)
    rewrite(
        adapter / "adapter_config.json", lambda config: config.update(base_model_name_or_path="smollm2-135m")
    )
    loaded = load(adapter)
    assert loaded.context == 2048
    assert loaded.sampling["repetition_penalty"] == 1.1


def test_a_shipped_adapter_with_its_draft(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_weights(tmp_path / "draft", num_hidden_layers=1)  # no tokenizer
    preset = Preset("shipped", None, 2048, draft=str(tmp_path / "draft"), adapter=str(adapter))
    monkeypatch.setattr(presets, "PRESETS", (preset,))
    engine, loaded = load_engine(EngineSpec(Settings(model="shipped", device="cpu")))
    assert (engine.context, loaded.draft) == (2048, str(tmp_path / "draft"))
    assert loaded.source.preset is preset
    assert engine.draft is not None
    assert engine.draft.vocabulary == len(VOCABULARY)


def lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def configured(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder / "adapter_config.json", lambda config: config.update(changes))


def roped(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder / "rope.json", change)


def weighted(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder / WEIGHTS, change)


A, B = (f"base_model.model.{Q0}.lora_{side}.weight" for side in "AB")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose(WEIGHTS), "adapter_model.safetensors is missing"),
        (lose("rope.json"), "rope.json is missing"),
        (lambda folder: (folder / "rope.json").write_text("{"), "rope.json cannot be read"),
        (lambda folder: (folder / "rope.json").write_text("[]"), "rope.json does not describe an adapter"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"\0" * 99), "adapter_model.safetensors is damaged"),
        (roped(lambda rope: rope.pop("rope_parameters")), "lacks 'rope_parameters'"),
        (roped(lambda rope: rope.update(max_position_embeddings="far")), "configuration is invalid"),
        (roped(lambda rope: rope["rope_parameters"].update(rope_type="dynamic")), "'dynamic' RoPE scaling"),
        (configured(peft_type="IA3"), "of type 'IA3'; only LORA"),
        (configured(use_dora=True), "uses use_dora"),
        (configured(bias="all"), "uses bias"),
        (configured(r=0), "configuration is invalid"),
        (configured(base_model_name_or_path=None), "does not name its base model"),
        (configured(base_model_name_or_path="./nowhere"), "no model './nowhere'"),
        (configured(r=3), "lora_A of .*q_proj has rank 4, adapter_config.json says 3"),
        (weighted(lambda w: w.update({B: torch.zeros(32, 5)})), "lora_B of .*q_proj has rank 5"),
        (weighted(lambda w: w.update({B: torch.zeros(31, 4)})), "q_proj is 32 x 32 in the model, 31 x 32 in"),
        (weighted(lambda w: w.update({A: torch.zeros(4, 30)})), "32 x 32 in the model, 32 x 30 in"),
        (weighted(lambda w: w.pop(B)), "q_proj has only lora_A"),
        (weighted(lambda w: w.update({name.replace("q_", "x_"): w.pop(name) for name in (A, B)})),
         "the model has no .*x_proj"),
        (weighted(lambda w: w.update({"base_model.model.odd": torch.zeros(1)})), "odd is not a LoRA weight"),
        (weighted(lambda w: w.clear()), "contains no weights"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(adapter: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(adapter)
    with pytest.raises(ModelError, match=message) as caught:
        load(adapter)
    assert "\n" not in str(caught.value)


def test_an_adapter_on_an_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    second = save_adapter(tmp_path / "second", adapter)
    with pytest.raises(ModelError, match=r"second: its base .*adapter is itself an adapter"):
        load(second)


def test_an_adapter_on_an_adapted_preset_is_refused(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "PRESETS", (Preset("mine", None, 2048, adapter=str(adapter)),))
    second = save_adapter(tmp_path / "second", adapter, base_model_name_or_path="mine")
    with pytest.raises(ModelError, match="its base mine is itself an adapter"):
        load(second)
