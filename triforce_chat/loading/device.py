"""Chooses device and dtype, and limits the GPU memory of the process."""

from __future__ import annotations

import re

import torch

from triforce_chat.engine.cache.quantization import FP8, format_name
from triforce_chat.engine.kernels_available import FIRST
from triforce_chat.errors import UsageError
from triforce_chat.loading.cpu_speed import bfloat16_pays
from triforce_chat.loading.gpu import find_gpu
from triforce_chat.settings.settings import AUTO, FLOAT8, QUANTIZED, STORED, Settings
from triforce_chat.settings.sizes import readable

READS_FP8 = (8, 9)  # the first compute capability that converts it
QUICKER_ON_GPU = False  # whether a step with quantized weights takes less time than one with bfloat16 ones


def device_and_dtype(settings: Settings) -> tuple[str, torch.dtype]:
    """The device and the dtype of the weights. Raises UsageError for a device that this machine lacks."""
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.split(":")[0]
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise UsageError(f"no device '{device}'; choose auto, cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device on this machine; choose --device cpu")
    return device, dtype_on(kind, settings)


def dtype_on(kind: str, settings: Settings) -> torch.dtype:
    """The dtype in the settings, or the default of a "cpu" or "cuda" device.

    On a CPU that is fp32 unless the CPU has fast bfloat16 arithmetic, which most lack. Several processes that share a
    model on CPUs use fp32, as each would measure for itself.
    """
    if settings.dtype not in (AUTO, STORED):
        chosen: torch.dtype = getattr(torch, settings.dtype)
        return chosen
    narrow = kind != "cpu" or (settings.tp == 1 and bfloat16_pays())
    return torch.bfloat16 if narrow else torch.float32


def kv_dtype(settings: Settings, kind: str, dtype: torch.dtype, quantized: bool) -> torch.dtype:
    """The format that keys and values are kept in, on a "cpu" or "cuda" device beside weights of ``dtype``.

    ``quantized``: the weights stay quantized. One in the settings that is not offered there is ignored.
    """
    if settings.kv == FLOAT8 and has_fp8(kind):
        return FP8
    if settings.kv in QUANTIZED and not settings.offload and settings.tp == 1:
        return named(settings.kv)
    narrow = settings.kv == "float16" or (settings.kv == AUTO and quantized)
    return torch.float16 if narrow and kind == "cpu" and dtype == torch.float32 else dtype


def named(format: str) -> torch.dtype:
    """The dtype that stands for a format of keys and values."""
    found: torch.dtype = FP8 if format == FLOAT8 else getattr(torch, format)
    return found


def has_fp8(kind: str) -> bool:
    """Whether kernels on a "cpu" or "cuda" device read floating-point numbers of 8 bits.

    A GPU that is not here is taken to read them.
    """
    gpu = find_gpu(kind)
    return gpu is None or gpu.capability >= READS_FP8


def require_kv(settings: Settings, offered: torch.dtype) -> None:
    """Raises UsageError if ``offered``, which keys and values would be kept in, is not the format in the settings."""
    if settings.kv == AUTO or named(settings.kv) == offered:
        return
    own = format_name(offered)
    if settings.kv == FLOAT8:
        raise UsageError(
            f"--kv {settings.kv} needs a GPU of the Ada or Hopper generation or later: leave it out"
        )
    if settings.kv not in QUANTIZED:
        raise UsageError(f"--kv {settings.kv} is for float32 on a CPU; here they are in {own}: leave it out")
    other = "--offload" if settings.offload else f"--tp {settings.tp}"
    raise UsageError(f"--kv {settings.kv} is for one process without {other}: leave one of them out")


def keeps_format(settings: Settings, device: str) -> bool:
    """Whether quantized weights of GGUF files stay as they are even where expanded ones would fit.

    On a CPU, where they are quicker; on a GPU if that is asked for.
    """
    preferred = device.split(":")[0] == "cpu" or settings.dtype == STORED or QUICKER_ON_GPU
    return preferred and may_keep_format(settings, device)


def may_keep_format(settings: Settings, device: str) -> bool:
    """Whether quantized weights can stay as they are: in one process, unless a dtype is named.

    On a GPU, if it runs the kernels for them; one that is not here is taken to run them.
    """
    gpu = find_gpu(device)
    runs = gpu is None or gpu.capability >= FIRST
    return runs and settings.dtype in (AUTO, STORED) and settings.tp == 1


def require_own_memory_if_endless(settings: Settings, device: str) -> None:
    """Raises UsageError if a GPU is to evict keys and values that are not in its memory."""
    if settings.eviction and settings.offload and device != "cpu":
        raise UsageError(f"--endless {settings.endless} moves tokens on the GPU: leave out --offload")


def require_gpu(settings: Settings, why: str) -> None:
    """Raises UsageError if this runs on the CPU; ``why``: what for a GPU is needed."""
    if device_and_dtype(settings)[0] == "cpu":
        raise UsageError(f"{why}; this runs on the CPU, so leave it out")


def cap_memory(device: torch.device, size: int) -> None:
    """Limit this process to ``size`` bytes of its GPU. Raises UsageError if the GPU has less."""
    total: int = torch.cuda.get_device_properties(device).total_memory
    if size > total:
        raise UsageError(f"--device-memory {readable(size)}, but the GPU has {readable(total)}")
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.set_per_process_memory_fraction(size / total, index)
