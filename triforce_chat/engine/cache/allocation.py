"""Memory for keys and values, which is occupied only as it is written."""

from __future__ import annotations

import ctypes
import math
import sys

import numpy as np
import torch
from torch import Tensor

from triforce_chat.engine.cache.shape import Shape

PAGE = 4096  # bytes; pinned memory must not share a page with anything else
HUGE_PAGES, SMALL_PAGES = 14, 15  # MADV_HUGEPAGE and MADV_NOHUGEPAGE of Linux
GRAIN = 64  # slots; kernels compiled for one width serve this many lengths


def zeros(size: tuple[int, ...], shape: Shape, dtype: torch.dtype | None = None) -> Tensor:
    """A zero tensor for keys or values of ``shape``; ``dtype``: not that of unquantized ones.

    In main memory it occupies only the pages that are written: torch.zeros would fill all of it, 6 GB for 131,072
    tokens of a small model, while the system's own zero pages are allocated at their first use.
    """
    dtype = dtype or shape.kv_dtype
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=shape.device)
    pages = zero_pages(size, dtype)
    advise(pages, SMALL_PAGES)
    return pages


def zero_pages(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A zero tensor in main memory that shares no page with anything else; see ``zeros``."""
    count = math.prod(size) * dtype.itemsize
    pages = np.zeros(count + 2 * PAGE, np.uint8)
    start = -pages.ctypes.data % PAGE
    return torch.from_numpy(pages[start : start + count]).view(dtype).view(size)


def advise(pages: Tensor, advice: int) -> None:
    """Tell the system how to allocate memory made by ``zero_pages``; where it has no such advice, nothing happens.

    With ``HUGE_PAGES`` that is done 2 MB at a time: quick, but the first token of each layer's and head's keys takes as
    much, some 400 MB in all for a small model.
    """
    if sys.platform == "linux":
        size = ctypes.c_size_t(pages.nbytes)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(pages.data_ptr()), size, advice)


def rounded_up(slots: int) -> int:
    """The next multiple of GRAIN."""
    return -(-slots // GRAIN) * GRAIN
