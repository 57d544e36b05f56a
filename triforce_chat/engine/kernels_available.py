"""Whether Triton kernels can be used; asked before any module that imports Triton, and without torch."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Compute capabilities of data-centre GPUs: other chips have too little shared memory for the kernels' tiles.
ROOMY = ((8, 0), (9, 0), (10, 0), (10, 3))


def kernels_run(device: torch.device) -> bool:
    """Whether Triton kernels run on this device; on torch's "meta" device their launches are dry."""
    return device.type in ("cuda", "meta") and kernels_compile()


@cache  # the search reads folders, and every layer asks
def kernels_compile() -> bool:
    """Whether Triton is installed, and the C compiler that it needs."""
    return find_spec("triton") is not None and c_compiler() is not None


def c_compiler() -> str | None:
    """The compiler that Triton uses for its kernel launchers, found in the same way; None if there is none."""
    return os.environ.get("CC") or which("gcc") or which("clang")
