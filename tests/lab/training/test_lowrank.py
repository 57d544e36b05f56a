"""Low-rank updates: nothing at first, alone in what is learnt, and the same model again from their folder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.trained_models import load, save_target
from torch import Tensor, nn

from triforce_chat.errors import ModelError
from triforce_chat.lab.training.context import stretch, stretched
from triforce_chat.lab.training.lowrank import LowRank, attach, load_updates, save_adapter
from triforce_chat.models.adapter import CONFIG, WEIGHTS
from triforce_chat.models.load import LoadedModel

RANK, ALPHA = 3, 12.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(save_target(tmp_path_factory.mktemp("base")))


def updated(base: LoadedModel, seed: int = 0) -> tuple[Any, dict[str, LowRank]]:
    model = copy.deepcopy(base.model).requires_grad_(True)
    return model, attach(model, RANK, ALPHA, seed)


def learnt(base: LoadedModel) -> tuple[Any, dict[str, LowRank]]:
    """With updates that are no longer zero."""
    model, updates = updated(base)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for update in updates.values():
            update.b.normal_(0, 0.1, generator=generator)
    return model, updates


def text(base: LoadedModel, n: int = 60) -> Tensor:
    return torch.randint(3, base.vocab_size, (2, n), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def logits(model: Any, ids: Tensor) -> Tensor:
    out: Tensor = model(ids).logits
    return out


def test_what_was_just_attached_changes_nothing(base: LoadedModel) -> None:
    model, _ = updated(base)
    assert torch.equal(logits(model, text(base)), logits(base.model, text(base)))


def test_every_linear_layer_of_the_blocks_has_an_update(base: LoadedModel) -> None:
    _, updates = updated(base)
    linear = [name for name, module in base.model.named_modules() if isinstance(module, nn.Linear)]
    assert list(updates) == [name for name in linear if name != "lm_head"]
    assert len(updates) == 14
    for name, update in updates.items():
        out, wide = base.model.get_submodule(name).weight.shape
        assert (update.a.shape, update.b.shape) == ((RANK, wide), (out, RANK))


def test_only_updates_are_learnt(base: LoadedModel) -> None:
    model, updates = updated(base)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learning == {f"{name}.parametrizations.weight.0.{side}" for name in updates for side in "ab"}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adam = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(text(base)).logits.square().mean().backward()
    assert all(update.b.grad is not None and update.b.grad.abs().max() > 0 for update in updates.values())
    adam.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in learning if name.endswith(".b")}  # A has no gradient while B is zero
    assert not torch.equal(logits(model, text(base)), logits(base.model, text(base)))


def test_the_update_is_scale_times_b_times_a(base: LoadedModel) -> None:
    model, updates = learnt(base)
    name = "model.layers.1.mlp.down_proj"
    update, weight = updates[name], base.model.get_submodule(name).weight
    expected = weight.double() + ALPHA / RANK * update.b.double() @ update.a.double()
    torch.testing.assert_close(model.get_submodule(name).weight.double(), expected, rtol=0, atol=1e-6)


def test_the_seed_decides_where_learning_starts(base: LoadedModel) -> None:
    (_, one), (_, same), (_, other) = updated(base, 1), updated(base, 1), updated(base, 2)
    for name, update in one.items():
        assert torch.equal(update.a, same[name].a)
        assert not torch.equal(update.a, other[name].a)


def test_a_saved_adapter_is_the_trained_model(base: LoadedModel, tmp_path: Path) -> None:
    model, updates = learnt(base)
    rope = stretched(model.config, 4.0)
    stretch(model, rope)
    save_adapter(tmp_path / "made", updates, base.name, rope)
    loaded = load(tmp_path / "made")
    assert loaded.context == 4 * 512
    with torch.no_grad():
        for update in updates.values():
            update.a.copy_(update.a.bfloat16())
            update.b.copy_(update.b.bfloat16())
    ids = text(base, 700)  # beyond the positions of the base
    torch.testing.assert_close(logits(loaded.model, ids), logits(model, ids), rtol=1e-4, atol=1e-4)
    assert (logits(base.model, ids) - logits(model, ids)).abs().max() > 0.1


def test_an_adapter_folder_is_what_peft_reads(base: LoadedModel, tmp_path: Path) -> None:
    _, updates = learnt(base)
    save_adapter(tmp_path, updates, "some-base", {"rope_parameters": {}})
    config = json.loads((tmp_path / CONFIG).read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", RANK, ALPHA)
    assert config["base_model_name_or_path"] == "some-base"
    kinds = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == kinds
    stored = load_file(tmp_path / WEIGHTS)
    assert len(stored) == 2 * len(updates)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    for name, update in updates.items():
        assert torch.equal(stored[f"base_model.model.{name}.lora_A.weight"], update.a.bfloat16())
        assert torch.equal(stored[f"base_model.model.{name}.lora_B.weight"], update.b.bfloat16())


def test_updates_come_back_from_a_folder(base: LoadedModel, tmp_path: Path) -> None:
    _, updates = learnt(base)
    save_adapter(tmp_path, updates, base.name, stretched(base.model.config, 4.0))
    model, fresh = updated(base, seed=5)
    load_updates(tmp_path, fresh)
    for name, update in fresh.items():
        assert torch.equal(update.a, updates[name].a.bfloat16().float())
        assert torch.equal(update.b, updates[name].b.bfloat16().float())
    assert all(parameter.requires_grad for update in fresh.values() for parameter in update.parameters())
    assert not torch.equal(logits(model, text(base)), logits(base.model, text(base)))


@pytest.mark.parametrize("rank", [1, RANK + 1])
def test_updates_of_another_rank_are_refused(base: LoadedModel, tmp_path: Path, rank: int) -> None:
    save_adapter(tmp_path, learnt(base)[1], base.name, stretched(base.model.config, 4.0))
    with pytest.raises(ModelError, match=rf"no update of shape \({rank}, 32\) for model.layers.0"):
        load_updates(tmp_path, attach(copy.deepcopy(base.model), rank, ALPHA, 0))


def test_updates_of_fewer_layers_are_refused(base: LoadedModel, tmp_path: Path) -> None:
    _, updates = learnt(base)
    some = {name: update for name, update in updates.items() if "layers.1" not in name}
    save_adapter(tmp_path, some, base.name, stretched(base.model.config, 4.0))
    with pytest.raises(ModelError, match=r"for model\.layers\.1"):
        load_updates(tmp_path, updates)


def test_updates_of_another_scale_stay_the_same_weights(base: LoadedModel, tmp_path: Path) -> None:
    model, updates = learnt(base)
    save_adapter(tmp_path, updates, base.name, stretched(base.model.config, 4.0))
    other = copy.deepcopy(base.model)
    load_updates(tmp_path, attach(other, RANK, ALPHA / 4, 0))
    expected = logits(model, text(base))
    torch.testing.assert_close(logits(other, text(base)), expected, rtol=0.05, atol=0.05)  # bf16
    assert (logits(base.model, text(base)) - expected).abs().max() > 0.5


@pytest.mark.parametrize(("file", "message"), [(WEIGHTS, "is damaged"), (CONFIG, "cannot be read")])
def test_damaged_updates_are_one_line(base: LoadedModel, tmp_path: Path, file: str, message: str) -> None:
    _, updates = learnt(base)
    save_adapter(tmp_path, updates, base.name, stretched(base.model.config, 4.0))
    (tmp_path / file).write_bytes(b"\0" * 99)
    with pytest.raises(ModelError, match=f"{file} {message}"):
        load_updates(tmp_path, updates)
