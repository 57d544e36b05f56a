"""Sizes in bytes as people write and read them: 1 GB is 10^9 bytes, 1 GiB is 2^30."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from triforce_chat.errors import UsageError

GIGABYTE = 10**9  # bytes
SIZE = re.compile(r"([0-9.]+(?:e[+]?[0-9]+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
LEAST_BARE = 10**6  # bytes; a smaller number without a unit is meant as gigabytes


class Group(NamedTuple):
    """Some sequences of equal length."""

    sequences: int
    context: int  # tokens of each


def parsed_batch(text: str) -> list[Group]:
    """The groups that "2x57344,6x19456" means. Raises UsageError for anything else."""
    found = [re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,8})", part.strip()) for part in text.split(",")]
    groups = [Group(int(each[1]), int(each[2])) for each in found if each]
    if len(groups) < len(found):
        raise UsageError(
            f"'{text}' is not a batch; write for example 2x57344,6x19456: sequences x tokens of each"
        )
    return groups


def readable(size: float) -> str:
    """A number of bytes with a decimal unit that suits it, as in "1.5 GB"."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def parsed_size(text: str) -> int:
    """The bytes that "24GB", "24GiB", "80G" or "16e9" mean. Raises UsageError for anything else."""
    found = SIZE.fullmatch(text.strip())
    try:
        number = float(found[1]) if found else 0.0
    except ValueError:  # two decimal points
        number = 0.0
    if not found or not 0 < number < math.inf:
        raise UsageError(f"'{text}' is not a memory size; write for example 24GB, 24GiB or 16e9")
    if number < LEAST_BARE and found[1] == found[0]:
        raise UsageError(f"'{text}' has no unit: write {found[1]}GB or {found[1]}GiB")
    return int(number * (1024 if found[3] else 1000) ** POWERS.get((found[2] or "").lower(), 0))
