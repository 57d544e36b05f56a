"""The machine: accelerator, memory, disk, and the terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from triforce_chat.doctor.check_result import Finding, ok, warning
from triforce_chat.settings.paths import CACHE_VARIABLE, cache_folder
from triforce_chat.settings.sizes import readable

if TYPE_CHECKING:
    from triforce_chat.ui.terminal import Screen

FEW_BYTES = 2 * 10**9  # the default model needs less than that, and its conversion about a third
NARROW = 60  # columns
PATIENCE = 10  # seconds for the driver to answer
BF16 = (8, 0)  # the first compute capability with bfloat16 arithmetic
SHOWN = {"live": "live panel", "plain": "no live panel", "bare": "answers alone"}
CUDA_WHEELS = "install a torch for CUDA: https://pytorch.org/get-started/locally"


def gpu() -> Iterator[Finding]:
    import torch

    with warnings.catch_warnings(record=True) as told:  # of a driver that is too old
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    if usable:
        yield from map(_device, range(torch.cuda.device_count()))
        return
    present = driver_says("name,driver_version")
    if not present:
        yield ok("gpu", "none: everything runs on the CPU")
    elif torch.version.cuda is None:
        yield warning("gpu", f"{present}, but this torch was built without CUDA", CUDA_WHEELS)
    else:
        reason = str(told[0].message).split("\n")[0] if told else "torch does not find it"
        yield warning("gpu", f"{present}: {reason}", "update the driver, or check CUDA_VISIBLE_DEVICES")


def _device(index: int) -> Finding:
    import torch

    device = torch.cuda.get_device_properties(index)
    driver = driver_says("driver_version") or "unknown"
    capability = f"{device.major}.{device.minor}"
    memory = readable(device.total_memory)
    told = f"{device.name}, {memory}, capability {capability}, driver {driver}, CUDA {torch.version.cuda}"
    if (device.major, device.minor) < BF16:
        return warning("gpu", told, "it has no bfloat16 arithmetic: pass --dtype float16")
    return ok("gpu", told)


def driver_says(fields: str) -> str:
    """What nvidia-smi tells of the first GPU; empty without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()


def memory() -> Iterator[Finding]:
    import torch

    from triforce_chat.models.memory import free_bytes

    free = free_bytes(torch.device("cpu"))
    if free is None:
        yield ok("memory", "this system does not tell how much is free")
    elif free < FEW_BYTES:
        yield warning("memory", f"{readable(free)} free", "close other programs, or pass --context")
    else:
        yield ok("memory", f"{readable(free)} free")


def disk() -> Iterator[Finding]:
    folder = cache_folder()
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    told = f"{readable(free)} free for {folder}"
    if not os.access(there, os.W_OK):
        yield warning("disk", f"{folder} cannot be written", f"{CACHE_VARIABLE} names another folder")
    elif free < FEW_BYTES:
        yield warning("disk", told, "make room: 'triforce-chat cache gc --size 0', 'triforce-chat models rm'")
    else:
        yield ok("disk", told)


def terminal(screen: Screen) -> Iterator[Finding]:
    console = screen.out
    kind = os.environ.get("TERM", "unknown")
    told = f"{kind}, {console.width} columns, {console.color_system or 'no colour'}, {console.encoding}"
    if not console.encoding.lower().startswith("utf"):
        yield warning("terminal", told, "set a UTF-8 locale, for example LANG=C.UTF-8")
    elif console.width < NARROW:
        yield warning("terminal", told, f"the live panel wants {NARROW} columns or more")
    else:
        yield ok("terminal", f"{told}, {SHOWN[screen.detail]}")
