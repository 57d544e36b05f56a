"""Bytes as people write and read them: 1 GB is 10^9 bytes, 1 GiB is 2^30."""

from __future__ import annotations

import math
import re

from triforce_chat.errors import UsageError

SIZE = re.compile(r"([0-9.]+(?:e[+]?[0-9]+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def readable(size: float) -> str:
    """Bytes in a unit that suits them."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def parsed_size(text: str) -> int:
    """Bytes out of "24GB", "24GiB", "80G" or "16e9". Raises UsageError for anything else."""
    found = SIZE.fullmatch(text.strip())
    try:
        number = float(found[1]) if found else 0.0
    except ValueError:  # two dots
        number = 0.0
    if not found or not 0 < number < math.inf:
        raise UsageError(f"'{text}' is no size in memory; write for example 24GB, 24GiB or 16e9")
    return int(number * (1024 if found[3] else 1000) ** POWERS.get((found[2] or "").lower(), 0))
