"""Rounds the matrices of an inflated model to 4 or 8 bits, to measure the speed of quantized weights in its dimensions.

Blocks are of GGUF's kinds Q4_0 or Q8_0, and for the output matrix always Q8_0. Integers lie symmetrically around zero,
so that what cancels in an inflated model (see ``resize``) still does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn

from triforce_chat.engine.forward.quantized import QuantizedLinear
from triforce_chat.models.repack import AT_ONCE, weight_format

if TYPE_CHECKING:
    from triforce_chat.models.load import Settle

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
KINDS = {4: Kind.Q4_0, 8: Kind.Q8_0}  # of the decoder layers' matrices, by bits
OUTPUT = Kind.Q8_0


def round_layer(kind: Kind, number: int, layer: nn.Module) -> None:  # noqa: ARG001 (as ``resize`` calls it)
    """Replace the linear layers of a decoder layer by rounded ones in main memory."""
    for path in ROLES.values():
        layer.set_submodule(path, rounded(layer.get_submodule(path), kind))


def finish_rounding(model: Any, settle: Settle | None) -> None:
    """Round the output, and put a model's rounded layers in their places: by ``settle``, or on the embedding's device.

    They have waited in main memory until no wide matrix is left: in gaps between these they would keep memory from
    others.
    """
    from triforce_chat.engine.forward.streamed_weights import move

    device = model.lm_head.weight.device
    model.lm_head = rounded(model.lm_head, OUTPUT)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    for number, layer in enumerate(model.model.layers):
        settle(number, layer) if settle else move(layer, device)
    move(model.lm_head, device)


@torch.no_grad()
def rounded(linear: Any, kind: Kind) -> QuantizedLinear:
    """A linear layer with a quantized matrix in main memory, rounded on its device some rows at a time."""
    from triforce_chat.engine.forward.grouped_matrix import GroupedMatrix
    from triforce_chat.engine.kernels.quantized_weight import pack

    form, (outputs, inputs) = weight_format(kind), linear.weight.shape
    weight, height = form.empty(outputs, inputs, torch.device("cpu")), max(1, AT_ONCE // inputs)
    for at in range(0, outputs, height):
        numbers, scale = integers(linear.weight[at : at + height], form.group, LARGEST[kind])
        part = pack(form.codes, (numbers + form.codes.zero).to(torch.int16), scale)
        weight.rows(at, at + part.outputs).copy_(part)
    return QuantizedLinear(GroupedMatrix(weight, linear.weight.dtype), linear.bias)


def integers(weight: Tensor, group: int, largest: int) -> tuple[Tensor, Tensor]:
    """A weight [O, I] as integers [O, I] and the fp32 scales [O, I / group] of their groups."""
    groups = weight.float().unflatten(1, (-1, group))
    scale = groups.abs().amax(2) / largest
    divisor = torch.where(scale > 0, scale, 1.0)
    return (groups / divisor[..., None]).round().flatten(1), scale
