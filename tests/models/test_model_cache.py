"""A cached folder is complete or absent, whatever happens to it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from triforce_chat.cache_folder import cache_folder
from triforce_chat.errors import ModelError
from triforce_chat.models import model_cache
from triforce_chat.models.model_cache import MANIFEST, ensure, is_intact
from triforce_chat.models.progress import ignore_progress

SOURCE = "abc"
LARGE = b"\0" * 5000


class Builder:
    """Fills a folder with a small and a large file and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "config.json").write_text("{}")
        (folder / "weights").write_bytes(LARGE)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setattr(model_cache, "SMALL_BYTES", 1000)
    monkeypatch.setattr(model_cache, "HEAD_BYTES", 100)
    return Builder()


@pytest.fixture
def folder(tmp_path: Path, build: Builder) -> Path:
    return ensure(tmp_path / "models" / "m", SOURCE, build, ignore_progress)


def flip_byte(path: Path, at: int, keep_time: bool = False) -> None:
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    later = stat.st_mtime_ns if keep_time else stat.st_mtime_ns + 1
    os.utime(path, ns=(stat.st_atime_ns, later))


def test_builds_once_and_leaves_nothing_else(folder: Path, build: Builder) -> None:
    assert ensure(folder, SOURCE, build, ignore_progress) == folder
    assert build.calls == 1
    assert sorted(path.name for path in folder.parent.iterdir() if path.suffix != ".lock") == ["m"]
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", MANIFEST, "weights"]


@pytest.mark.parametrize("name", ["config.json", "weights", MANIFEST])
def test_a_missing_file_is_built_again(folder: Path, build: Builder, name: str) -> None:
    (folder / name).unlink()
    ensure(folder, SOURCE, build, ignore_progress)
    assert build.calls == 2
    assert is_intact(folder, SOURCE)


@pytest.mark.parametrize("name", ["config.json", "weights", MANIFEST])
def test_a_truncated_file_is_built_again(folder: Path, build: Builder, name: str) -> None:
    path = folder / name
    os.truncate(path, path.stat().st_size - 1)
    ensure(folder, SOURCE, build, ignore_progress)
    assert build.calls == 2
    assert (folder / "weights").read_bytes() == LARGE


def test_a_flipped_byte_in_large_weights_is_found_by_their_time(folder: Path) -> None:
    flip_byte(folder / "weights", at=4000)
    assert not is_intact(folder, SOURCE)


@pytest.mark.parametrize(("name", "at"), [("config.json", 0), ("weights", 10)])
def test_small_files_and_headers_are_hashed_always(folder: Path, name: str, at: int) -> None:
    flip_byte(folder / name, at, keep_time=True)
    assert not is_intact(folder, SOURCE)


def test_a_touched_but_equal_file_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(folder / "weights", ns=(1, 1))
    assert is_intact(folder, SOURCE)
    hashed: list[str] = []
    sha256_of = model_cache.sha256_of

    def noting(path: Path) -> str:
        hashed.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(model_cache, "sha256_of", noting)
    assert is_intact(folder, SOURCE)
    assert hashed == ["config.json"]


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        "null",
        "[" * 200_000,
        json.dumps({"format": model_cache.FORMAT, "source": SOURCE, "files": {}}),
        json.dumps({"format": model_cache.FORMAT, "source": SOURCE, "files": {"weights": {"size": 1}}}),
        json.dumps({"format": model_cache.FORMAT + 1, "source": SOURCE, "files": {"weights": {}}}),
    ],
)
def test_an_invalid_manifest_is_damage(folder: Path, manifest: str) -> None:
    (folder / MANIFEST).write_text(manifest)
    assert not is_intact(folder, SOURCE)


def test_another_source_is_built_again(folder: Path, build: Builder) -> None:
    ensure(folder, "another", build, ignore_progress)
    assert build.calls == 2


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "weights").write_bytes(LARGE)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path / "m", SOURCE, interrupted, ignore_progress)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path, build: Builder) -> None:
    stale = tmp_path / ".m.killed"
    stale.mkdir()
    (stale / "weights").write_bytes(LARGE)
    ensure(tmp_path / "m", SOURCE, build, ignore_progress)
    assert not stale.exists()


def test_a_disk_error_is_one_line(tmp_path: Path, build: Builder) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match=r"^cannot write the cache .*TRIFORCE_CHAT_CACHE") as caught:
        ensure(tmp_path / "file" / "m", SOURCE, build, ignore_progress)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 5


def test_the_environment_moves_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere"
    monkeypatch.delenv("TRIFORCE_CHAT_CACHE")
    assert cache_folder().name == "triforce-chat" or "triforce-chat" in cache_folder().parts
