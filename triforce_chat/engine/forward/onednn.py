"""oneDNN's fp32 matrix products for CPUs.

PyTorch multiplies dense fp32 matrices with MKL, which repacks the weights in every call and leaves half the vector
width of some processors unused. oneDNN reads weights that were packed once, so verifying eight tokens costs little
more than decoding one. The operators are those that torch.compile emits for CPUs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from triforce_chat.engine.cache.view import KVView

BLOCK_ROWS = 128
ROWS_HINT = 8  # rows that the packed layout is optimized for; any number works


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operators, and device and dtype suit them."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [n, I] times the transposed weight [O, I], dense or packed, plus bias [O]: [n, O]."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


class PackedLinear(nn.Module):
    """An ``nn.Linear`` whose weight is stored in oneDNN's blocked layout, with the same values."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.bias = dense.bias
        # Not a parameter or buffer: an opaque tensor has no storage that a module could move.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(dense.weight.detach(), ROWS_HINT)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.packed, self.bias)


def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer of ``model`` by a packed one, layer by layer to save memory."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child))


def attention(rows: Tensor, view: KVView, tail: Tensor | None, scale: float) -> Tensor:
    """Softmax attention in blocks of rows whose scores fit the processor's cache, in the rows' dtype.

    rows: [1, Hkv, R, D]; tail: [R, n] is added to the scores of the last n keys. Returns [1, Hkv, R, D].
    """
    length, out = view.total, torch.empty_like(rows)
    for head in range(rows.shape[1]):
        key, value = view.of_head(head, rows.dtype)
        for first in range(0, rows.shape[2], BLOCK_ROWS):
            block = slice(first, first + BLOCK_ROWS)
            scores = linear(rows[0, head, block] * scale, key)  # [block, S]
            scores[:, length:] = float("-inf")
            if tail is not None:
                scores[:, length - tail.shape[1] : length] += tail[block]
            weights = torch.softmax(scores, -1)
            for mass in view.masses:
                mass.add(weights[:, :length].sum(0), head)
            out[0, head, block] = linear(weights, value.t())
            del weights  # not beside the next block's scores
    return out
