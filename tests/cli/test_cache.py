"""The document cache as a user meets it: reopening a book, listing what is cached, deleting it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import save_model
from typer.testing import CliRunner

from triforce_chat.cli.app import app
from triforce_chat.models.load import load_config
from triforce_chat.models.metadata_cache import metadata_folder
from triforce_chat.models.registry import resolve


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shelf")
    torch.manual_seed(2)
    save_model(made / "tiny", max_position_embeddings=8192, initializer_range=0.3)
    (made / "a.txt").write_text("the first text " * 60)
    (made / "b.txt").write_text("the second text " * 60)
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


Run = Callable[..., Any]


@pytest.fixture
def run(shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(cache))

    def called(*arguments: str, stdin: str | None = None) -> Any:
        return CliRunner().invoke(app, arguments, input=stdin)

    return called


def asked(run: Run, *arguments: str) -> dict[str, Any]:
    flags = ("--model", "tiny", "--device", "cpu", "--max-tokens", "8", "--stack", "lookup", "--json")
    done = run("ask", *arguments, *flags)
    assert done.exit_code == 0, done.stderr
    written()
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def written() -> None:
    """Wait as a process does when it ends."""
    import gc
    import threading

    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "kv-writer":
            thread.join(60)


def listed(run: Run) -> dict[str, Any]:
    done = run("cache", "ls", "--json")
    assert done.exit_code == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_a_book_that_is_opened_again_is_not_read_again(run: Run) -> None:
    first = asked(run, "a.txt", "Why?")
    again = asked(run, "a.txt", "Why?")
    assert first["usage"]["cached_tokens"] == 0
    assert again["usage"]["cached_tokens"] > 0.9 * again["usage"]["prompt_tokens"]
    assert again["token_ids"] == first["token_ids"]
    other = asked(run, "a.txt", "b.txt", "And what of this?")
    assert other["usage"]["cached_tokens"] == again["usage"]["cached_tokens"]
    assert asked(run, "b.txt", "Why?")["usage"]["cached_tokens"] == 0


def test_without_the_cache_nothing_is_touched(run: Run, cache: Path) -> None:
    first = asked(run, "a.txt", "Why?", "--no-cache")
    assert [path.name for path in cache.iterdir()] == ["models"]  # of the model, not of the documents
    assert asked(run, "a.txt", "Why?")["token_ids"] == first["token_ids"]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (cache / "kv").iterdir()}
    assert len(before) == 3
    assert asked(run, "a.txt", "Why?", "--no-cache")["usage"]["cached_tokens"] == 0
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (cache / "kv").iterdir()} == before


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "a.txt", "--tokens", "4", "--stack", "lookup", "--context", "2048"),
        ("bench", "a.txt", "--contexts", "600", "--stacks", "lookup", "--tokens", "2", "--repeats", "1"),
    ],
)
def test_what_measures_does_not_remember(run: Run, cache: Path, command: tuple[str, ...]) -> None:
    done = run(*command, "--model", "tiny", "--device", "cpu", "--json")
    assert done.exit_code == 0, done.stderr
    assert [path.name for path in cache.iterdir()] == ["models"]


def test_a_cache_without_room(run: Run, cache: Path) -> None:
    first = asked(run, "a.txt", "Why?", "--cache-size", "0")
    assert asked(run, "a.txt", "Why?", "--cache-size", "0")["usage"] == first["usage"]
    assert [*(cache / "kv").iterdir()] == []


def test_ls(run: Run, cache: Path) -> None:
    nothing = listed(run)
    assert (nothing["texts"], nothing["bytes"], nothing["folder"]) == ([], 0, str(cache / "kv"))
    assert not cache.exists()
    asked(run, "a.txt", "Why?")
    asked(run, "a.txt", "b.txt", "Why?")
    both = listed(run)
    assert [(text["titles"], text["complete"], text["model"]) for text in both["texts"]] == [
        (["a", "b"], True, "tiny")
    ]
    assert both["bytes"] == sum(path.stat().st_size for path in (cache / "kv").iterdir()) < both["limit"]
    shown = run("cache", "ls")
    assert "a + b" in shown.stdout
    assert f"{both['texts'][0]['tokens']:,}" in shown.stdout
    assert str(cache) in shown.stderr


def test_rm(run: Run, cache: Path) -> None:
    asked(run, "a.txt", "Why?")
    asked(run, "b.txt", "Why?")
    ids = {text["titles"][0]: text["id"] for text in listed(run)["texts"]}
    kept = run("cache", "rm", ids["a"], stdin="n\n")
    assert (kept.exit_code, len(listed(run)["texts"])) == (2, 2)
    assert "nothing deleted" in kept.stderr
    assert "Delete a (" in kept.stderr
    gone = run("cache", "rm", ids["a"][:6], stdin="y\n")
    assert gone.exit_code == 0
    assert [text["id"] for text in listed(run)["texts"]] == [ids["b"]]
    assert asked(run, "a.txt", "Why?")["usage"]["cached_tokens"] == 0
    everything = run("cache", "rm", "--all", "--yes")
    assert (everything.exit_code, [*(cache / "kv").iterdir()]) == (0, [])
    assert run("cache", "rm", "--all", "--yes").exit_code == 0


@pytest.mark.parametrize("arguments", [(), ("--all", "abc"), ("nothing",), ("",)])
def test_rm_of_what_is_not_there(run: Run, arguments: tuple[str, ...]) -> None:
    done = run("cache", "rm", *arguments, "--yes")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_gc(run: Run, cache: Path) -> None:
    assert run("cache", "gc").exit_code == 0
    asked(run, "a.txt", "Why?")
    (cache / "kv" / "x.safetensors").write_bytes(b"what is this")
    assert run("cache", "gc").exit_code == 0
    assert len([*(cache / "kv").iterdir()]) == 3
    done = run("cache", "gc", "--size", "0")
    assert "freed" in done.stderr
    assert [*(cache / "kv").iterdir()] == []


def test_what_was_read_of_models_is_listed_and_cleared(run: Run, tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    assert "small files" not in run("cache", "ls").stderr
    load_config(resolve(str(model)))
    assert run("cache", "gc").stderr == "0 B freed\n"
    assert f"small files in {metadata_folder()}\n" in run("cache", "ls").stderr
    shutil.rmtree(model)
    assert run("cache", "gc").stderr != "0 B freed\n"
    assert not list(metadata_folder().iterdir())
    load_config(resolve(str(save_model(tmp_path / "other"))))
    assert run("cache", "rm", "--all", "--yes").exit_code == 0
    assert not list(metadata_folder().iterdir())
