"""Where Python keeps no bytecode of torch, this program does, in its cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from triforce_chat.bytecode import KEPT

TOLD = {"PYTHONDONTWRITEBYTECODE": "1"}
Start = Callable[..., set[str]]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package that is found as torch, without bytecode."""
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return package


@pytest.fixture
def start(tmp_path: Path, installed: Path) -> Start:
    """Runs the program; returns the names of the files whose bytecode it has kept."""

    def run(**environment: str) -> set[str]:
        own = {"PYTHONPATH": str(installed.parent), "TRIFORCE_CHAT_CACHE": str(tmp_path / "cache")}
        inherited = {name: value for name, value in os.environ.items() if name not in TOLD}
        command = [sys.executable, "-m", "triforce_chat", "--version"]
        done = subprocess.run(
            command, env={**inherited, **own, **environment}, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return {path.name.partition(".")[0] for path in (tmp_path / "cache").rglob("*.pyc")}

    return run


def test_what_is_imported_is_kept(start: Start, tmp_path: Path) -> None:
    assert {"app", "typing", "typer"} & start(**TOLD) >= {"app"}
    [folder] = (tmp_path / "cache" / "bytecode").iterdir()
    assert folder.stat().st_mode & 0o777 == (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.pyc")}
    start(**TOLD)
    assert times == {path: path.stat().st_mtime_ns for path in folder.rglob("*.pyc")}


def test_where_python_keeps_it_nothing_changes(start: Start, installed: Path, tmp_path: Path) -> None:
    assert not start()  # Python will write it itself
    assert not start(**TOLD, PYTHONPYCACHEPREFIX=str(tmp_path / "elsewhere"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(installed)], check=True)
    assert not start(**TOLD)


def test_without_a_cache_there_is_none(start: Start, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert not start(**TOLD)


def test_bytecode_of_old_installations_goes(start: Start, tmp_path: Path) -> None:
    for number in range(KEPT):
        made = tmp_path / "cache" / "bytecode" / f"old-{number}"
        made.mkdir(parents=True)
        os.utime(made, (number, number))
    assert start(**TOLD)
    names = {path.name for path in (tmp_path / "cache" / "bytecode").iterdir()}
    assert len(names) == KEPT
    assert "old-0" not in names
