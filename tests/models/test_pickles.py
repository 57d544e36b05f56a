"""Weights that were published as pickles: read without running anything, and only for presets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file
from support.tiny_models import Evil, save_model
from transformers import AutoModelForCausalLM

from triforce_chat.errors import ModelError
from triforce_chat.models import presets
from triforce_chat.models.load import load_model
from triforce_chat.models.pickles import convert_pickles, pull
from triforce_chat.models.presets import Preset
from triforce_chat.models.progress import Progress, ignore_progress
from triforce_chat.models.registry import resolve

REPOSITORY = "owner/pickled"


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, torch.Tensor]:
    save_model(tmp_path / "hub")
    read: dict[str, torch.Tensor] = load_file(tmp_path / "hub" / "model.safetensors")
    return {name: weight.clone() for name, weight in read.items()}


@pytest.fixture
def folder(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Path:
    """A repository in two pickles with an index, as large models are published."""
    hub = tmp_path / "hub"
    (hub / "model.safetensors").unlink()
    stored = {**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    names = sorted(stored)
    places: dict[str, str] = {}
    for n, part in enumerate((names[:5], names[5:])):
        file = f"pytorch_model-0000{n + 1}-of-00002.bin"
        torch.save({name: stored[name] for name in part}, hub / file, _use_new_zipfile_serialization=n == 0)
        places |= dict.fromkeys(part, file)
    (hub / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    return hub


@pytest.fixture
def calls(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A preset whose repository is ``folder``; returns what was asked of the hub."""
    asked: list[dict[str, Any]] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.append({"repository": repository, **options})
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(presets, "PRESETS", (Preset("pickled", REPOSITORY, 128),))
    return asked


def test_a_preset_is_converted_once(calls: list[dict[str, Any]], weights: dict[str, torch.Tensor]) -> None:
    pull(REPOSITORY, ignore_progress)
    assert "pytorch_model*.bin" in calls[-1]["allow_patterns"]
    assert not any("pytorch_model*.bin" in call["allow_patterns"] for call in calls[:-1])
    loaded = load_model("pickled", attention="sdpa")
    found = loaded.model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())
    assert not list(loaded.source.folder.glob("*.bin*"))
    before = len(calls)
    assert resolve("pickled").folder == loaded.source.folder
    assert len(calls) == before


def test_no_model_is_loaded_from_a_pickle(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_options: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(ModelError, match=r"published as pickles.*'triforce-chat models pull owner/pickled'"):
        load_model("pickled", attention="sdpa")
    assert not any("pytorch_model*.bin" in call["allow_patterns"] for call in calls)


def test_other_repositories_and_folders_stay_unread(calls: list[dict[str, Any]], folder: Path) -> None:
    for name in ("owner/other", str(folder)):
        with pytest.raises(
            ModelError, match=r"contains only pickled weights .*never read; convert them to safetensors"
        ):
            resolve(name)
    assert not any("pytorch_model*.bin" in call["allow_patterns"] for call in calls)


def test_code_in_a_pickle_does_not_run(folder: Path, tmp_path: Path) -> None:
    trace, made = tmp_path / "trace", tmp_path / "made"
    made.mkdir()
    torch.save({"weight": Evil(trace)}, folder / "pytorch_model-00001-of-00002.bin")
    with pytest.raises(ModelError, match=r"m: pytorch_model-00001.* contains more than weights") as caught:
        convert_pickles("m", folder, made, ignore_progress)
    assert not trace.exists()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [{"epoch": 3}, [torch.ones(2)]])
def test_what_is_no_table_of_weights_is_refused(folder: Path, tmp_path: Path, content: Any) -> None:
    torch.save(content, folder / "pytorch_model-00002-of-00002.bin")
    (tmp_path / "made").mkdir()
    with pytest.raises(ModelError, match="contains more than weights"):
        convert_pickles("m", folder, tmp_path / "made", ignore_progress)


def test_a_missing_part_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(ModelError, match=r"incomplete, pytorch_model-00002-of-00002\.bin is missing"):
        convert_pickles("m", folder, tmp_path, ignore_progress)


def test_the_converted_folder_is_a_plain_model(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    seen: list[Progress] = []
    convert_pickles("m", folder, made, seen.append)
    AutoModelForCausalLM.from_pretrained(made, use_safetensors=True)
    assert (made / "tokenizer.json").is_file()
    assert not any("inv_freq" in name for part in made.glob("*.safetensors") for name in load_file(part))
    assert [progress.done for progress in seen] == [0, 1, 2]
