"""What is known of weights that stay in the format of their GGUF file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """What the weights of a GGUF file are if they stay as they are."""

    format: str  # as llama.cpp calls it, such as Q4_K_M
    bytes: int  # in memory
    step_bytes: int  # that a decoding step reads: all but an embedding of its own, of which it reads one row
