"""Names of what a figure was measured on, and how much memory it took."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import torch

from triforce_chat import __version__
from triforce_chat.lab.resident import resident_peak_bytes
from triforce_chat.models.memory import processor


def machine() -> dict[str, str | int]:
    """Processor, accelerator and versions, for the record beside every figure."""
    found: dict[str, str | int] = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "triforce_chat": __version__,
    }
    if torch.cuda.is_available():
        found["accelerator"] = torch.cuda.get_device_name()
        found["accelerators"] = torch.cuda.device_count()
    return found


def finish(device: torch.device) -> None:
    """Wait until a device has done all its work: before that, a clock would flatter it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak() -> None:
    """Forget the peak so far, where the system can."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """Largest memory since the last reset: the device's where there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resident_peak_bytes()
