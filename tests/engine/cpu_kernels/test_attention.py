"""Attention and rotary embeddings of the compiled library against fp64 and transformers, on every instruction path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from triforce_chat.engine.cache.allocation import rounded_up
from triforce_chat.engine.cache.chunk_mass import ChunkMass
from triforce_chat.engine.cache.quantization import INT4, INT8
from triforce_chat.engine.cache.quantized import QuantizedKV
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.cpu_kernels.attention import attend, rotate
from triforce_chat.engine.cpu_kernels.few_rows import Norm
from triforce_chat.engine.forward.attention import read_attention

SPAN = 512  # keys whose scores the library keeps at a time
# (query heads, KV heads, dimension)
SHAPES = ((14, 2, 64), (4, 4, 80), (6, 1, 128), (3, 3, 16))

pytestmark = pytest.mark.usefixtures("path")


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def view(kv_heads: int, length: int, dim: int, dtype: torch.dtype = torch.float32) -> KVView:
    """A part of larger storage, whose padding is not zero."""
    keys, values = noise(2, 1, kv_heads, rounded_up(length) + 64, dim, seed=2).to(dtype)
    width = rounded_up(length)
    return KVView(keys[:, :, :width], values[:, :, :width], length)


def expected(query: Tensor, stored: KVView, scale: float, visible: Tensor | None = None) -> Tensor:
    """query [1, Hq, n, D] -> fp64 [n, Hq * D]."""
    group = query.shape[1] // stored.keys.shape[1]
    values = stored.values[0, :, : stored.length].double().repeat_interleave(group, 0)
    return (weights(query, stored, scale, visible) @ values).transpose(0, 1).flatten(1)


def weights(query: Tensor, stored: KVView, scale: float, visible: Tensor | None = None) -> Tensor:
    """query [1, Hq, n, D] -> fp64 [Hq, n, length]."""
    _, heads, n, _ = query.shape
    group = heads // stored.keys.shape[1]
    keys = stored.keys[0, :, : stored.length].double().repeat_interleave(group, 0)
    scores = scale * query[0].double() @ keys.transpose(1, 2)  # [Hq, n, S]
    seen = torch.ones(n, n, dtype=torch.bool).tril() if visible is None else visible
    scores[:, :, stored.length - seen.shape[1] :].masked_fill_(~seen, float("-inf"))
    return scores.softmax(-1)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(
    ("n", "length"), [(1, 1), (1, 7), (8, 8), (3, SPAN), (2, SPAN + 1), (9, SPAN + 4), (33, 3 * SPAN)]
)
def test_attention_equals_that_in_fp64(heads: int, kv_heads: int, dim: int, n: int, length: int) -> None:
    query, stored = noise(1, heads, n, dim), view(kv_heads, length, dim)
    found = attend(query, *stored[:3], 0.3)
    torch.testing.assert_close(found.double(), expected(query, stored, 0.3), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("kv", [INT8, INT4])
@pytest.mark.parametrize(
    ("before", "n"), [(0, 1), (63, 1), (60, 9), (SPAN, 1), (SPAN + 120, 16), (3 * SPAN, 5)]
)
def test_quantized_tokens_come_first(
    heads: int, kv_heads: int, dim: int, kv: torch.dtype, before: int, n: int
) -> None:
    """As torch's products over the numbers that the codes stand for."""
    shape = Shape(1, heads, kv_heads, dim, torch.float32, torch.device("cpu"), kv)
    storage, (keys, values) = QuantizedKV(shape, 4 * SPAN), noise(2, 1, kv_heads, before + n, dim, seed=2)
    keys = keys * noise(dim, seed=4) * 5
    if before:
        storage.write(0, 0, keys[:, :, :before], values[:, :, :before])
    view = storage.write(0, before, keys[:, :, before:], values[:, :, before:]).masked(n)
    query = noise(1, heads, n, dim)
    found = attend(query, *view[:3], 0.3, view.slots, view.visible, before=view.before)
    wanted = read_attention(query, view, 0.3)[0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
    assert before < 64 or not torch.allclose(
        found, attend(query, *view[:3], 0.3, None, view.visible), atol=1e-2
    )


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_quantized_tokens_may_be_all(heads: int, kv_heads: int, dim: int) -> None:
    """And end within a group."""
    shape = Shape(1, heads, kv_heads, dim, torch.float32, torch.device("cpu"), INT8)
    storage, (keys, values) = QuantizedKV(shape, 2 * SPAN), noise(2, 1, kv_heads, SPAN, dim, seed=2)
    storage.write(0, 0, keys, values)
    view, query = storage.view(0, 100), noise(1, heads, 3, dim)
    assert view.length == 0
    found = attend(query, *view[:3], 0.3, before=view.before)
    wanted = read_attention(query, view, 0.3)[0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(("n", "tail", "length"), [(1, 4, 9), (6, 6, 6), (5, 12, SPAN + 3), (9, 9, SPAN + 4)])
def test_a_tree_s_tokens_see_their_ancestors_alone(
    heads: int, kv_heads: int, dim: int, n: int, tail: int, length: int
) -> None:
    query, stored = noise(1, heads, n, dim), view(kv_heads, length, dim)
    visible = noise(n, tail, seed=3) > 0
    visible[:, tail - n :] |= torch.eye(n, dtype=torch.bool)
    visible[0, 0] = n == tail  # a token's own place
    found = attend(query, *stored[:3], 0.3, visible=visible)
    wanted = expected(query, stored, 0.3, visible)
    torch.testing.assert_close(found.double(), wanted, atol=3e-6, rtol=1e-5)
    assert (wanted - expected(query, stored, 0.3)).abs().max() > 1e-3


def test_a_tree_s_tokens_in_fp16_are_read_where_they_lie_and_weighed() -> None:
    query, stored = noise(1, 6, 5, 64), view(2, 3 * SPAN, 64, torch.float16)
    lists = noise(2, 3 * SPAN, seed=3).argsort(1).int()
    picked = stored._replace(length=SPAN + 3, slots=lists[:, : SPAN + 3])
    visible = torch.eye(5, 8, dtype=torch.bool).flip(1)
    mass = ChunkMass(torch.zeros(2, SPAN), 8)
    found = attend(query, *picked[:3], 0.3, picked.slots, visible, mass=mass)
    wanted = expected(query, picked.gathered, 0.3, visible)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    paid = weights(query, picked.gathered, 0.3, visible).unflatten(0, (2, -1)).sum((1, 2))
    torch.testing.assert_close(mass.total[:, 63].double(), paid[:, 504:512].sum(1), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(mass.total[:, 64].double(), paid[:, 512:].sum(1), atol=2e-6, rtol=1e-5)


def test_a_chain_as_a_tree_is_the_same_bit_by_bit() -> None:
    query, stored = noise(1, 6, 7, 64), view(2, SPAN + 3, 64)
    chain = torch.ones(7, 7, dtype=torch.bool).tril()
    assert torch.equal(attend(query, *stored[:3], 0.3, visible=chain), attend(query, *stored[:3], 0.3))


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_keys_and_values_in_fp16_count_as_the_fp32_numbers_that_they_are(
    heads: int, kv_heads: int, dim: int
) -> None:
    query, half = noise(1, heads, 9, dim), view(kv_heads, SPAN + 77, dim, torch.float16)
    whole = half._replace(keys=half.keys.float(), values=half.values.float())
    assert torch.equal(attend(query, *half[:3], 0.3), attend(query, *whole[:3], 0.3))


@pytest.mark.parametrize("scale", [1e-4, 30.0])
def test_scores_may_be_alike_or_far_apart(scale: float) -> None:
    query, stored = noise(1, 4, 5, 64), view(2, SPAN + 40, 64)
    torch.testing.assert_close(
        attend(query, *stored[:3], scale).double(), expected(query, stored, scale), atol=1e-4, rtol=1e-4
    )


def test_a_row_is_the_same_beside_any_others() -> None:
    stored, query = view(2, SPAN + 9, 64), noise(1, 14, 20, 64)
    whole = attend(query, *stored[:3], 0.1)
    for n in (1, 2, 3, 8, 9):
        some = attend(query[:, :, -n:], *stored[:3], 0.1)
        assert torch.equal(some, whole[-n:])


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(("n", "length"), [(1, 1), (3, 40), (9, SPAN + 4), (2, 2 * SPAN)])
def test_tokens_are_read_where_they_lie(heads: int, kv_heads: int, dim: int, n: int, length: int) -> None:
    """Every KV head has a list of its own, out of order; the lists are parts of longer ones."""
    query, stored = noise(1, heads, n, dim), view(kv_heads, 3 * SPAN, dim)
    lists = noise(kv_heads, 3 * SPAN, seed=3).argsort(1).int()
    picked = stored._replace(length=length, slots=lists[:, :length])
    found = attend(query, *picked[:3], 0.3, picked.slots)
    wanted = expected(query, picked.gathered, 0.3)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("chunk", [1, 8, 13, 600])
@pytest.mark.parametrize(("n", "length"), [(1, 1), (5, 40), (9, SPAN + 4), (2, 2 * SPAN)])
def test_what_is_paid_to_chunks_is_added_up(
    heads: int, kv_heads: int, dim: int, chunk: int, n: int, length: int
) -> None:
    query, stored = noise(1, heads, n, dim), view(kv_heads, length, dim)
    chunks = -(-length // chunk)
    mass = ChunkMass(torch.full((kv_heads, chunks + 1), 0.25), chunk)
    found = attend(query, *stored[:3], 0.3, mass=mass)
    assert torch.equal(found, attend(query, *stored[:3], 0.3))  # bit by bit what it is without
    paid = weights(query, stored, 0.3).unflatten(0, (kv_heads, -1)).sum((1, 2))
    starts = range(0, length, chunk)
    wanted = torch.stack([paid[:, at : at + chunk].sum(-1) for at in starts], 1) + 0.25
    torch.testing.assert_close(mass.total[:, :-1].double(), wanted, atol=2e-6, rtol=1e-5)
    assert (mass.total[:, -1] == 0.25).all()


def test_threads_change_nothing() -> None:
    stored, query, before = view(2, 2 * SPAN + 9, 64), noise(1, 14, 3, 64), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(attend(query, *stored[:3], 0.1))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_queries_may_be_parts_of_wider_rows() -> None:
    stored, wide = view(2, 70, 64), noise(3, 10 * 64)
    query = wide.view(1, 3, 10, 64).transpose(1, 2)[:, :4]
    assert torch.equal(attend(query, *stored[:3], 0.1), attend(query.contiguous(), *stored[:3], 0.1))


@pytest.mark.parametrize("normed", [False, True])
def test_rotation_equals_transformers(normed: bool) -> None:
    n, heads, dim = 5, (4, 2), 32
    x, angles = noise(n, 8 * dim), noise(n, dim // 2, seed=3).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    weights = noise(2, dim, seed=4)
    norms = (Norm(weights[0], 1e-5), Norm(weights[1], 1e-5)) if normed else (None, None)
    query, key, value = x.clone().view(n, 8, dim).split((4, 2, 2), 1)
    if normed:
        query, key = (
            torch.nn.functional.rms_norm(part, (dim,), weight, 1e-5)
            for part, weight in zip((query, key), weights, strict=True)
        )
    turned = apply_rotary_pos_emb(query, key, cos, sin)
    rotate(x, heads, dim, norms, cos, sin)
    torch.testing.assert_close(x.view(n, 8, dim), torch.cat((*turned, value), 1), atol=1e-6, rtol=1e-5)
