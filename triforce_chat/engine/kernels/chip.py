"""How much memory the chip has that kernels are launched on, or compiled for, and what a program may take of it.

Tilings were measured on Hopper. Chips of data centres get the same ones; those of other GPUs have half of the memory,
and get smaller tiles, of which again two programs fit a multiprocessor.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from triton import knobs
from triton.runtime import driver

HOPPER = 232_448  # bytes of shared memory that a program may have there
ROOMY = 163_840  # from so many bytes on, tilings are those of Hopper
RESERVED = 1_024  # bytes that the system reserves per program


def shared_memory() -> int:
    """Bytes of shared memory that one program may have; Triton's interpreter has as much as Hopper."""
    if knobs.runtime.interpret:
        return HOPPER
    return _most(driver.active.utils, driver.active.get_current_device())


@cache  # every launch asks
def _most(utils: Any, device: int) -> int:
    size: int = utils.get_device_properties(device)["max_shared_mem"]
    return size


def is_roomy() -> bool:
    """Whether the chip takes the tiles of Hopper."""
    return shared_memory() >= ROOMY


def share() -> int:
    """Bytes for each of two programs per multiprocessor."""
    return (HOPPER if is_roomy() else shared_memory()) // 2 - RESERVED
