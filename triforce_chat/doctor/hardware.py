"""Checks of the machine: GPU, memory, disk and terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from triforce_chat.doctor.check_result import CheckResult, ok, warning
from triforce_chat.settings.sizes import readable

if TYPE_CHECKING:
    from triforce_chat.ui.terminal import Screen

LOW_BYTES = 2 * 10**9  # enough for the small model; its conversion needs about a third
MIN_COLUMNS = 60
PATIENCE = 10  # seconds for the driver to answer
BF16 = (8, 0)  # the first compute capability with bfloat16 arithmetic
ROOMY = 163_840  # bytes of shared memory from which on kernels have the tiles that were timed, as their chip.py says
DETAILS = {"live": "live panel", "plain": "no live panel", "bare": "answers only"}
CUDA_WHEELS = "install a torch for CUDA: https://pytorch.org/get-started/locally"


def gpu() -> Iterator[CheckResult]:
    import torch

    with warnings.catch_warnings(record=True) as caught:  # a driver that is too old warns
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    if usable:
        yield from map(_device, range(torch.cuda.device_count()))
        return
    present = query_driver("name,driver_version")
    if not present:
        yield ok("gpu", "none: everything runs on the CPU")
    elif torch.version.cuda is None:
        yield warning("gpu", f"{present}, but this torch was built without CUDA", CUDA_WHEELS)
    else:
        reason = str(caught[0].message).split("\n")[0] if caught else "torch does not find it"
        yield warning("gpu", f"{present}: {reason}", "update the driver, or check CUDA_VISIBLE_DEVICES")


def _device(index: int) -> CheckResult:
    import torch

    device: Any = torch.cuda.get_device_properties(index)
    driver = query_driver("driver_version") or "unknown"
    capability = f"{device.major}.{device.minor}"
    memory = readable(device.total_memory)
    message = f"{device.name}, {memory}, capability {capability}, driver {driver}, CUDA {torch.version.cuda}"
    if (device.major, device.minor) < BF16:
        return warning("gpu", message, "it has no bfloat16 arithmetic: pass --dtype float16")
    shared: int = device.shared_memory_per_block_optin
    tiles = (
        ""
        if shared >= ROOMY
        else f"; small tiles for {shared >> 10} KiB of shared memory, not timed on such GPUs yet"
    )
    return ok("gpu", message + tiles)


def query_driver(fields: str) -> str:
    """nvidia-smi's answer for the first GPU; empty without a GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()


def memory() -> Iterator[CheckResult]:
    import torch

    from triforce_chat.models.memory import free_bytes

    free = free_bytes(torch.device("cpu"))
    if free is None:
        yield ok("memory", "this system does not report how much is free")
    elif free < LOW_BYTES:
        yield warning("memory", f"{readable(free)} free", "close other programs, or pass --context")
    else:
        yield ok("memory", f"{readable(free)} free")


def terminal(screen: Screen) -> Iterator[CheckResult]:
    console = screen.out
    kind = os.environ.get("TERM", "unknown")
    size = "not for this output" if screen.detail == "bare" else f"{console.width} columns"
    message = f"{kind}, {size}, {console.color_system or 'no colour'}, {console.encoding}"
    if not console.encoding.lower().startswith("utf"):
        yield warning("terminal", message, "set a UTF-8 locale, for example LANG=C.UTF-8")
    elif console.width < MIN_COLUMNS:
        yield warning("terminal", message, f"the live panel needs {MIN_COLUMNS} columns or more")
    else:
        yield ok("terminal", f"{message}, {DETAILS[screen.detail]}")
