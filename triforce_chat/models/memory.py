"""Names the processor and measures the free memory of a device."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

MEMINFO, CPUINFO = Path("/proc/meminfo"), Path("/proc/cpuinfo")
# A container's memory limit and use in bytes, from version 2 of Linux control groups.
LIMIT, USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
STATISTICS = Path("/sys/fs/cgroup/memory.stat")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can be allocated without swapping; None if the system does not report it."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    known = [count for count in (_available(), _free_in_cgroup()) if count is not None]
    return min(known, default=None)


def processor() -> str:
    """The processor's name and its number of logical cores, as far as the system tells them."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} logical cores" if names else platform.machine()


def _available() -> int | None:
    try:
        lines = MEMINFO.read_text("ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _free_in_cgroup() -> int | None:
    try:
        used = int(USED.read_text("ascii")) - _file_pages()
        return max(0, int(LIMIT.read_text("ascii")) - used)
    except (OSError, ValueError):  # no control group, or the limit "max"
        return None


def _file_pages() -> int:
    """Bytes of cached files, which the kernel frees on demand."""
    try:
        lines = STATISTICS.read_text("ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, StopIteration):
        return 0
