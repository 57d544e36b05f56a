"""The library is compiled once, by any number of processes, and its absence has a reason instead of an exception."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from support.quantized import random_matrix

from triforce_chat.engine.cpu_kernels import compiled

NO_COMPILER = "there is no C compiler (cc, gcc, clang); install one, or name it in CC"
SHORT = """
int best_path(void) { return 0; }
void project(void) {}
void dequantize(void) {}
void attend(void) {}
void rotate(void) {}
"""


@pytest.fixture(autouse=True)
def _forgotten(empty_cache: Path) -> Iterator[None]:
    """Each test has a cache folder of its own and loads the library anew."""
    assert not empty_cache.exists()
    compiled.library.cache_clear()
    yield
    compiled.library.cache_clear()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A source that compiles in no time, where a compiler is installed."""
    try:
        compiled._compiler()
    except compiled.Unusable as problem:
        pytest.skip(str(problem))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "short.c").write_text(SHORT)
    monkeypatch.setattr(compiled, "FOLDER", folder)


def kept(tmp_path: Path) -> list[Path]:
    """What lies in the cache folder that the tests use."""
    return sorted((tmp_path / "cache" / "kernels").glob("*"))


@pytest.mark.usefixtures("short")
def test_a_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.library().reason is None
    (file,) = kept(tmp_path)
    monkeypatch.setattr(compiled, "_compile", lambda *_: pytest.fail("compiled again"))
    compiled.library.cache_clear()
    assert compiled.library().library is not None
    assert kept(tmp_path) == [file]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["short.c", "other.h"])
def test_another_source_is_another_library(name: str, tmp_path: Path) -> None:
    compiled.library()
    (compiled.FOLDER / name).write_text(SHORT + "int other;")
    compiled.library.cache_clear()
    assert compiled.library().reason is None
    assert len(kept(tmp_path)) == 2


@pytest.mark.usefixtures("short")
def test_a_damaged_library_is_compiled_again(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    (folder / f"quantized-{compiled._key()}.so").write_bytes(b"no library")
    assert compiled.library().reason is None
    assert len(kept(tmp_path)) == 1


@pytest.mark.usefixtures("short")
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder belongs")
    assert compiled.library().library is not None


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiled.obstacle() == compiled.library().reason == NO_COMPILER
    with pytest.raises(RuntimeError, match="no C compiler"):
        random_matrix(Kind.Q4_0, 2, 32).product(torch.ones(1, 32))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("false", "fails: exit code 1"),
        ("/nowhere/cc", "cannot be run"),
        ("true", "made nothing"),
        ("'", "CC is no command"),
        ("sh -c 'test $1 = --version || { echo no room >&2; exit 2; }' cc", "fails: no room"),
    ],
)
def test_a_compiler_that_fails(
    command: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", command)
    found = compiled.library()
    assert found.library is None
    assert found.reason is not None
    assert reason in found.reason
    assert not kept(tmp_path)


@pytest.mark.usefixtures("short")
def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    code = (
        "import pathlib; from triforce_chat.engine.cpu_kernels import compiled;"
        f"compiled.FOLDER = pathlib.Path({str(compiled.FOLDER)!r});"
        "found = compiled.library(); assert found.library, found.reason"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait(300) for process in started] == [0, 0]
    assert len(kept(tmp_path)) == 1


def test_threads_are_torch_s_own() -> None:
    """Else two pools of threads would fight for the cores."""
    (name,) = compiled._threads()
    assert name == "-fopenmp" or Path(name).parent.parent == Path(torch.__file__).parent
    if compiled.library().library is not None and Path("/proc/self/maps").exists():
        mapped = Path("/proc/self/maps").read_text().split()
        assert len({word for word in mapped if "libgomp" in word}) == 1
