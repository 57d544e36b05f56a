"""What GGUF files are converted into stays in the cache, and is used as long as the file is the same."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from support.tiny_models import save_adapter, save_model, write_gguf
from torch import Tensor

from triforce_chat.errors import ModelError, OutOfMemory
from triforce_chat.models import convert, gguf_cache, sharding
from triforce_chat.models.gguf_cache import conversions, conversions_folder, converted
from triforce_chat.models.load import LoadedModel, load_model
from triforce_chat.models.model_cache import CacheUnusable, discard, is_intact
from triforce_chat.models.presets import PRESETS
from triforce_chat.models.progress import Progress, ignore_progress
from triforce_chat.models.registry import resolve

Usage = namedtuple("Usage", "total used free")
IDS = torch.tensor([[5, 6, 7, 8]])

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def unusable(empty_cache: Path) -> Path:
    """The cache, where a file is in the way."""
    empty_cache.write_text("")
    return empty_cache


def load(file: Path, dtype: torch.dtype = torch.float32, **options: Any) -> LoadedModel:
    return load_model(str(file), dtype=dtype, attention="sdpa", **options)


def logits(loaded: LoadedModel) -> Tensor:
    found: Tensor = loaded.model(IDS).logits
    return found


def no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "convert_gguf", lambda *_: pytest.fail("converted again"))
    monkeypatch.setattr(gguf, "dequantize", lambda *_: pytest.fail("dequantized again"))


def left() -> list[str]:
    """What is in the folder of conversions, but for locks."""
    return sorted(path.name for path in conversions_folder().iterdir() if path.suffix != ".lock")


def test_the_second_start_converts_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Progress] = []
    first = load(file, report=seen.append)
    assert list(dict.fromkeys(progress.stage for progress in seen)) == ["converting", "saving"]
    no_conversion(monkeypatch)
    second = load(file, report=lambda progress: pytest.fail(f"{progress}"))
    assert torch.equal(logits(first), logits(second))
    assert (second.source, second.eos_ids, second.context) == (first.source, first.eos_ids, first.context)
    assert second.source.gguf_file == "tiny.gguf"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_converted_or_not_the_model_is_the_same(
    file: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = load(file, dtype)
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", os.devnull)
    direct = load(file, dtype)
    own, theirs = kept.model.state_dict(), direct.model.state_dict()
    assert own.keys() == theirs.keys()
    assert all(own[name].dtype == dtype and torch.equal(own[name], theirs[name]) for name in theirs)
    assert kept.tokenizer.backend_tokenizer.to_str() == direct.tokenizer.backend_tokenizer.to_str()
    assert kept.tokenizer.special_tokens_map == direct.tokenizer.special_tokens_map
    assert kept.tokenizer.chat_template == direct.tokenizer.chat_template
    assert (kept.eos_ids, kept.context, kept.vocab_size) == (
        direct.eos_ids,
        direct.context,
        direct.vocab_size,
    )


def test_each_dtype_is_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(file)
    load(file, torch.bfloat16)
    assert [each.origin.dtype for each in conversions()] == ["bfloat16", "float32"]
    no_conversion(monkeypatch)
    load(file)
    load(file, torch.bfloat16)


def test_a_folder_and_a_link_are_the_same_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(file)
    (file.parent / "links").mkdir()
    link = file.parent / "links" / "other.gguf"
    link.symlink_to(file)
    no_conversion(monkeypatch)
    load(link)
    load(file.parent)


def test_weights_are_mapped_from_the_cache(file: Path) -> None:
    load(file)
    loaded = load(file)
    weights = conversions()[0].folder / "model.safetensors"
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in mappings(weights)]
    assert all(any(a <= each.data_ptr() < b for a, b in spans) for each in loaded.model.parameters())


def mappings(path: Path) -> list[str]:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what is mapped")
    return [line for line in maps.read_text().splitlines() if line.endswith(str(path.resolve()))]


def test_a_changed_file_is_converted_again(file: Path) -> None:
    first = load(file)
    data = bytearray(file.read_bytes())
    data[-8:] = bytes(8)
    file.write_bytes(data)
    assert not conversions()[0].is_current
    second = load(file)
    assert not torch.equal(logits(first), logits(second))
    assert [each.is_current for each in conversions()] == [True]
    assert len(left()) == 1


@pytest.mark.parametrize("change", ["gone", "touched", "cut", "renamed"])
def test_useless_conversions_go_with_the_next_one(file: Path, change: str) -> None:
    other = write_gguf(file.parent / "other.gguf")
    load(other)
    load(file)
    if change == "gone":
        other.unlink()
    elif change == "touched":
        os.utime(other, ns=(1, 1))
    elif change == "cut":
        stat = other.stat()
        os.truncate(other, stat.st_size - 1)
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else:
        other.rename(other.with_name("new.gguf"))
    load(file)
    assert len(conversions()) == 2, "nothing was converted"
    load(file, torch.bfloat16)
    assert {each.file for each in conversions()} == {file}
    assert len(left()) == len(list(conversions_folder().glob("*.lock"))) == 2


def test_what_a_killed_conversion_left_goes_too(file: Path) -> None:
    conversions_folder().mkdir(parents=True)
    (conversions_folder() / ".dead-float32.x" / "made").mkdir(parents=True)
    (conversions_folder() / "dead-float32.lock").touch()
    load(file)
    assert not list(conversions_folder().glob("*dead*"))


def test_a_folder_that_is_being_built_is_not_discarded(tmp_path: Path) -> None:
    import filelock

    folder = tmp_path / "m"
    folder.mkdir()
    with filelock.FileLock(tmp_path / "m.lock"):
        discard(folder)
        assert folder.is_dir()
    discard(folder)
    assert not folder.exists()


def test_damage_is_repaired(file: Path) -> None:
    good = logits(load(file))
    (conversion,) = conversions()
    weights = conversion.folder / "model.safetensors"
    shutil.copyfile(weights, weights.with_suffix(".cut"))  # the loaded model maps the other
    os.truncate(weights.with_suffix(".cut"), 1000)
    weights.with_suffix(".cut").replace(weights)
    assert torch.equal(logits(load(file)), good)
    assert len(left()) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, OutOfMemory])
def test_an_interrupted_conversion_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupted(_gguf: Path, made: Path, *_: object) -> None:
        (made / "model.safetensors").write_bytes(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(convert, "convert_gguf", interrupted)
        with pytest.raises(error):
            load(file)
    assert (left(), conversions()) == ([], [])
    load(file)


def test_no_room(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = sum(tensor.n_elements for tensor in gguf.GGUFReader(file).tensors)
    free = 4 * int(numbers) * gguf_cache.DISK_SHARE
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free - 1))
    notes: list[str] = []
    direct = logits(load(file, note=notes.append))
    (line,) = notes
    assert line.startswith("tiny.gguf is converted again at every start: ")
    assert " would be more than a tenth of the " in line
    assert left() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free))
    assert torch.equal(logits(load(file, note=notes.append)), direct)
    assert (len(notes), len(left())) == (1, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 0))
    load(file, note=notes.append)
    assert len(notes) == 1, "what is there needs no room"


def test_a_model_with_a_name_may_take_all_the_room(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = replace(resolve(str(file)), preset=PRESETS[0])
    free = 4 * sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(file).tensors)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free - 1))
    with pytest.raises(CacheUnusable, match=r"would be more than the [\d.]+ \w+ free"):
        converted(source, "float32", lambda: None, ignore_progress)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free))
    assert converted(source, "float32", lambda: None, ignore_progress).gguf_file is None


def test_a_cache_that_cannot_be_written(file: Path, unusable: Path) -> None:
    notes: list[str] = []
    load(file, note=notes.append)
    (line,) = notes
    assert line.startswith(f"tiny.gguf is converted again at every start: cannot write the cache {unusable}")
    assert "\n" not in line


def test_a_disk_that_fills_up_meanwhile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    notes: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(convert, "save_model", full)
        load(file, note=notes.append)
    (line,) = notes
    assert "No space left on device" in line
    assert left() == []


def test_all_ranks_load_alike(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another rank cannot keep the conversion, this one loads the file, too."""
    votes: list[bool] = []

    def outvoted(vote: bool, _device: str) -> bool:
        votes.append(vote)
        return False

    monkeypatch.setattr(sharding, "all_agree", outvoted)
    monkeypatch.setattr(sharding, "split", lambda model, _ranks: model)
    monkeypatch.setattr(sharding, "options", lambda _ranks: pytest.fail("loaded the conversion"))
    load(file, ranks=2)
    assert votes == [True]


def test_a_file_that_lacks_a_weight(tmp_path: Path) -> None:
    from support import tiny_models

    shapes = tiny_models._shapes()
    lost = next(name for name in shapes if "ffn_up" in name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "_shapes", lambda: {n: s for n, s in shapes.items() if n != lost})
        file = write_gguf(tmp_path / "lacking.gguf")
    with pytest.raises(ModelError, match=r"lacking\.gguf: its weights lack model\.layers\.0\.mlp\.up_proj"):
        load(file)
    assert left() == []


def test_an_unsupported_file_is_refused_before_it_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_conversion(monkeypatch)
    with pytest.raises(ModelError, match="gemma2"):
        load(write_gguf(tmp_path / "other.gguf", "gemma2"))
    assert left() == []


def test_a_file_that_cannot_be_read(file: Path) -> None:
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModelError, match=r"^tiny\.gguf cannot be read \(Permission denied\)$"):
        load(file)


def test_an_adapter_on_a_gguf_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = save_adapter(file.parent / "adapter", file)
    first = load(adapter)
    assert len(conversions()) == 1
    no_conversion(monkeypatch)
    assert torch.equal(logits(load(adapter)), logits(first))
    assert not torch.equal(logits(load(file)), logits(first))


def test_other_models_are_not_converted(tmp_path: Path) -> None:
    load(save_model(tmp_path / "model"))
    assert not conversions_folder().exists()


def test_a_conversion_is_sealed(file: Path) -> None:
    load(file)
    (conversion,) = conversions()
    assert is_intact(conversion.folder, gguf_cache._as_text(conversion.origin))
