"""What was read of a model is kept for its files and these versions alone, and nothing depends on that it can be."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import save_model, write_gguf

from triforce_chat.engine.forward import attention as own_attention
from triforce_chat.errors import ModelError
from triforce_chat.models import metadata_cache, model_cache
from triforce_chat.models.load import load_config, load_model, tokens_of
from triforce_chat.models.metadata_cache import metadata_folder
from triforce_chat.models.registry import ModelSource, resolve

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture(params=["folder", "gguf"])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> ModelSource:
    made = tmp_path / "model"
    if request.param == "folder":
        return resolve(str(save_model(made)))
    made.mkdir()
    return resolve(str(write_gguf(made / "tiny.gguf")))


@contextmanager
def no_reading() -> Iterator[None]:
    """Transformers' auto classes are not called within the block."""

    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("read again")

    with pytest.MonkeyPatch.context() as patch:
        for each in ("AutoConfig", "AutoTokenizer"):
            patch.setattr(f"transformers.{each}.from_pretrained", fail)
        yield


def test_each_model_is_read_once(source: ModelSource) -> None:
    first = load_config(source).to_dict(), tokens_of(source)
    with no_reading():
        assert (load_config(source).to_dict(), tokens_of(source)) == first
    assert len([path for path in metadata_folder().iterdir() if path.is_dir()]) == 2


def test_a_caller_s_changes_are_its_own(source: ModelSource) -> None:
    first = load_config(source)
    first.rope_parameters["rope_theta"] = 7.0
    assert load_config(source).rope_parameters["rope_theta"] != 7.0


def test_a_changed_file_is_read_again(source: ModelSource) -> None:
    assert load_config(source).max_position_embeddings == 128
    if source.gguf_file:
        write_gguf(source.folder / source.gguf_file, context=96)
    else:
        save_model(source.folder, max_position_embeddings=96)
    assert load_config(source).max_position_embeddings == 96


@pytest.mark.parametrize(
    "name",
    ["tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/tools.jinja", "merges.txt"],
)
def test_a_file_that_comes_later_counts(tmp_path: Path, name: str) -> None:
    source = resolve(str(save_model(tmp_path / "model")))
    assert tokens_of(source)
    (source.folder / name).parent.mkdir(exist_ok=True)
    (source.folder / name).write_text("{}")
    with pytest.raises(pytest.fail.Exception, match="read again"), no_reading():
        tokens_of(source)


def test_other_files_beside_a_model_do_not_count(source: ModelSource) -> None:
    expected = tokens_of(source)
    (source.folder / "notes.txt").write_text("a book")
    (source.folder / "more").mkdir()
    (source.folder / "more" / "config.json").write_text("{}")
    with no_reading():
        assert tokens_of(source) == expected


def refuse(name: str, patch: pytest.MonkeyPatch) -> None:
    """The system does not let a file of this name be read, whoever asks."""
    open_any = Path.open

    def opened(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_any(path, *arguments, **options)

    patch.setattr(Path, "open", opened)


def test_a_file_that_cannot_be_read_is_no_obstacle_unless_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = resolve(str(save_model(tmp_path / "model")))
    (source.folder / "vocab.secret").write_text("x")
    expected = tokens_of(source)
    refuse("vocab.secret", monkeypatch)
    assert tokens_of(source) == expected
    with no_reading():
        assert tokens_of(source) == expected
    refuse("model.safetensors", monkeypatch)
    with pytest.raises(ModelError, match=r"cannot be loaded: .*/model/model.safetensors: Permission denied$"):
        load_model(str(source.folder), attention=own_attention.NAME)
    (source.folder / "model.safetensors.index.json").write_text("{}")
    refuse("model.safetensors.index.json", monkeypatch)
    with pytest.raises(ModelError, match=r"^model: model.safetensors.index.json cannot be read \(Permission"):
        resolve(str(source.folder))


@pytest.mark.parametrize("name", ["transformers", "tokenizers"])
def test_another_version_reads_again(source: ModelSource, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load_config(source)
    monkeypatch.setattr(metadata_cache, "version", lambda asked: "0" if asked == name else version(asked))
    with pytest.raises(pytest.fail.Exception, match="read again"), no_reading():
        load_config(source)


def test_damage_is_mended(source: ModelSource) -> None:
    expected = tokens_of(source)
    for file in metadata_folder().rglob("*.json"):
        if file.name != model_cache.MANIFEST:
            file.write_text("{}")
    assert tokens_of(source) == expected


def test_a_cache_that_cannot_be_written(source: ModelSource, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    loaded = load_model(str(source.folder / (source.gguf_file or "")), attention="sdpa")
    assert loaded.tokenizer.encode("ab")
    assert loaded.context == 128
    assert (tmp_path / "cache").is_file()


def test_nothing_is_kept_of_what_cannot_be_read(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{")
    for _ in range(2):
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_model(str(folder), attention="sdpa")
    assert not [path for path in metadata_folder().glob("*-tokenizer") if path.is_dir()]


def test_only_the_latest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "MOST_FOLDERS", 2)
    for name in ("first", "second", "third"):
        load_config(resolve(str(save_model(tmp_path / name))))
    names = {path.name.partition("-")[0] for path in metadata_folder().iterdir() if path.is_dir()}
    assert names == {"second", "third"}


def test_nothing_is_kept_of_models_that_are_gone(tmp_path: Path) -> None:
    for name in ("gone", "here"):
        load_config(resolve(str(save_model(tmp_path / name))))
    shutil.rmtree(tmp_path / "gone")
    load_config(resolve(str(save_model(tmp_path / "new"))))
    assert {path.name.partition("-")[0] for path in metadata_folder().iterdir()} == {"here", "new"}


def test_what_is_left_of_failures_is_stale(tmp_path: Path) -> None:
    load_config(resolve(str(save_model(tmp_path / "model"))))
    (kept,) = (path for path in metadata_folder().iterdir() if path.is_dir())
    (metadata_folder() / "failed-0123-config.lock").touch()
    assert metadata_cache.discard_stale() == 0
    assert {path.suffix for path in metadata_folder().iterdir()} == {"", ".lock"}
    (kept / model_cache.MANIFEST).write_text("{")
    size = metadata_cache.metadata_size()
    assert size > 100
    assert metadata_cache.discard_stale() == size
    assert not list(metadata_folder().iterdir())
