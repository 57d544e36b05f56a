"""Lets transformers read GGUF files by a quicker reader and quicker dequantization than gguf's own.

Names, configurations and tokenizers remain transformers' business, which imports the two from gguf whenever it reads a
file. It parses the same metadata for the configuration and again for the tokenizer's: that happens once, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
from transformers import modeling_gguf_pytorch_utils as checkpoints

from triforce_chat.models.dequantize import dequantize
from triforce_chat.models.gguf_header import FILES, version_of
from triforce_chat.models.gguf_reader import QuickReader

OWN_LOAD = checkpoints.load_gguf_checkpoint


@contextmanager
def quick_gguf() -> Iterator[None]:
    """Replace gguf's reader and its dequantization within the block, and have metadata parsed once."""
    own = gguf.GGUFReader, gguf.dequantize
    gguf.GGUFReader, gguf.dequantize = QuickReader, dequantize
    checkpoints.load_gguf_checkpoint = _load_checkpoint
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.dequantize = own
        checkpoints.load_gguf_checkpoint = OWN_LOAD


def _load_checkpoint(path: str, return_tensors: bool = False, **options: Any) -> dict[str, Any]:
    """As transformers' function of that name."""
    if return_tensors:
        loaded: dict[str, Any] = OWN_LOAD(path, return_tensors, **options)
        return loaded
    found = _metadata(path, *version_of(Path(path)))
    return {group: {name: copy(value) for name, value in values.items()} for group, values in found.items()}


@lru_cache(maxsize=FILES)
def _metadata(path: str, _size: int, _mtime_ns: int) -> dict[str, dict[str, Any]]:
    parsed: dict[str, dict[str, Any]] = OWN_LOAD(path)
    return parsed


def forget_metadata() -> None:
    """Free what is kept of the files that were read: tens of megabytes for a large vocabulary."""
    _metadata.cache_clear()
