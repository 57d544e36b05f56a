"""The largest resident memory of this process; no torch, as it is also asked where that would be the most of it."""

from __future__ import annotations

import sys
from pathlib import Path


def resident_peak_bytes() -> int:
    """Largest resident memory, on Linux since the last reset (a 5 in /proc/self/clear_refs)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
