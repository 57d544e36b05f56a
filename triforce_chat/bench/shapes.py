"""Dimensions of published models at which speed can be measured without their weights."""

from __future__ import annotations

from dataclasses import dataclass

from triforce_chat.errors import UsageError


@dataclass(frozen=True, slots=True)
class BigShape:
    """A Llama's dimensions without its vocabulary; input and output embeddings are two matrices."""

    name: str
    hidden: int  # channels of the residual stream
    layers: int
    heads: int  # query heads
    kv_heads: int
    head_dim: int
    mlp: int  # neurons of one layer


SHAPES = (
    BigShape("llama-2-7b", hidden=4096, layers=32, heads=32, kv_heads=32, head_dim=128, mlp=11_008),
    BigShape("llama-3.1-8b", hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp=14_336),
    BigShape("llama-2-13b", hidden=5120, layers=40, heads=40, kv_heads=40, head_dim=128, mlp=13_824),
)


def find_shape(name: str) -> BigShape:
    """The shape of that name. Raises UsageError when there is none."""
    for shape in SHAPES:
        if shape.name == name:
            return shape
    raise UsageError(f"no shape '{name}'; choose {', '.join(shape.name for shape in SHAPES)}")
