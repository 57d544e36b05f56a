"""Weight matrices of few bits per number: small integers, whose groups share a scale and perhaps a minimum."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

LARGEST = 127  # magnitude of a symmetric 8-bit integer
RUN = 16  # bytes: what a thread loads at once
LINE = 128  # bytes of a cache line
GROUP = 128  # inputs that share a scale in a copy of 4 bits
ROWS_AT_ONCE = 2048  # of a matrix that is rounded, because that takes many times its memory
CLIPS = tuple(1.14 - 0.05 * step for step in range(12))  # shares of a group's largest number that are tried


class Codes(Enum):
    """How integers lie in the words of a row: dtype of a word, integers in it, which one means 0, words of a run.

    A row is runs. Of the integers in a word the lowest belongs to the first part of the run's inputs, the next to the
    second part, and so on: so each part is in order, and nothing changes places when words are unpacked. A run of
    ``BITS_4`` or ``BITS_8`` is what a thread loads at once, as fine as the groups of files; one of ``WIDE_4`` is a
    cache line, of which a part is as deep as a product on tensor cores.
    """

    BITS_4 = torch.uint8, 2, 8, RUN
    BITS_8 = torch.int8, 1, 0, RUN
    WIDE_4 = torch.int16, 4, 8, LINE // 2

    def __init__(self, dtype: torch.dtype, parts: int, zero: int, run: int) -> None:
        self.dtype, self.parts, self.zero, self.run = dtype, parts, zero, run

    @property
    def span(self) -> int:
        """Inputs of a run."""
        return self.run * self.parts

    @property
    def bits(self) -> int:
        """Of an integer."""
        return 8 * self.dtype.itemsize // self.parts


class QuantizedWeight(NamedTuple):
    """A weight [O, I] as integers in groups of inputs that share 32 bits.

    ``data`` [O, words], each row in one piece; ``scale`` [O, I / group]: a number is (integer - zero) * scale; or in
    int32, which holds two fp16 numbers, scale and minimum: a number is integer * scale + minimum.

    ``WIDE_4`` has groups of half a run: ``scale`` [O, runs] holds the bf16 scales of both in int32. Its last run may
    reach beyond the inputs, where numbers do not count.
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
        return self.scale.dtype == torch.int32 and self.codes is not Codes.WIDE_4

    @property
    def whole(self) -> bool:
        """Whether a row is one group of bytes without a minimum."""
        return self.scale.shape[1] == 1 and self.codes.parts == 1 and not self.sided

    @property
    def proposes(self) -> bool:
        """Whether it is a copy for proposals, which few tokens at a time go through."""
        return self.whole or self.codes is Codes.WIDE_4

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


def quantize_wide(weight: Tensor) -> QuantizedWeight:
    """Round a weight [O, I] to 4 bits in groups, each scaled so that the sum of squared errors is least."""
    outputs, inputs = weight.shape
    made = empty_wide(outputs, inputs, weight.device)
    for first in range(0, outputs, ROWS_AT_ONCE):
        some = pad(weight[first : first + ROWS_AT_ONCE].float(), (0, -inputs % Codes.WIDE_4.span))
        groups = some.unflatten(1, (-1, GROUP))
        scale = best_scale(groups)
        numbers = rounded(groups, scale[:, :, None]) + Codes.WIDE_4.zero
        rows = made.rows(first, first + len(some))
        rows.data.copy_(words(Codes.WIDE_4, numbers.flatten(1)))
        rows.scale.copy_(scale.bfloat16().view(torch.int32))
    return made


def empty_wide(outputs: int, inputs: int, device: torch.device) -> QuantizedWeight:
    """Memory for what ``quantize_wide`` makes; scales of neighbouring rows, which are read together, lie together."""
    codes, runs = Codes.WIDE_4, -(-inputs // Codes.WIDE_4.span)
    data = torch.empty(outputs, runs * codes.run, dtype=codes.dtype, device=device)
    scale = torch.empty(runs, outputs, dtype=torch.int32, device=device).t()
    return QuantizedWeight(data, scale, GROUP, inputs)


def best_scale(groups: Tensor) -> Tensor:
    """Of groups [O, groups, GROUP] in fp32, by trying some: [O, groups].

    There is one more integer below 0 than above, and the largest number is given it: scales may be negative.
    """
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))[..., 0] / -Codes.WIDE_4.zero
    best, least = largest, torch.full_like(largest, float("inf"))
    for clip in CLIPS:
        scale = (largest * clip).bfloat16().float()[:, :, None]
        error = (rounded(groups, scale).mul_(scale).sub_(groups)).square_().sum(2)
        best, least = torch.where(error < least, scale[:, :, 0], best), torch.minimum(least, error)
    return best


def rounded(groups: Tensor, scale: Tensor) -> Tensor:
    """The nearest integers that 4 bits hold, without the code that means 0."""
    numbers = (groups / torch.where(scale != 0, scale, 1.0)).round_()
    return numbers.clamp_(-Codes.WIDE_4.zero, Codes.WIDE_4.zero - 1)


def pack(codes: Codes, numbers: Tensor, scale: Tensor, minimum: Tensor | None = None) -> QuantizedWeight:
    """From integers [O, I] and the fp32 scale and minimum [O, I / group] of each group.

    The integers are 0 to 15 or -127 to 127. A scale that has a minimum is rounded to fp16, as that is.
    Raises ValueError if the inputs are no whole groups, or a group is no whole number of runs.
    """
    inputs = numbers.shape[1]
    group = inputs // scale.shape[1]
    if group * scale.shape[1] != inputs or group % codes.span:
        raise ValueError(f"{scale.shape[1]} groups of {inputs} inputs do not fit runs of {codes.span}")
    shared = scale.float().contiguous()
    if minimum is not None:
        shared = torch.stack((scale, minimum), 2).half().view(torch.int32)[..., 0].contiguous()
    return QuantizedWeight(words(codes, numbers), shared, group, inputs)


def words(codes: Codes, numbers: Tensor) -> Tensor:
    """Integers [O, I] without a sign in words [O, I / parts]; those of 8 bits have one."""
    parts = numbers.unflatten(1, (-1, codes.parts, codes.run)).to(codes.dtype).unbind(2)
    made: Tensor = parts[0].clone()
    for number, part in enumerate(parts[1:], 1):
        made |= part << (codes.bits * number)
    return made.flatten(1)


def joined(weights: list[QuantizedWeight]) -> QuantizedWeight:
    """One weight with the rows of several that have the same format."""
    data, scale = (
        torch.cat(parts) for parts in zip(*((each.data, each.scale) for each in weights), strict=True)
    )
    return weights[0]._replace(data=data, scale=scale)
