"""What keys and values depend on besides the tokens, as one short hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from triforce_chat import __version__
from triforce_chat.models.load import meaning

LAYOUT = 1  # of the blocks and of what they mean; a new number makes all stored ones strangers
ROW = 1024  # numbers that are summed together
# Names that a folder or a library gives to a model, and that its numbers do not depend on.
NAMES = ("_name_or_path", "transformers_version")


def fingerprint(model: Any, tokenizer: Any) -> bytes:
    """Of a model as it lies in memory, before its weights are packed; reads all of them, once.

    Taken from the loaded numbers and not from files: adapter and dtype are in them already, and a file that is
    replaced after it was loaded cannot lend its name to another's keys. Every number of every tensor counts, by
    the sum of its row and the sum of its column, so two trained models share a fingerprint only if somebody
    constructs them to. The configuration adds the rotary embeddings; the versions and the processor, that the same
    arithmetic is done; the vocabulary, what the ids mean.
    """
    around = {**_surroundings(model), "vocabulary": meaning(tokenizer)}
    digest = hashlib.sha256(json.dumps(around, sort_keys=True, default=str).encode())
    for name, tensor in _tensors(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        for part in _digested(tensor):
            digest.update(part.tobytes())
    return digest.digest()


def _surroundings(model: Any) -> dict[str, Any]:
    config = {name: value for name, value in model.config.to_dict().items() if name not in NAMES}
    return {
        "layout": LAYOUT,
        "config": config,
        "dtype": model.dtype,
        "device": model.device.type,
        "processor": _processor(model.device),
        "versions": [__version__, torch.__version__, transformers.__version__],
    }


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability()


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _digested(tensor: Tensor) -> Iterator[np.ndarray]:
    """Row sums, column sums and the rest of a tensor's bits, taken as 64-bit integers in rows of ``ROW``."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if flat.storage_offset() % 8:  # a view of a larger tensor, as files with mixed types give them
        flat = flat.clone()
    whole = flat.numel() // (8 * ROW) * 8 * ROW
    rows = flat[:whole].view(torch.int64).view(-1, ROW)
    numbers: Any = rows.numpy() if rows.is_cpu else rows  # a thread of its own is all that this takes
    for part in (numbers.sum(1), numbers.sum(0), flat[whole:]):
        yield torch.as_tensor(part).cpu().numpy()
