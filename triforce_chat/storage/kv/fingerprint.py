"""A hash of everything that keys and values depend on besides the tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triforce_chat import __version__
from triforce_chat.engine.forward.quantized import QuantizedLayer
from triforce_chat.models.tokenizer import vocabulary_hash

LAYOUT = 1  # version of the entries' format and meaning; a new number invalidates all stored ones
ROW = 1024  # 64-bit integers per row that is summed
# Configuration fields that have no influence on a model's numbers.
IGNORED = ("_name_or_path", "transformers_version")


def fingerprint(model: Any, tokenizer: Any) -> bytes:
    """The fingerprint of a loaded model, taken before its weights are fused; reads every weight once.

    It is computed from the numbers in memory, not from files: they include adapter and dtype, and a file that is
    replaced after loading has no effect. Every number counts through the sum of its row and the sum of its column,
    so two trained models share a fingerprint only by deliberate construction. The configuration covers the rotary
    embeddings, the versions and the processor cover the arithmetic, and the vocabulary the meaning of the ids.
    """
    settings = {**_settings(model), "vocabulary": vocabulary_hash(tokenizer)}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in _tensors(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        for part in _sums(tensor):
            digest.update(part.tobytes())
    return digest.digest()


def _settings(model: Any) -> dict[str, Any]:
    config = {name: value for name, value in model.config.to_dict().items() if name not in IGNORED}
    return {
        "layout": LAYOUT,
        "config": config,
        "dtype": model.dtype,
        "device": model.device.type,
        "processor": _processor(model.device),
        "versions": [__version__, torch.__version__, version("transformers")],
    }


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability()


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLayer):
            yield from ((f"{name} in {part}", tensor) for part, tensor in module.matrix.tensors())


def _sums(tensor: Tensor) -> Iterator[np.ndarray]:
    """Row sums and column sums of a tensor's bits as 64-bit integers in rows of ``ROW``, and the remaining bytes."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if flat.storage_offset() % 8:  # an unaligned view of a larger tensor, as in files of mixed dtypes
        flat = flat.clone()
    whole = flat.numel() // (8 * ROW) * 8 * ROW
    rows = flat[:whole].view(torch.int64).view(-1, ROW)
    numbers: Any = rows.numpy() if rows.is_cpu else rows  # NumPy sums in this thread only
    for part in (numbers.sum(1), numbers.sum(0), flat[whole:]):
        yield torch.as_tensor(part).cpu().numpy()
