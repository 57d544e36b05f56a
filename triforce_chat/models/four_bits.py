"""Rounds the matrices of an inflated model to 4 bits, to measure the speed of quantized weights in its dimensions.

Blocks are of GGUF's kinds Q4_0 and, for the output matrix, Q8_0. Integers lie symmetrically around zero, so that what
cancels in an inflated model (see ``resize``) still does.
"""

from __future__ import annotations

from typing import Any

import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn

from triforce_chat.engine.forward.quantized import QuantizedLinear
from triforce_chat.models.repack import weight_format

LARGEST = {Kind.Q4_0: 7, Kind.Q8_0: 127}  # magnitude of an integer
ROLES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTPUT = Kind.Q8_0


@torch.no_grad()
def round_to_four_bits(model: Any) -> None:
    """Replace all linear layers of a model on a GPU, one after another; the embedding stays."""
    from triforce_chat.engine.forward.grouped_matrix import GroupedMatrix

    device = model.lm_head.weight.device
    for layer in model.model.layers:
        for path in ROLES.values():
            layer.set_submodule(path, rounded(layer.get_submodule(path), Kind.Q4_0))
    model.lm_head = rounded(model.lm_head, OUTPUT)
    # They wait in main memory until no wide matrix is left: in gaps between these they would keep memory from others.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    for layer in model.modules():
        if isinstance(layer, QuantizedLinear) and isinstance(layer.matrix, GroupedMatrix):
            weight = layer.matrix.weight
            layer.matrix.weight = weight._replace(data=weight.data.to(device), scale=weight.scale.to(device))


def rounded(linear: nn.Linear, kind: Kind) -> QuantizedLinear:
    """The layer with a quantized matrix, in main memory."""
    from triforce_chat.engine.forward.grouped_matrix import GroupedMatrix
    from triforce_chat.engine.kernels.quantized_weight import pack

    numbers, scale = integers(linear.weight, weight_format(kind).group, LARGEST[kind])
    codes = weight_format(kind).codes
    weight = pack(codes, (numbers + codes.zero).to(torch.int16), scale)
    weight = weight._replace(data=weight.data.cpu(), scale=weight.scale.cpu())
    return QuantizedLinear(GroupedMatrix(weight, linear.weight.dtype), linear.bias)


def integers(weight: Tensor, group: int, largest: int) -> tuple[Tensor, Tensor]:
    """A weight [O, I] as integers [O, I] and the fp32 scales [O, I / group] of their groups."""
    groups = weight.float().unflatten(1, (-1, group))
    scale = groups.abs().amax(2) / largest
    divisor = torch.where(scale > 0, scale, 1.0)
    return (groups / divisor[..., None]).round().flatten(1), scale
