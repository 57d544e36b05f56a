"""What is known of weights that stay in the format of their GGUF file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType as Kind

    Kinds = tuple[tuple[str, Kind], ...]  # by GGUF's names without number and ending, such as attn_q


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """What the weights of a GGUF file are if they stay as they are."""

    format: str  # as llama.cpp calls it, such as Q4_K_M
    bytes: int  # in memory
    step_bytes: int  # that a decoding step reads: all but an embedding of its own, of which it reads one row
    # Of a block's matrices, the embedding and the output, once each; they follow from the file.
    layers: tuple[Kinds, ...] = field(default=(), compare=False)
    blocks: tuple[int, ...] = field(default=(), compare=False)  # bytes of each block's matrices in memory

    def with_adapter(self, size: int) -> StoredWeights:
        """This format with an adapter's matrices of so many bytes beside the weights."""
        return replace(self, bytes=self.bytes + size, step_bytes=self.step_bytes + size)
