"""How far rotary embeddings reach, and stretching those that were stretched before (YaRN, arXiv 2309.00071)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST = 1_048_576  # tokens that YaRN is stretched to; nobody has measured what a model makes of that


def stretches(rope: Mapping[str, Any]) -> bool:
    """Whether a model's rotary embeddings are YaRN's, which a larger factor makes reach further."""
    return rope.get("rope_type") == "yarn" and "original_max_position_embeddings" in rope


def stretched(rope: Mapping[str, Any], context: int) -> tuple[dict[str, Any], int]:
    """YaRN's parameters with the smallest whole factor for ``context`` tokens, and how many it reaches.

    Every other parameter stays, so the frequencies differ by the factor alone.
    """
    original: int = rope["original_max_position_embeddings"]
    factor = -(-context // original)
    return {**rope, "factor": float(factor)}, factor * original
