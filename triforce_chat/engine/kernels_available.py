"""Whether Triton kernels can be used; asked before any module that imports Triton, and without torch."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# The first compute capability whose chips have what the kernels use: tensor cores for bfloat16, asynchronous copies,
# and no less than 99 KiB of shared memory for a program.
FIRST = (8, 0)


def kernels_run(device: torch.device) -> bool:
    """Whether Triton kernels run on this device; on torch's "meta" device their launches are dry."""
    return device.type in ("cuda", "meta") and kernels_compile()


@cache  # the search reads folders, and every layer asks
def kernels_compile() -> bool:
    """Whether Triton is installed, and the C compiler that it needs."""
    return find_spec("triton") is not None and c_compiler() is not None


def identify_triton() -> None:
    """Have Triton hash its own files, of which the names of its compiled kernels are made.

    The first launch of a process does so otherwise, and lets everybody wait for a third of a second.
    """
    with suppress(ImportError):  # it is no part of Triton's interface
        from triton.runtime.cache import triton_key

        triton_key()


def c_compiler() -> str | None:
    """The compiler that Triton uses for its kernel launchers, found in the same way; None if there is none."""
    return os.environ.get("CC") or which("gcc") or which("clang")
