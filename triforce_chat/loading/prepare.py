"""What becomes of a model's files on this machine, and making that before the first start needs it."""

from __future__ import annotations

import torch

from triforce_chat.engine.cpu_kernels.compiled import obstacle
from triforce_chat.loading.device import device_and_dtype, keeps_format
from triforce_chat.models.describe import as_stored, describe
from triforce_chat.models.load import expanded, read_small_files, stored_weights_of
from triforce_chat.models.packed import PackedModel
from triforce_chat.models.placement import placement
from triforce_chat.models.progress import Note, Report
from triforce_chat.models.registry import resolve
from triforce_chat.settings.settings import Settings


def prepare(settings: Settings, report: Report, note: Note) -> None:
    """Make what the model's first start would make otherwise.

    That is, of a GGUF file, the kernels that its weights need, or the expanded weights; and of any model what is kept
    of its small files. Raises ModelError, OutOfMemory and UsageError.
    """
    source = resolve(settings.model, report=report)
    read_small_files(source)
    if source.gguf_file is None:
        return
    device, dtype = device_and_dtype(settings)
    place = placement(torch.device(device), dtype)
    if not (keeps_format(settings, device) and stored_weights_of(source, place, note)):
        read_small_files(expanded(source, device, dtype, report, note))


def stays_quantized(settings: Settings) -> bool:
    """Whether the model's weights are used in the quantized blocks of a GGUF file; loads and compiles nothing.

    Raises ModelError and UsageError.
    """
    device, dtype = device_and_dtype(settings)
    if not keeps_format(settings, device):
        return False
    return as_stored(describe(settings.model), torch.device(device), dtype).stored is not None


def format_in_use(packed: PackedModel, settings: Settings) -> str:
    """The format in which a model in wheels is used, in words. Raises UsageError for a missing device."""
    device, dtype = device_and_dtype(settings)
    own, reason = packed.stored.format, None
    if keeps_format(settings, device):
        reason = obstacle() if device == "cpu" else None
        if reason is None:
            return f"{own}, as they are"
    wide = f"{own}, expanded to {str(dtype).removeprefix('torch.')}"
    return f"{wide}: {reason}" if reason else wide
