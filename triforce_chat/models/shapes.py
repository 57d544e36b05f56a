"""Dimensions of published models, for measuring speed without their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triforce_chat.errors import UsageError
from triforce_chat.models import published
from triforce_chat.models.published import Fields

ROUNDED_TO = ":8bit"  # after a shape's name, if not to 4 bits
IN_8_BITS = 8


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
    bits: int = 4  # of a matrix's numbers, if they are rounded

    @property
    def fields(self) -> Fields:
        """The dimensions as fields of a config.json."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.mlp,
            "tie_word_embeddings": False,
        }


def _shape(name: str, fields: Fields) -> BigShape:
    return BigShape(
        name,
        hidden=fields["hidden_size"],
        layers=fields["num_hidden_layers"],
        heads=fields["num_attention_heads"],
        kv_heads=fields["num_key_value_heads"],
        head_dim=fields["head_dim"],
        mlp=fields["intermediate_size"],
    )


SHAPES = (
    _shape("llama-2-7b", published.LLAMA_2_7B),
    _shape("llama-3.1-8b", published.LLAMA_3_1_8B),
    _shape("llama-2-13b", published.LLAMA_2_13B),
    _shape("codellama-34b", published.CODELLAMA_34B),
    _shape("llama-2-70b", published.LLAMA_2_70B),
)


def find_shape(name: str) -> BigShape:
    """The shape with this name, perhaps followed by ``ROUNDED_TO``. Raises UsageError if there is none."""
    own = name.removesuffix(ROUNDED_TO)
    for shape in SHAPES:
        if shape.name == own:
            return shape if own == name else replace(shape, name=name, bits=IN_8_BITS)
    raise UsageError(f"no shape '{name}'; choose {', '.join(shape.name for shape in SHAPES)}")
