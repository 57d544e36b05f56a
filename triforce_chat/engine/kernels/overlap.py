"""Kernels that begin while the one ahead still runs (programmatic dependent launch), on Hopper GPUs and later ones.

A kernel that is launched so may touch nothing that another one writes before it has called ``follow``, which waits
until the kernel ahead is over; so every one of them calls it, and each waits for all before it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

OVERLAPS = False  # the one switch; read at every launch
HOPPER = 9  # compute capability


def options() -> dict[str, bool]:
    """What every launch passes on."""
    on = OVERLAPS and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= HOPPER
    return {"overlaps": True, "launch_pdl": True} if on else {"overlaps": False}


@triton.jit
def follow(overlaps: tl.constexpr):
    """Let the next kernel begin and wait for the end of the one ahead."""
    if overlaps:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(at):
    """Ask the L2 cache for the lines at these addresses."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [at.to(tl.uint64, bitcast=True)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
