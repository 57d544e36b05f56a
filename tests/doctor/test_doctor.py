"""``doctor``: every check reports ok and every problem, and none of them can crash."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import triforce_chat
from triforce_chat.cli import doctor
from triforce_chat.cli.app import app
from triforce_chat.doctor import folders, hardware, run_checks, software, stores
from triforce_chat.doctor.check_result import CheckResult
from triforce_chat.engine import kernels_available
from triforce_chat.engine.cpu_kernels import compiled
from triforce_chat.models import memory as model_memory
from triforce_chat.models import presets
from triforce_chat.models.fetch import identity
from triforce_chat.models.gguf_cache import origin_of
from triforce_chat.models.model_cache import seal
from triforce_chat.models.packed import SMOLLM2_135M
from triforce_chat.settings.paths import sessions_file
from triforce_chat.storage.sessions.store import SessionStore
from triforce_chat.ui.terminal import Screen

NAMES = [
    *("triforce-chat", "python", "torch", "transformers", "packages", "triton", "kernels"),
    *(
        "gpu",
        "memory",
        "disk",
        "state",
        "settings",
        "model",
        "converted",
        "adapter",
        "draft",
        "calibration",
        "documents",
        "sessions",
        "terminal",
    ),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRIFORCE_CHAT_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.delenv("TRIFORCE_CHAT_MODEL")  # set for all tests, and above the file
    monkeypatch.delenv("TRIFORCE_CHAT_DTYPE")
    (tmp_path / "config.toml").write_text("model = 'small'")
    return tmp_path / "cache"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.fixture
def base(cache: Path) -> Path:
    """The small model's folder, complete."""
    folder = cache / "models" / SMOLLM2_135M.model
    folder.mkdir(parents=True)
    (folder / SMOLLM2_135M.file).write_bytes(b"\0" * (17 << 20))  # too large to be read at every start
    seal(folder, identity(SMOLLM2_135M))
    return folder


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["doctor", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    return done


def only(found: Iterator[CheckResult]) -> CheckResult:
    (result,) = found
    return result


def seen(result: CheckResult) -> tuple[str, int]:
    assert bool(result.advice) == (result.status != "ok")
    return result.status, result.exit_code


# The command


@pytest.mark.usefixtures("base")
def test_all_is_well() -> None:
    done = run("--json")
    record = json.loads(done.stdout)
    assert (done.exit_code, record["schema"], record["ok"]) == (0, 1, True)
    assert [result["name"] for result in record["findings"]] == NAMES
    assert all(set(result) >= {"name", "status", "told", "advice"} for result in record["findings"])
    shown = run().stdout.splitlines()
    assert [line.split()[1] for line in shown] == NAMES
    assert shown[3].split() == ["ok", "transformers", metadata.version("transformers")]


def test_each_finding_is_one_line_with_what_to_do(settings: Path) -> None:
    settings.write_text('modle = "[bold]x"')
    done = run()
    assert done.exit_code == 2
    line = next(line for line in done.stdout.splitlines() if line.startswith("problem"))
    assert f"{settings}: no key 'modle'; did you mean 'model'? -> triforce-chat config edit" in line
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("check", "name"), [("torch", "broken"), ("terminal", "terminal")], ids=["a check", "the last one"]
)
def test_a_check_that_crashes_stops_nothing(monkeypatch: pytest.MonkeyPatch, check: str, name: str) -> None:
    def broken(*_arguments: object) -> Iterator[CheckResult]:
        raise KeyError("what is\nthis")
        yield

    if check == "torch":
        monkeypatch.setattr(run_checks, "SOFTWARE", (broken,))
    else:
        monkeypatch.setattr(hardware, check, broken)
    record = json.loads(run("--json").stdout)
    assert not record["ok"]
    crashed = next(result for result in record["findings"] if result["status"] == "problem")
    assert (crashed["name"], crashed["exit_code"]) == (name, 1)
    assert crashed["told"] == "cannot be checked: 'what is\\nthis' (KeyError)"
    assert record["findings"][-1]["name"] == "terminal"


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that need torch fail; all others work."""
    for name in [each for each in sys.modules if each.startswith("triforce_chat.models.memory")] + ["torch"]:
        monkeypatch.setitem(sys.modules, name, None)
    done = run("--json")
    found = {result["name"]: result for result in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 5
    assert {result["exit_code"] for result in found.values()} == {0, 5}
    assert found["gpu"]["told"].startswith("cannot be checked: ")
    assert found["settings"]["status"] == found["draft"]["status"] == found["terminal"]["status"] == "ok"


def test_the_first_problem_gives_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        CheckResult("a", "warning", "", "x"),
        CheckResult("b", "problem", "", "x", 5),
        CheckResult("c", "problem", "", "x", 2),
    ]
    monkeypatch.setattr(run_checks, "run_checks", lambda _screen: iter(found))
    assert run().exit_code == 5
    assert run("--json").exit_code == 5
    monkeypatch.setattr(run_checks, "run_checks", lambda _screen: iter(found[:1]))
    assert run().exit_code == 0


def test_colours_on_a_terminal() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system="standard", width=30)
    doctor.show(
        CheckResult("disk", "warning", "[red]full\x1b[31m of everything that there is", "tidy up"), console
    )
    expected = "\x1b[33mwarning \x1b[0m disk           [red]full of everything that there is -> tidy up\n"
    assert output.getvalue() == expected


# Software


@pytest.mark.parametrize("check", [software.torch, software.transformers])
def test_a_library_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[], Iterator[CheckResult]]
) -> None:
    monkeypatch.setitem(sys.modules, check.__name__, None)
    result = only(check())
    assert seen(result) == ("problem", 5)
    assert result.message.startswith("cannot be imported: ")


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(software.dependencies()).status == "ok"
    versions = {"fits": "2.1", "old": "1.0", "nightly": "3.0.dev1"}
    wanted = ["fits>=2", "old<4,>=2", "gone>=7", "nightly>=2", "elsewhere; sys_platform == 'plan9'"]
    monkeypatch.setattr(metadata, "requires", lambda _name: [*wanted, 'uvicorn>=0.40; extra == "serve"'])
    monkeypatch.setattr(software, "installed", versions.get)
    old, gone, fine = software.dependencies()
    assert seen(old) == ("warning", 0)
    assert (old.message, old.advice) == (
        "old 1.0 is installed, <4,>=2 is required",
        "pip install 'old<4,>=2'",
    )
    assert seen(gone) == ("problem", 5)
    assert (gone.message, gone.advice) == ("gone is missing", "pip install 'gone>=7'")
    assert fine.message == "fits 2.1, nightly 3.0.dev1"


def test_a_source_folder_has_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "PACKAGE", "triforce-chat-that-nobody-installed")
    assert seen(only(software.dependencies())) == ("warning", 0)


@pytest.mark.parametrize(
    ("found", "gpu", "expected", "message"),
    [
        (None, False, ("ok", 0), "not needed: there is no GPU to use it"),
        (ImportError("broken"), False, ("ok", 0), "not needed: there is no GPU to use it"),
        (
            None,
            True,
            ("warning", 0),
            "not installed: transformers' own forward is used, several times slower",
        ),
        ("3.7.1", True, ("ok", 0), "3.7.1"),
        (ImportError("no symbol: x\nmore"), True, ("problem", 5), "cannot be imported: no symbol: x"),
        (OSError(), True, ("problem", 5), "cannot be imported: OSError"),
    ],
)
def test_triton(
    monkeypatch: pytest.MonkeyPatch,
    found: str | Exception | None,
    gpu: bool,
    expected: tuple[str, int],
    message: str,
) -> None:
    def load(_name: str) -> Any:
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(__version__=found)

    monkeypatch.setattr(software, "find_spec", lambda _name: found)
    monkeypatch.setattr(software, "import_module", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    result = only(software.triton())
    assert (seen(result), result.message) == (expected, message)
    assert ("triton" in result.advice) == (result.status != "ok")


def test_triton_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_spec", lambda _name: "3.7.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels_available, "which", lambda _name: None)
    monkeypatch.delenv("CC", raising=False)
    result = only(software.triton())
    assert (result.status, result.message.split(":")[0]) == ("warning", "finds no C compiler")
    monkeypatch.setenv("CC", "my-cc")
    assert "C compiler" not in only(software.triton()).message


# Hardware


def test_gpus_have_small_tiles_where_kernels_do() -> None:
    pytest.importorskip("triton")
    from triforce_chat.engine.kernels import chip

    assert hardware.ROOMY == chip.ROOMY


@pytest.mark.parametrize(
    ("capability", "shared", "status"), [((9, 0), 227, "ok"), ((8, 9), 99, "ok"), ((7, 5), 64, "warning")]
)
def test_gpus(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], shared: int, status: str) -> None:
    major, minor = capability
    card = SimpleNamespace(name="A Card", total_memory=24 * 10**9, major=major, minor=minor)
    card.shared_memory_per_block_optin = shared << 10
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: card)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(hardware, "query_driver", lambda _fields: "580.1")
    first, second = hardware.gpu()
    assert first == second
    assert seen(first) == (status, 0)
    tiles = "; small tiles for 99 KiB of shared memory, not timed on such GPUs yet" if shared == 99 else ""
    assert first.message == f"A Card, 24.0 GB, capability {major}.{minor}, driver 580.1, CUDA 13.0{tiles}"


@pytest.mark.parametrize(
    ("card", "cuda", "status", "message"),
    [
        ("", None, "ok", "none: everything runs on the CPU"),
        ("A Card, 580.1", None, "warning", "A Card, 580.1, but this torch was built without CUDA"),
        ("A Card, 390.1", "13.0", "warning", "A Card, 390.1: the driver is too old"),
    ],
)
def test_no_gpu_that_can_be_used(
    monkeypatch: pytest.MonkeyPatch, card: str, cuda: str | None, status: str, message: str
) -> None:
    def available() -> bool:
        import warnings

        warnings.warn("the driver is too old\nupdate it", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", available)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(hardware, "query_driver", lambda _fields: card)
    result = only(hardware.gpu())
    assert (result.status, result.message) == (status, message)


@pytest.mark.parametrize(
    ("script", "said"), [("echo A Card, 580.1; echo B", "A Card, 580.1"), ("exit 9", ""), ("", "")]
)
def test_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.query_driver("name") == ""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    assert hardware.query_driver("name") == said


@pytest.mark.parametrize(
    ("free", "status", "message"),
    [(8 * 10**9, "ok", "8.0 GB free"), (10**9, "warning", "1.0 GB free"), (None, "ok", "does not report")],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, free: int | None, status: str, message: str) -> None:
    monkeypatch.setattr(model_memory, "free_bytes", lambda _device: free)
    result = only(hardware.memory())
    assert result.status == status
    assert message in result.message


def test_room_for_what_is_written(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    free = {"bytes": 10**12}
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free["bytes"]))
    disk, state = folders.folders()
    assert (disk.status, disk.message) == ("ok", f"1000.0 GB free for {cache}")
    assert (state.status, state.name) == ("ok", "state")
    free["bytes"] = 10**7
    assert [seen(each) for each in folders.folders()] == [("warning", 0), ("warning", 0)]
    assert "cache gc" in next(folders.folders()).advice
    assert not cache.exists()


def test_folders_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "file" / "cache"))
    disk, state = folders.folders()
    assert seen(disk) == ("problem", 5)
    assert seen(state) == ("warning", 0)
    assert all("cannot be written" in each.message for each in (disk, state))
    assert "TRIFORCE_CHAT_CACHE" in disk.advice
    assert "XDG_STATE_HOME" in state.advice


def test_advice_names_only_what_can_be_installed() -> None:
    assert "pip install" not in software.INSTALL  # the program is on no package index
    package = Path(triforce_chat.__file__).parent
    assert [path for path in package.rglob("*.py") if "triforce-chat[" in path.read_text()] == []


@pytest.mark.parametrize(
    ("encoding", "width", "status"), [("utf-8", 80, "ok"), ("ascii", 80, "warning"), ("utf-8", 40, "warning")]
)
def test_terminal(encoding: str, width: int, status: str) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), width=width)
    result = only(hardware.terminal(Screen(console, console, "plain")))
    assert result.status == status
    assert f"{width} columns, no colour, {encoding}" in result.message


def test_what_is_no_terminal_has_no_columns() -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=10_000)
    result = only(hardware.terminal(Screen(console, console, "bare")))
    assert "columns" not in result.message
    assert result.message.endswith("answers only")


# Files on the disk


def test_settings(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORCE_CHAT_SEED", "3")
    assert only(stores.settings()).message == f"{settings}, TRIFORCE_CHAT_SEED"
    monkeypatch.setenv("TRIFORCE_CHAT_SEED", "x")
    monkeypatch.setenv("TRIFORCE_CHAT_MODLE", "y")
    settings.write_text("chunk = 'x'\ngamma = 'y'\n")
    found = [*stores.settings()]
    assert [seen(result) for result in found] == [("problem", 2)] * 3 + [("warning", 0)]
    assert found[-1].message == "no variable 'TRIFORCE_CHAT_MODLE'; did you mean 'TRIFORCE_CHAT_MODEL'?"


def test_the_small_model(base: Path) -> None:
    assert only(stores.small_model()).message.startswith("small is intact, 18 MB in ")
    weights = base / SMOLLM2_135M.file
    before = weights.stat()
    with weights.open("r+b") as file:  # beyond what every start reads, and with the same time
        file.seek(9 << 20)
        file.write(b"!")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    result = only(stores.small_model())
    assert seen(result) == ("problem", 5)
    assert result.message == f"damaged in {base}: {SMOLLM2_135M.file}"
    (base / "manifest.json").write_text("[]")
    assert only(stores.small_model()).message.endswith(": manifest.json")
    weights.unlink()
    assert "not here yet" in only(stores.small_model()).message


def test_the_kernels(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compiled, "library", functools.cache(lambda: pytest.fail("compiled"))
    )  # by no process yet
    monkeypatch.setenv("CC", "some-compiler")
    result = only(software.cpu_kernels())
    assert seen(result) == ("ok", 0)
    assert result.message.startswith("not compiled yet; ")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    result = only(software.cpu_kernels())
    assert seen(result) == ("warning", 0)
    assert "no C compiler" in result.message
    assert "install gcc" in (result.advice or "")
    compiled.library_file().parent.mkdir(parents=True)
    compiled.library_file().touch()
    assert only(software.cpu_kernels()).message == f"compiled, in {compiled.library_file()}"
    assert compiled.library_file().is_relative_to(cache)


def test_the_small_model_tells_its_format(base: Path, settings: Path) -> None:
    assert only(stores.small_model()).message == (
        f"small is intact, 18 MB in {base}; weights in Q4_1, as they are"
    )
    settings.write_text("model = 'small'\ndtype = 'float32'")
    assert only(stores.small_model()).message.endswith("; weights in Q4_1, expanded to float32")


def test_the_small_model_is_not_here(cache: Path) -> None:
    result = only(stores.small_model())
    assert seen(result) == ("warning", 0)
    assert "not here yet" in result.message
    assert not cache.exists()


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("smollm2-135m", "ok", "smollm2-135m is intact, 18 MB in "),
        ("{shipped}", "ok", "is complete"),
        ("{empty}", "problem", "config.json is missing"),
        ("{absent}", "warning", "is not on this machine"),
    ],
)
def test_the_model_of_the_settings(
    base: Path, tmp_path: Path, settings: Path, model: str, status: str, message: str
) -> None:
    assert [*stores.chosen_model()] == []
    (tmp_path / "empty").mkdir()
    folders = {
        "shipped": presets.shipped("context"),
        "empty": tmp_path / "empty",
        "absent": tmp_path / "absent",
    }
    settings.write_text(f"model = '{model.format(**folders)}'")
    result = only(stores.chosen_model())
    assert result.status == status
    assert message in result.message
    assert base.exists()


def test_shipped_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, draft = stores.shipped_weights()
    assert (adapter.status, draft.status) == ("ok", "ok")
    for name in ("context", "draft"):
        shutil.copytree(presets.shipped(name), tmp_path / name)
    monkeypatch.setattr(presets, "shipped", lambda name: str(tmp_path / name))
    os.truncate(tmp_path / "draft" / "model.safetensors", 1 << 20)
    (tmp_path / "context" / "rope.json").unlink()
    adapter, draft = stores.shipped_weights()
    assert [seen(adapter), seen(draft)] == [("problem", 5)] * 2
    assert "rope.json is missing" in adapter.message


def test_converted_models(tmp_path: Path) -> None:
    assert only(stores.converted_models()).message == "no GGUF file yet"
    folder = tmp_path / "cache" / "models" / "gguf"
    files = [tmp_path / "a b.gguf", tmp_path / "c.gguf"]
    for file in files:
        file.write_bytes(b"GGUF")
        made = folder / file.stem
        made.mkdir(parents=True)
        (made / "model.safetensors").write_bytes(b"\0" * (3 << 20))
        seal(made, json.dumps(asdict(origin_of(file, "bfloat16"))))
    result = only(stores.converted_models())
    assert seen(result) == ("ok", 0)
    assert result.message == f"2 from GGUF files, 6 MB in {folder}"
    files[0].unlink()
    result = only(stores.converted_models())
    assert seen(result) == ("warning", 0)
    assert (
        result.message == f"1 of 2 are out of date: their GGUF files are gone or changed (3 MB in {folder})"
    )
    assert result.advice == f"triforce-chat models rm '{files[0]}'"


def test_documents(cache: Path) -> None:
    assert only(stores.document_cache()).message.startswith("0 texts, 0 B of at most ")
    (cache / "kv").mkdir(parents=True)
    (cache / "kv" / "x.safetensors").write_bytes(b"what is this")
    result = only(stores.document_cache())
    assert seen(result) == ("warning", 0)
    assert result.message == f"1 of 1 files are damaged or useless (12 B) in {cache / 'kv'}"
    assert result.advice == "triforce-chat cache gc"


def test_sessions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert only(stores.sessions()).message == "none stored yet"
    SessionStore(sessions_file()).close()
    assert only(stores.sessions()).message.startswith(f"0 in {sessions_file()} (")
    with sessions_file().open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 4000)
    result = only(stores.sessions())
    assert seen(result) == ("problem", 1)
    assert result.message.startswith(f"{sessions_file()}: ")
