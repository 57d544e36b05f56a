"""Every way to name a model leads to a folder or to one line that says what to do."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from triforce_chat.errors import ModelError
from triforce_chat.models import registry
from triforce_chat.models.presets import PRESETS, find_preset
from triforce_chat.models.progress import Progress
from triforce_chat.models.registry import ModelSource, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Named like weights; nothing in it is ever read here."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    return tmp_path


class Hub:
    """Stands for the network: ``local`` answers from its cache, ``remote`` downloads."""

    def __init__(self, local: Path | Exception, remote: Path | Exception) -> None:
        self.answers = {True: local, False: remote}
        self.calls: list[dict[str, Any]] = []

    def snapshot_download(self, repository: str, **options: Any) -> str:
        self.calls.append({"repository": repository, **options})
        answer = self.answers[options.get("local_files_only", False)]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


def use_hub(monkeypatch: pytest.MonkeyPatch, local: Path | Exception, remote: Path | Exception) -> Hub:
    hub = Hub(local, remote)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def refusal(kind: type[Exception]) -> Exception:
    """An error of the hub without the HTTP response that its constructor wants."""
    return kind.__new__(kind)


NOT_HERE = errors.LocalEntryNotFoundError("not in the cache")


@pytest.mark.parametrize("name", ["small", "default", "smollm2-135m"])
def test_the_built_in_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setattr(registry, "wheel_model", lambda **_: tmp_path)
    (tmp_path / "m.gguf").touch()
    source = resolve(name)
    assert (source.name, source.folder, source.gguf_file) == (name, tmp_path, "m.gguf")
    assert source.preset == find_preset(name)


def test_preset_names_are_unique() -> None:
    names = [name for preset in PRESETS for name in (preset.name, *preset.aliases)]
    assert len(names) == len(set(names))
    assert find_preset("no such preset") is None


def test_a_folder_of_safetensors(folder: Path) -> None:
    assert resolve(str(folder)) == ModelSource(str(folder), folder, None, None)


def test_a_gguf_file_and_the_folder_around_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert resolve(str(tmp_path)).gguf_file == "m.gguf"
    source = resolve(str(tmp_path / "m.gguf"))
    assert (source.folder, source.gguf_file) == (tmp_path, "m.gguf")


def test_paths_may_be_relative(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert resolve(".").folder == folder


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["pytorch_model.bin", "config.json"], "only pickled weights .*never read"),
        (["weights.pt"], "only pickled weights"),
        (["a.gguf", "b.gguf"], "2 .gguf files .a.gguf, b.gguf.; name one"),
        (["readme.txt"], "neither .safetensors nor .gguf"),
        (["model.safetensors"], "config.json is missing"),
    ],
)
def test_folders_without_a_model(tmp_path: Path, files: list[str], message: str) -> None:
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(ModelError, match=message):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (json.dumps({"weight_map": {"a": "model.safetensors", "b": "lost.safetensors"}}), "lost.safetensors"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
    ],
)
def test_an_incomplete_folder(folder: Path, index: str, message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=message):
        resolve(str(folder))


def test_a_folder_that_may_not_be_looked_into(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path / "adapter_config.json"))

    monkeypatch.setattr(registry, "is_adapter", refuse)
    with pytest.raises(ModelError, match=r"adapter_config.json: Permission denied$"):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["nowhere", "./a/b", "~/nowhere", "a/b/c", "/no/such", "a\\b", ""])
def test_names_of_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="give a preset"):
        resolve(name or "''")


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("smal", "'small'"),
        ("Large", "'large'"),
        ("llama-3", "'llama-3.1-8b' or 'llama-3.2-1b'"),
        ("qwen3", "'qwen3-8b' or 'qwen3-8b-128k' or 'qwen3-0.6b'"),
    ],
)
def test_the_nearest_presets_are_offered(name: str, offered: str) -> None:
    with pytest.raises(ModelError) as refusal:
        resolve(name)
    told = f"no model '{name}'; did you mean {offered}? 'triforce-chat models ls' lists the presets"
    assert str(refusal.value) == told


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "m.bin").touch()
    with pytest.raises(ModelError, match=r"a folder or a \.gguf file"):
        resolve(str(tmp_path / "m.bin"))


def test_a_downloaded_repository_asks_no_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = use_hub(monkeypatch, local=folder, remote=AssertionError("asked the network"))
    assert resolve("owner/name") == ModelSource("owner/name", folder, None, None)
    assert len(hub.calls) == 1


def test_a_download_takes_no_pickles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    hub = use_hub(monkeypatch, local=NOT_HERE, remote=folder)
    assert resolve("owner/name").folder == folder
    offered = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja"]
    never = ["pytorch_model.bin", "model.pt", "model.pth", "modeling.py", "original/a.safetensors", "m.gguf"]
    never += ["consolidated.safetensors", "consolidated.00-of-02.safetensors"]
    options = {key: hub.calls[-1][key] for key in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects([*offered, *never], **options)) == offered


def test_an_incomplete_download_is_resumed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hub(monkeypatch, local=tmp_path_factory.mktemp("half"), remote=folder)
    assert resolve("owner/name").folder == folder


def test_download_progress_counts_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = use_hub(monkeypatch, local=NOT_HERE, remote=folder)
    seen: list[Progress] = []
    resolve("owner/name", report=seen.append)
    meter = hub.calls[-1]["tqdm_class"]
    with meter(total=100, unit="B") as bar, meter(total=3, unit="it") as files:
        files.update(1)
        bar.update(40)
        bar.update(60)
    assert seen == [Progress("downloading", 40, 100), Progress("downloading", 100, 100)]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (refusal(errors.GatedRepoError), "gated: accept its terms at https://huggingface.co/owner/name"),
        (refusal(errors.RepositoryNotFoundError), "not on the hub"),
        (errors.HFValidationError("bad"), "not a valid hub id"),
        (NOT_HERE, "cannot be reached: connect once, or pass --model FOLDER"),
        (errors.OfflineModeIsEnabled("offline\nmode"), "cannot be reached"),
        (ConnectionError("no route"), "cannot be reached.*no route"),
    ],
)
def test_hub_troubles_are_one_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, local=NOT_HERE, remote=error)
    with pytest.raises(ModelError, match=message) as caught:
        resolve("owner/name")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("owner/name: ")
