"""Weight matrices of few bits per number: small integers, whose groups share a scale and perhaps a minimum."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 127  # magnitude of a symmetric 8-bit integer
RUN = 16  # bytes: what a thread loads at once


class Codes(Enum):
    """How integers lie in the bytes of a row: dtype of a byte, integers in it, which one means 0.

    A row is runs of 16 bytes. Of two integers in a byte the low one belongs to the first half of the run's 32 inputs,
    the high one to the second half: so both halves are in order, and nothing changes places when they are unpacked.
    """

    BITS_4 = torch.uint8, 2, 8
    BITS_8 = torch.int8, 1, 0

    def __init__(self, dtype: torch.dtype, parts: int, zero: int) -> None:
        self.dtype, self.parts, self.zero = dtype, parts, zero

    @property
    def span(self) -> int:
        """Inputs of a run."""
        return RUN * self.parts


class QuantizedWeight(NamedTuple):
    """A weight [O, I] as integers in groups of inputs that share 32 bits.

    ``data`` [O, bytes], each row in one piece; ``scale`` [O, I / group] in fp32: a number is (integer - zero) * scale;
    or in int32, which holds two fp16 numbers, scale and minimum: a number is integer * scale + minimum.
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
        return len(self.data)

    @property
    def sided(self) -> bool:
        """Whether groups have a minimum."""
        return self.scale.dtype == torch.int32

    @property
    def whole(self) -> bool:
        """Whether a row is one group of bytes without a minimum."""
        return self.scale.shape[1] == 1 and self.codes.parts == 1 and not self.sided

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.scale.nbytes

    def rows(self, first: int, last: int) -> QuantizedWeight:
        """A view of some of the rows."""
        return self._replace(data=self.data[first:last], scale=self.scale[first:last])

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
        shared = torch.int32 if self.sided else torch.float32
        return QuantizedWeight(
            torch.empty(outputs, inputs // self.codes.parts, dtype=self.codes.dtype, device=device),
            torch.empty(outputs, inputs // self.group, dtype=shared, device=device),
            self.group,
            inputs,
        )


def quantize(weight: Tensor) -> QuantizedWeight:
    """Round a weight [O, I] to 8 bits, each row scaled by its largest magnitude."""
    scale = weight.abs().amax(1, keepdim=True).float() / LARGEST
    divisor = torch.where(scale > 0, scale, 1.0)
    data = (weight / divisor).round().to(torch.int8)
    return QuantizedWeight(data, scale, weight.shape[1], weight.shape[1])


def pack(codes: Codes, numbers: Tensor, scale: Tensor, minimum: Tensor | None = None) -> QuantizedWeight:
    """Make a weight from integers [O, I] and the fp32 scale and minimum [O, I / group] of each group.

    The integers are 0 to 15 or -127 to 127. A scale that has a minimum is rounded to fp16, as that is.
    Raises ValueError if the inputs are no whole groups, or a group is no whole number of runs.
    """
    outputs, inputs = numbers.shape
    group = inputs // scale.shape[1]
    if group * scale.shape[1] != inputs or group % codes.span:
        raise ValueError(f"{scale.shape[1]} groups of {inputs} inputs do not fit runs of {codes.span}")
    runs = numbers.view(outputs, -1, codes.parts, RUN).to(codes.dtype)
    data = runs[:, :, 0] if codes.parts == 1 else runs[:, :, 0] | (runs[:, :, 1] << 4)
    shared = scale.float().contiguous()
    if minimum is not None:
        shared = torch.stack((scale, minimum), 2).half().view(torch.int32)[..., 0]
    return QuantizedWeight(data.flatten(1).contiguous(), shared.contiguous(), group, inputs)


def joined(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """One weight with the rows of several that have the same format."""
    return weights[0]._replace(
        data=stacked([each.data for each in weights]), scale=stacked([each.scale for each in weights])
    )


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors [O, I] as the rows of one; they are not copied if they follow one another already."""
    follow = (
        one.data_ptr() + one.nbytes == other.data_ptr()
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        for one, other in pairwise(parts)
    )
    if not all(follow):
        return torch.cat([*parts])
    first = parts[0]
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())
