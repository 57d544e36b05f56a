"""Memory that one book took and the next one cannot use."""

from __future__ import annotations

import ctypes
import os

SHAPES_KEPT = "256"  # those of decoding are fewer


def keep_few_shapes() -> None:
    """To be called before the model is loaded, which reads these variables.

    oneDNN, and torch above it, keep compiled code for each shape of a product, a thousand by default, and every book
    has others: over hundreds of books that takes tens of megabytes.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, SHAPES_KEPT)


def trim() -> None:
    """Give the system back what glibc has free between blocks in use; books of other lengths leave ever more gaps."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have nothing like it
    if give_back is not None:
        give_back(0)
