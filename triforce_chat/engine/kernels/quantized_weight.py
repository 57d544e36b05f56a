"""Weight matrices of few bits per number: small integers, whose groups share a scale and perhaps a minimum.

The integers lie in words, column by column of the matrix: first the words of all rows for the first inputs, then
those for the next. So a tile of rows is one piece of memory, however narrow it is.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

LARGEST = 127  # magnitude of a symmetric 8-bit integer


class Codes(Enum):
    """How integers lie in words: dtype of a word, words of a span of inputs, integers in a word, which one means 0.

    Of two integers in a word the low one belongs to the first half of its span, the high one to the second half: so
    both halves are runs of inputs, and nothing changes places when they are unpacked.
    """

    BITS_4 = torch.uint8, 32, 2, 8
    BITS_6 = torch.int16, 16, 2, 32
    BITS_8 = torch.int8, 32, 1, 0

    def __init__(self, dtype: torch.dtype, words: int, parts: int, zero: int) -> None:
        self.dtype, self.words, self.parts, self.zero = dtype, words, parts, zero

    @property
    def shift(self) -> int:
        """Bits between the two integers of a word."""
        return 4 * self.dtype.itemsize


class QuantizedWeight(NamedTuple):
    """A weight [O, I] as integers in ``groups`` of inputs that share 32 bits.

    ``data`` [spans, O, words]; ``scale`` [groups, O] in fp32: a number is (integer - zero) * scale; or in int32, which
    holds two fp16 numbers, scale and minimum: a number is integer * scale + minimum. Both may have strides between
    rows of other matrices; all that goes beyond ``inputs`` is zero.
    """

    data: Tensor
    scale: Tensor
    group: int
    inputs: int

    @property
    def codes(self) -> Codes:
        return next(each for each in Codes if each.dtype == self.data.dtype)

    @property
    def format(self) -> tuple[torch.dtype, torch.dtype, int, int]:
        """What weights must have in common to be joined."""
        return self.data.dtype, self.scale.dtype, self.group, self.inputs

    @property
    def outputs(self) -> int:
        return self.data.shape[1]

    @property
    def whole(self) -> bool:
        """Whether a row is one group without a minimum and its words lie one after the other."""
        return len(self.data) == 1 and self.codes.parts == 1 and self.scale.dtype == torch.float32

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.scale.nbytes

    def rows(self, first: int, last: int) -> QuantizedWeight:
        """A view of some of the rows."""
        return self._replace(data=self.data[:, first:last], scale=self.scale[:, first:last])

    def copy_(self, other: QuantizedWeight) -> None:
        """Take the numbers of another weight of the same format and size."""
        self.data.copy_(other.data)
        self.scale.copy_(other.scale)


class WeightFormat(NamedTuple):
    """The format of a grouped weight: its integers, inputs of a group, and whether groups have a minimum."""

    codes: Codes
    group: int
    sided: bool

    def empty(self, outputs: int, inputs: int, device: torch.device) -> QuantizedWeight:
        """Memory for a weight [O, I] of this format."""
        span = self.codes.words * self.codes.parts
        spans = -(-inputs // span)
        shared = torch.int32 if self.sided else torch.float32
        return QuantizedWeight(
            torch.empty(spans, outputs, self.codes.words, dtype=self.codes.dtype, device=device),
            torch.empty(spans * span // self.group, outputs, dtype=shared, device=device),
            self.group,
            inputs,
        )


def quantize(weight: Tensor) -> QuantizedWeight:
    """Round a weight [O, I] to 8 bits, each row scaled by its largest magnitude."""
    scale = weight.abs().amax(1).float() / LARGEST
    divisor = torch.where(scale > 0, scale, 1.0)
    data = (weight / divisor[:, None]).round().to(torch.int8)
    return QuantizedWeight(data[None], scale[None], weight.shape[1], weight.shape[1])


def pack(codes: Codes, numbers: Tensor, scale: Tensor, minimum: Tensor | None = None) -> QuantizedWeight:
    """From integers [O, I] and the fp32 scale and minimum [O, I / group] of each group.

    The integers are 0 to 15, 0 to 63 or -127 to 127. A scale that has a minimum is rounded to fp16, as that is.
    Raises ValueError if the inputs are no whole groups, or a group is narrower than a run of inputs.
    """
    outputs, inputs = numbers.shape
    group = inputs // scale.shape[1]
    if group * scale.shape[1] != inputs or group % codes.words:
        raise ValueError(f"{scale.shape[1]} groups of {inputs} inputs do not fit runs of {codes.words}")
    span = codes.words * codes.parts
    missing = -inputs % span
    runs = pad(numbers, (0, missing)).view(outputs, -1, codes.parts, codes.words).to(codes.dtype)
    data = runs[:, :, 0] if codes.parts == 1 else runs[:, :, 0] | (runs[:, :, 1] << codes.shift)
    shared = (
        scale.float()
        if minimum is None
        else torch.stack((scale, minimum), 2).half().view(torch.int32)[..., 0]
    )
    shared = pad(shared, (0, (inputs + missing) // group - shared.shape[1]))
    return QuantizedWeight(data.transpose(0, 1).contiguous(), shared.t().contiguous(), group, inputs)


def joined(weights: list[QuantizedWeight]) -> QuantizedWeight:
    """One weight with the rows of several that have the same format."""
    data, scale = (
        torch.cat(parts, 1) for parts in zip(*((each.data, each.scale) for each in weights), strict=True)
    )
    return weights[0]._replace(data=data, scale=scale)
