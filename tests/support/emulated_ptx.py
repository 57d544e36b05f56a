"""The few PTX instructions that kernels contain, for Triton's interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Words = Any  # uint32 numbers
WARP = 32  # threads


def bytes_picked(a: Words, b: Words, selector: Words) -> Words:
    """``prmt.b32``: each digit of the selector names one of the eight bytes of b and a."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    out = np.zeros(a.shape, np.uint32)
    for place in range(4):
        digit = (int(selector[0]) >> 4 * place) & 7
        out |= ((both >> np.uint64(8 * digit)) & np.uint64(255)).astype(np.uint32) << np.uint32(8 * place)
    return out


def by_table(a: Words, b: Words, c: Words, table: Words) -> Words:
    """``lop3.b32``: bit by bit what the table says of the three."""
    out = np.zeros(a.shape, np.uint32)
    for row in range(8):
        if (int(table[0]) >> row) & 1:
            out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return out


def from_lane(a: Words, lane: Words, _clamp: Words, _members: Words) -> Words:
    """``shfl.sync.idx.b32``: what one lane of each warp holds."""
    return np.repeat(a.reshape(-1, WARP)[:, int(lane[0])], WARP)


def halves_less(a: Words, b: Words) -> Words:
    """``sub.f16x2``: of two numbers of 16 bits each."""
    return (a.view(np.float16) - b.view(np.float16)).view(np.uint32)


def halves_fused(a: Words, b: Words, c: Words) -> Words:
    """``fma.rn.bf16x2``: of two numbers of 16 bits each, rounded once."""

    def wide(words: Words) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(words).view(np.int16)).view(torch.bfloat16).double()

    made = (wide(a) * wide(b) + wide(c)).bfloat16().view(torch.int16)
    return made.numpy().view(np.uint32)


INSTRUCTIONS: dict[str, Callable[..., Words]] = {
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "mov.b32": np.copy,
    "sub.f16x2": halves_less,
    "fma.rn.bf16x2": halves_fused,
    "shfl.sync.idx.b32": from_lane,
    "shr.u32": np.right_shift,
    "prmt.b32": bytes_picked,
    "lop3.b32": by_table,
}


def run(text: str, outputs: int, inputs: list[Words]) -> list[Words]:
    """What the registers $0 to $(outputs - 1) hold in the end, if the next ones hold ``inputs``."""
    words, registers = inputs[0], {f"${outputs + at}": each for at, each in enumerate(inputs)}
    for line in text.strip("{}\n ").split(";"):
        name, _, operands = line.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *sources = operands.replace(",", " ").split()
        registers[target] = INSTRUCTIONS[name](*(_value(each, registers, words) for each in sources))
    return [registers[f"${number}"] for number in range(outputs)]


def _value(operand: str, registers: dict[str, Words], like: Words) -> Words:
    if re.match("[0-9]", operand):
        return np.full_like(like, int(operand, 0))
    return registers[operand]
