"""``triforce-chat models``: list, show, pull, rm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from support.tiny_models import save_model
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.models import presets
from triforce_chat.models.model_cache import ensure
from triforce_chat.models.packed import SMOLLM2_135M
from triforce_chat.models.presets import PRESETS, Preset
from triforce_chat.models.progress import ignore_progress
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


def test_pull_fetches_target_and_draft(hub: Path) -> None:
    save_model(hub / "models--o--big" / "snapshots" / "abc")
    code, out, err = run("pull", "big")
    assert (code, out, err.splitlines()) == (0, "", ["big is downloaded", "small is downloaded"])
    assert (hub / "models--o--small").is_dir()
    assert run("pull", "big", "--quiet") == (0, "", "")


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
    assert not list(own.parent.iterdir())


@pytest.mark.parametrize(
    ("size", "told"), [(7, "7 B"), (999, "999 B"), (12_300, "12 KB"), (5.4e8, "540 MB"), (1.35e10, "13.5 GB")]
)
def test_sizes_for_people(size: float, told: str) -> None:
    assert readable(size) == told
