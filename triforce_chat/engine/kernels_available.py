"""Whether Triton's kernels can be used here: asked before anything of theirs is imported."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from shutil import which

import torch


def kernels_run(device: torch.device) -> bool:
    return device.type == "cuda" and kernels_compile()


@cache  # it searches folders, and is asked for every layer
def kernels_compile() -> bool:
    """Whether Triton is here and what it needs of the system."""
    return find_spec("triton") is not None and c_compiler() is not None


def c_compiler() -> str | None:
    """With which Triton makes the code that launches a kernel; looked for as it does."""
    return os.environ.get("CC") or which("gcc") or which("clang")
