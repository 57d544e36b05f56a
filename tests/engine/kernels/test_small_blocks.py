"""A small model's blocks in two kernels each say what the usual ones do, by Triton's interpreter or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import triton_interpreter
from support.labs import random_model
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, WriteSlot
from triforce_chat.engine.cuda_graph import ForwardInputs
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.forward.graphs import ForwardGraphs
from triforce_chat.engine.forward.small_decoder import SmallDecoder, small_decoder
from triforce_chat.engine.tree import bits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    triton_interpreter.patch()

CAPACITY = 200
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 6e-2}  # of the largest magnitude
SIZES: list[dict[str, Any]] = [  # several tiles of channels, groups of heads, an odd number of parts
    {"hidden_size": 96, "intermediate_size": 112, "num_attention_heads": 2, "num_key_value_heads": 2},
    {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 1},
    {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2},
]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def decoder_of(dtype: torch.dtype, architecture: str = "llama", head_dim: int = 32, **sizes: Any) -> Decoder:
    torch.manual_seed(4)
    model = random_model(architecture, head_dim=head_dim, **sizes).to(DEVICE, dtype)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.normal_(1, 0.3)
    return Decoder(model, Shape.of(model.config, dtype, DEVICE))


def buffers(decoder: Decoder, dtype: torch.dtype, count: int = 2) -> list[KVBuffer]:
    """With the same keys and values in all their slots."""
    block = decoder.blocks[0]
    shape = Shape(len(decoder.blocks), *block.heads[:2], block.dim, dtype, DEVICE)
    made = [KVBuffer(shape, CAPACITY) for _ in range(count)]
    generator = torch.Generator().manual_seed(1)
    for part in ("keys", "values"):
        noise = torch.randn(getattr(made[0], part).shape, generator=generator)
        for each in made:
            getattr(each, part).copy_(noise)
    return made


def small(decoder: Decoder, storage: KVBuffer) -> SmallDecoder:
    made = small_decoder(decoder, storage)
    assert made
    return made


def usual(
    decoder: Decoder, storage: KVBuffer, ids: Tensor, slot: int, position: int, added: Tensor | None = None
) -> Tensor:
    """Logits [1, V] after ids by blocks of ten kernels."""
    at = torch.tensor([slot, position], device=DEVICE)
    steps = torch.arange(len(ids), device=DEVICE)
    forward = ForwardGraphs(decoder, DEVICE).forward(WriteSlot(storage, slot))
    return forward(ForwardInputs(ids, at[:1], at[1:], steps, added))[0][-1:]


def usual_rows(
    decoder: Decoder, storage: KVBuffer, ids: Tensor, place: Tensor, step: int, tree: kernels.TreeRows
) -> Tensor:
    """Logits [n, V] after the tokens of a tree's level by blocks of ten kernels."""
    slot, position, steps = place[:1], place[1:] + tree.root + tree.depth, torch.zeros_like(ids)
    forward = ForwardGraphs(decoder, DEVICE).forward(WriteSlot(storage, 0))
    inputs = ForwardInputs(ids, slot + step, position, steps, masks=tree.masks, origin=slot + tree.root + 1)
    return forward(inputs)[0]


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Of many rows the largest of more differences counts."""
    tolerance = (
        TOLERANCE[found.dtype] * float(expected.abs().max()) * (1 + (found.dim() == 2 and len(found) > 1) / 2)
    )
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=0)


def assert_stored(mine: KVBuffer, theirs: KVBuffer, slot: int, n: int) -> None:
    """That n tokens are stored from ``slot`` on, and nothing behind them."""
    for found, expected in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
        new = slice(slot, slot + n)
        assert_close(found[:, :, new], expected[:, :, new])
        assert torch.equal(found[:, :, slot + n :], expected[:, :, slot + n :])
        found.copy_(expected)  # so that differences do not add up


@pytest.mark.parametrize("dtype", [*TOLERANCE])
@pytest.mark.parametrize("sizes", SIZES)
def test_forwards_of_few_tokens_say_and_store_the_same(sizes: dict[str, Any], dtype: torch.dtype) -> None:
    decoder = decoder_of(dtype, **sizes)
    mine, theirs = buffers(decoder, dtype)
    quick, generator = small(decoder, mine), torch.Generator().manual_seed(2)
    for n, slot in ((3, 0), (1, 3), (16, 4), (9, 150), (1, 159)):
        ids = torch.randint(0, 48, (n,), generator=generator).to(DEVICE)
        place = torch.tensor([slot - 2, slot + 5], device=DEVICE)
        assert_close(quick(ids, place, 2), usual(decoder, theirs, ids, slot, slot + 7))
        assert_stored(mine, theirs, slot, n)


def masks_of(n: int, before: int, generator: torch.Generator) -> Tensor:
    """Some of the ``before`` slots between the root and a level's n tokens, and of those; each sees itself."""
    seen = torch.rand(n, before + n, generator=generator) < 0.5
    seen[torch.arange(n), before + torch.arange(n)] = True
    return bits(seen).to(DEVICE)


@pytest.mark.parametrize("dtype", [*TOLERANCE])
@pytest.mark.parametrize("sizes", SIZES)
def test_levels_of_trees_say_and_store_the_same(sizes: dict[str, Any], dtype: torch.dtype) -> None:
    decoder = decoder_of(dtype, **sizes)
    mine, theirs = buffers(decoder, dtype)
    quick, generator = small(decoder, mine), torch.Generator().manual_seed(2)
    # Around tiles of slots, in a single one, up to the last bit.
    for n, slot, root, before, depth in (
        (1, 9, 2, 0, 1),
        (3, 54, 5, 4, 2),
        (8, 118, 1, 16, 3),
        (16, 4, 0, 48, 5),
    ):
        ids = torch.randint(0, 48, (n,), generator=generator).to(DEVICE)
        tree = kernels.TreeRows(masks_of(n, before, generator), root, depth)
        place, step = torch.tensor([slot, slot + 7], device=DEVICE), root + 1 + before
        found = quick(ids, place, step, None, tree)
        assert_close(found, usual_rows(decoder, theirs, ids, place, step, tree))
        assert_stored(mine, theirs, slot + step, n)


@pytest.mark.parametrize("bit", [0, 2, 6, 9])
def test_every_bit_of_a_mask_counts(bit: int) -> None:
    """Whether it stands for a slot of an earlier level or of this one, in the first tile of slots or the second."""
    decoder = decoder_of(torch.float32, **SIZES[0])
    ids, place = torch.tensor([4, 7, 9], device=DEVICE), torch.tensor([120, 120], device=DEVICE)
    masks = bits(torch.rand(3, 10, generator=torch.Generator().manual_seed(1)) < 0.5).to(DEVICE)
    (storage,) = buffers(decoder, torch.float32, 1)
    found = []
    for changed in (0, 1 << bit):
        tree = kernels.TreeRows(masks ^ torch.tensor([[0], [changed], [0]], device=DEVICE), 2, 2)
        found.append(small(decoder, storage)(ids, place, 10, None, tree))
    assert not torch.allclose(found[0][1], found[1][1], atol=1e-3)


def test_a_level_of_one_token_is_a_chain() -> None:
    decoder = decoder_of(torch.bfloat16, **SIZES[1])
    mine, theirs = buffers(decoder, torch.bfloat16)
    ids, place = torch.tensor([4], device=DEVICE), torch.tensor([90, 80], device=DEVICE)
    tree = kernels.TreeRows(torch.full((1, 1), -1, device=DEVICE), 2, 5)
    assert torch.equal(small(decoder, mine)(ids, place, 7, None, tree), small(decoder, theirs)(ids, place, 7))
    assert torch.equal(mine.keys, theirs.keys)


def test_what_is_added_to_the_embeddings_counts() -> None:
    decoder = decoder_of(torch.float32, **SIZES[0])
    mine, theirs = buffers(decoder, torch.float32)
    ids, place = torch.tensor([4, 7, 9], device=DEVICE), torch.tensor([11, 11], device=DEVICE)
    added = torch.randn(3, 96, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    found = small(decoder, mine)(ids, place, 0, added)
    assert_close(found, usual(decoder, theirs, ids, 11, 11, added))
    assert not torch.allclose(found, usual(decoder, theirs, ids, 11, 11), atol=1e-2)


def test_equal_calls_give_equal_bits() -> None:
    decoder = decoder_of(torch.bfloat16, **SIZES[1])
    ids, place = torch.tensor([4, 7, 9], device=DEVICE), torch.tensor([60, 60], device=DEVICE)
    first, second = (small(decoder, each)(ids, place, 0) for each in buffers(decoder, torch.bfloat16))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("architecture", "dtype", "changes"),
    [
        ("qwen2", torch.bfloat16, {}),  # biases
        ("qwen3", torch.bfloat16, {}),  # norms of heads
        ("llama", torch.float16, {}),  # could overflow
        ("llama", torch.bfloat16, {"head_dim": 16}),  # its halves are no tile
        ("llama", torch.bfloat16, {"hidden_size": 72}),
        ("llama", torch.bfloat16, {"intermediate_size": 50}),
    ],
)
def test_other_models_take_the_usual_blocks(
    architecture: str, dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    decoder = decoder_of(dtype, architecture, **{**SIZES[0], **changes})
    (storage,) = buffers(decoder, dtype, 1)
    assert small_decoder(decoder, storage) is None


def test_eight_bits_take_the_usual_blocks() -> None:
    decoder = decoder_of(torch.bfloat16, **SIZES[0])
    (storage,) = buffers(decoder, torch.bfloat16, 1)
    assert small_decoder(decoder.quantized(), storage) is None


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ((256, 1024, 4, 64, 384), True),  # the draft of ``small``
        ((384, 1536, 6, 64, 384), True),
        ((768, 3072, 12, 64, 384), False),  # llama-68m: as many bytes as launches
        ((256, 1024, 4, 64, 4096), False),  # a long cache
        ((2048, 5632, 32, 64, 384), False),
        ((512, 1040, 8, 64, 384), False),  # too many programs to sum up
    ],
)
def test_known_shapes(sizes: tuple[int, int, int, int, int], fits: bool) -> None:
    assert kernels.splittable(*sizes, torch.bfloat16) == fits
