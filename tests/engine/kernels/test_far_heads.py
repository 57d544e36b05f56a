"""Kernels find the keys and values of a head although more numbers lie before them than 32 bits count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import QuantizedGroups

pytestmark = pytest.mark.gpu

HEADS, GAP = 3, 1 << 30  # the third head begins where 32 bits end, at a distance that fits them
SLOTS, DIM = 256, 64


def apart(part: Tensor) -> Tensor:
    """A copy whose first dimension has parts that lie so many numbers apart; what is between them is not touched."""
    room = torch.empty((len(part) - 1) * GAP + part[0].numel(), dtype=part.dtype, device=part.device)
    made = room.as_strided(part.shape, (GAP, *part.stride()[1:]))
    return made.copy_(part)


@pytest.fixture
def kept() -> tuple[Tensor, Tensor, Tensor]:
    """Queries [4, Hq, D], and keys and values [Hkv, S, D]."""
    torch.manual_seed(5)
    keys, values = torch.randn(2, HEADS, SLOTS, DIM, device="cuda").bfloat16()
    return torch.randn(4, 2 * HEADS, DIM, device="cuda").bfloat16(), keys, values


def at(slot: int) -> Tensor:
    return torch.tensor([slot], device="cuda")


def test_attention(kept: tuple[Tensor, Tensor, Tensor]) -> None:
    q, keys, values = kept
    expected = kernels.decode_attention(q, keys, values, at(200), 0.125, SLOTS)
    assert torch.equal(
        kernels.decode_attention(q, apart(keys), apart(values), at(200), 0.125, SLOTS), expected
    )


def test_quantized_attention_and_numbers(kept: tuple[Tensor, Tensor, Tensor]) -> None:
    q, keys, values = kept
    shape = Shape(1, 2 * HEADS, HEADS, DIM, torch.bfloat16, torch.device("cuda"))
    near = QuantizedGroups(shape, SLOTS, 4).first(0, SLOTS)
    near.write(0, keys, values)
    far = near._replace(keys=apart(near.keys), values=apart(near.values))
    said, again = (
        kernels.decode_quantized(q, each[:4], at(128), keys, values, at(9), 0.125) for each in (near, far)
    )
    assert torch.equal(again, said)
    for mine, theirs in zip(
        *(kernels.dequantized(each[:4], SLOTS, torch.bfloat16) for each in (near, far)), strict=True
    ):
        assert torch.equal(theirs, mine)


def test_scores_of_chunks(kept: tuple[Tensor, Tensor, Tensor]) -> None:
    q, keys, _ = kept
    queries = q.transpose(0, 1).contiguous()
    assert torch.equal(kernels.chunk_scores(queries, apart(keys), 8), kernels.chunk_scores(queries, keys, 8))


def test_gathered_chunks(kept: tuple[Tensor, Tensor, Tensor]) -> None:
    layers = torch.stack([kept[1]] * 3) + torch.arange(3, device="cuda").bfloat16()[:, None, None, None]
    chosen = torch.tensor([1, 4, 20], device="cuda").expand(3, HEADS, 3)
    near, far = (layers.new_zeros(3, HEADS, 64, DIM) for _ in range(2))
    for source, out in ((layers, near), (apart(layers), far)):
        kernels.gather_chunks(source, chosen, out, 16, 240, SLOTS, 8)
    assert torch.equal(far, near)
    assert near.any()
