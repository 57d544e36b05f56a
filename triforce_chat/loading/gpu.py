"""What the CUDA driver says about a GPU, asked without torch, whose import takes seconds."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

DRIVER = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine."""

    capability: tuple[int, int]  # compute capability: (9, 0) for Hopper
    memory: int  # bytes, free or not
    shared_memory: int  # bytes of it that a program may have on the chip


def find_gpu(device: str) -> Gpu | None:
    """The GPU that a device setting such as "auto", "cuda" or "cuda:1" names; None if there is none.

    No context is created on it, which would take memory there.
    """
    number = _number(device)
    if number is None:
        return None
    try:
        driver = ctypes.CDLL(DRIVER)
        return _gpu(driver, number)
    except (OSError, AttributeError):  # no driver, or one that lacks a function
        return None


def begin_context(device: str) -> Thread | None:
    """Have another thread create the GPU's primary context, in which torch works: a third of a second.

    None for a device setting that names no GPU. Where it cannot be created, torch will say why.
    """
    number = _number(device)
    if number is None:
        return None
    ahead = Thread(target=_retain, args=(number,), name="CUDA context")
    ahead.start()
    return ahead


def _retain(number: int) -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    with suppress(OSError, AttributeError):  # no driver, or one that lacks a function
        driver = ctypes.CDLL(DRIVER)
        if not (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number)):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _number(device: str) -> int | None:
    """The number of the GPU that a device setting names, or of the first one."""
    named = re.fullmatch(r"(?:auto|cuda)(?::([0-9]+))?", device)
    return None if named is None else int(named[1] or 0)


def count_gpus() -> int:
    """How many GPUs this process may use."""
    number = ctypes.c_int()
    try:
        driver = ctypes.CDLL(DRIVER)
        failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else number.value


def _gpu(driver: ctypes.CDLL, number: int) -> Gpu | None:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    major, minor, shared = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), number)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(shared), SHARED, device)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    )
    return None if failed else Gpu((major.value, minor.value), memory.value, shared.value)
