"""Kernels that begin before the one before them is over (programmatic dependent launch), from Hopper GPUs on.

Such a kernel waits by itself before it touches anything that is not constant, and so each one sees all that any before
it wrote. Until then it loads weights.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver

FIRST = 90  # compute capability


def overlap() -> bool:
    """Whether the GPU that is launched on, or compiled for, can do that; Triton's interpreter cannot."""
    return not knobs.runtime.interpret and driver.active.get_current_target().arch >= FIRST


@triton.jit
def wait_for_previous(overlaps: tl.constexpr):
    """Wait until the kernel before this one is over, and let the next one begin."""
    if overlaps:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
