"""What becomes of settings with a model on a machine where that may surprise, in a line each for the user."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from triforce_chat.loading.device import keeps_format, may_keep_format
from triforce_chat.loading.gpu import find_gpu
from triforce_chat.memory_plan.messages import KEEPING_GPUS
from triforce_chat.memory_plan.plan import MemoryPlan
from triforce_chat.models.describe import Description, stored_or_reason
from triforce_chat.models.load import expansion
from triforce_chat.settings.settings import STORED, Settings

EVERYWHERE = "has no effect without a GPU"


def without_effect(settings: Settings, model: Description, device: torch.device) -> Iterator[str]:
    """What of the settings has no effect, as a load says it before it reads weights."""
    if device.type == "cpu" and settings.offload:
        yield f"--offload {EVERYWHERE}: keys and values are in main memory anyway"
    if device.type == "cpu" and settings.gpu_layers is not None:
        yield f"--gpu-layers {EVERYWHERE}: the weights are in main memory anyway"
    if settings.dtype == STORED and not quantized_file(model):
        yield f"--dtype {STORED} has no effect: {model.name} has no quantized weights"
    elif settings.dtype == STORED and not may_keep_format(settings, device.type):
        split = f"--tp {settings.tp} splits expanded weights only"
        cause = split if settings.tp > 1 else "this GPU lacks bfloat16, which the kernels compute in"
        yield expansion(quantized_file(model), cause)


def expanded_file(settings: Settings, model: Description, device: torch.device, dtype: torch.dtype) -> str:
    """What a load says about quantized weights that it expands although they were to stay as they are; else empty."""
    if not keeps_format(settings, device.type):
        return ""
    _, reason = stored_or_reason(model, device, dtype)
    return expansion(quantized_file(model), reason) if reason else ""


def kept_where(plan: MemoryPlan, device: torch.device) -> str:
    """Which GPUs keep the quantized weights of a plan as they are, where there is none to ask; else empty."""
    if plan.workload.stored is None or device.type == "cpu" or find_gpu(device.type) is not None:
        return ""
    return f"{plan.workload.stored.format} is kept as it is {KEEPING_GPUS}; other GPUs expand it to 16 bits"


def quantized_file(model: Description) -> str:
    """The name of the model's GGUF file, which need not be here; empty if it has none."""
    if model.source is not None and model.source.gguf_file is not None:
        return model.source.gguf_file
    packed = model.preset.packed if model.preset else None
    return packed.file if packed else ""
