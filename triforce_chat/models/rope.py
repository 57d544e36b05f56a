"""Stretches YaRN's rotary embeddings (arXiv 2309.00071) to longer contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_CONTEXT = 1_048_576  # tokens; the quality at this length is unmeasured


def is_yarn(rope: Mapping[str, Any]) -> bool:
    """True if a model uses YaRN, whose positions a larger factor stretches further."""
    return rope.get("rope_type") == "yarn" and "original_max_position_embeddings" in rope


def stretch_yarn(rope: Mapping[str, Any], context: int) -> tuple[dict[str, Any], int]:
    """(rope parameters with the smallest whole factor for ``context`` tokens, tokens that this factor reaches).

    All other parameters stay the same, so the frequencies depend on the factor alone.
    """
    original: int = rope["original_max_position_embeddings"]
    factor = -(-context // original)
    return {**rope, "factor": float(factor)}, factor * original
