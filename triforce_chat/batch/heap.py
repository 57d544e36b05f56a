"""Memory that one book took and the next one cannot use."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give the system back what glibc has free between blocks in use; texts of other lengths leave ever more gaps."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have nothing like it
    if give_back is not None:
        give_back(0)
