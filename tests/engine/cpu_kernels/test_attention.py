"""Attention and rotary embeddings of the compiled library against fp64 and transformers, on every instruction path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from triforce_chat.engine.cache.chunk_mass import ChunkMass
from triforce_chat.engine.cache.storage import KVView, rounded_up
from triforce_chat.engine.cpu_kernels.attention import attend, rotate
from triforce_chat.engine.cpu_kernels.few_rows import Norm

SPAN = 512  # keys whose scores the library keeps at a time
# (query heads, KV heads, dimension)
SHAPES = ((14, 2, 64), (4, 4, 80), (6, 1, 128), (3, 3, 16))

pytestmark = pytest.mark.usefixtures("path")


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def view(kv_heads: int, length: int, dim: int) -> KVView:
    """A part of larger storage, whose padding is not zero."""
    keys, values = noise(2, 1, kv_heads, rounded_up(length) + 64, dim, seed=2)
    width = rounded_up(length)
    return KVView(keys[:, :, :width], values[:, :, :width], length)


def expected(query: Tensor, stored: KVView, scale: float) -> Tensor:
    """query [1, Hq, n, D] -> fp64 [n, Hq * D]."""
    group = query.shape[1] // stored.keys.shape[1]
    values = stored.values[0, :, : stored.length].double().repeat_interleave(group, 0)
    return (weights(query, stored, scale) @ values).transpose(0, 1).flatten(1)


def weights(query: Tensor, stored: KVView, scale: float) -> Tensor:
    """query [1, Hq, n, D] -> fp64 [Hq, n, length]."""
    _, heads, n, _ = query.shape
    group = heads // stored.keys.shape[1]
    keys = stored.keys[0, :, : stored.length].double().repeat_interleave(group, 0)
    scores = scale * query[0].double() @ keys.transpose(1, 2)  # [Hq, n, S]
    hidden = torch.full((n, n), float("-inf"), dtype=torch.float64).triu(1)
    scores[:, :, stored.length - n :] += hidden
    return scores.softmax(-1)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(
    ("n", "length"), [(1, 1), (1, 7), (8, 8), (3, SPAN), (2, SPAN + 1), (9, SPAN + 4), (33, 3 * SPAN)]
)
def test_attention_equals_that_in_fp64(heads: int, kv_heads: int, dim: int, n: int, length: int) -> None:
    query, stored = noise(1, heads, n, dim), view(kv_heads, length, dim)
    found = attend(query, *stored[:3], 0.3)
    torch.testing.assert_close(found.double(), expected(query, stored, 0.3), atol=3e-6, rtol=1e-5)


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
    lists = torch.stack([torch.randperm(3 * SPAN) for _ in range(kv_heads)]).int()
    picked = stored._replace(length=length, slots=lists[:, :length])
    found = attend(query, *picked[:3], 0.3, picked.slots)
    wanted = expected(query, picked.gathered, 0.3)
    torch.testing.assert_close(found.double(), wanted, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("chunk", [1, 8, 13, 600])
@pytest.mark.parametrize(("n", "length"), [(1, 1), (5, 40), (9, SPAN + 4), (2, 2 * SPAN)])
def test_what_is_paid_to_chunks_is_added_up(
    heads: int, kv_heads: int, dim: int, chunk: int, n: int, length: int
) -> None:
    query, stored = noise(1, heads, n, dim), view(kv_heads, length, dim)
    chunks = -(-length // chunk)
    mass = ChunkMass(torch.full((kv_heads, chunks + 1), 0.25), chunk)
    found = attend(query, *stored[:3], 0.3, None, mass)
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
