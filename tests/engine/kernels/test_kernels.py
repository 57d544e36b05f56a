"""Every kernel against plain arithmetic in float64: by Triton's interpreter, or on the GPU where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import triton_interpreter
from support.caches import buffer_of, layer_of
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.cache import layout as layout_module
from triforce_chat.engine.cache import selection
from triforce_chat.engine.cache.chunk_mass import chunk_mass
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.quantization import GROUP, QuantizedTokens
from triforce_chat.engine.cache.retrieval import RetrievalCache, State
from triforce_chat.engine.cache.selection import best
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import QuantizedGroups
from triforce_chat.engine.kernels import blocking as tiles
from triforce_chat.engine.kernels import decoding
from triforce_chat.engine.kernels.decoding import Tiling, splits
from triforce_chat.engine.speculation.lookup import ORDERS, longest_match
from triforce_chat.lab.bench import kernels as bench
from triforce_chat.lab.bench.kernel_cases.linear import linear_sweep
from triforce_chat.lab.bench.kernel_cases.sections import TINY

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    triton_interpreter.patch()

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten is NaN."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, spoiling(getattr(owner, name)))


def spoiling(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def spoiled(*args: object, **kwargs: object) -> Tensor:
        made = make(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    return spoiled


def noise(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(size) + seed)
    return torch.randn(size, generator=generator).to(DEVICE, dtype)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether both are equal up to what the dtype rounds away."""
    tolerance = TOLERANCE[dtype or found.dtype]
    return torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 48, 128, 577])
def test_rms_norm(width: int, dtype: torch.dtype) -> None:
    x, weight = noise(3, width + 5, dtype=dtype)[:, :width], noise(width, dtype=dtype)
    normal = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    assert close(kernels.rms_norm(x, weight, 1e-5), normal * weight.double())


def test_rms_norm_of_heads_inside_one_buffer() -> None:
    buffer, weight = noise(3, 5 * 16), noise(16)
    heads = buffer.view(3, 5, 16)[:, 1:4]
    normal = heads.double() * (heads.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    found = kernels.rms_norm(heads, weight, 1e-6)
    assert found.shape == heads.shape
    assert close(found, normal * weight.double())


def test_rms_norm_rounds_as_transformers_does() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(192, 1e-5).to(DEVICE, torch.bfloat16)
    norm.weight.data.copy_(noise(192))
    x = noise(7, 192, dtype=torch.bfloat16, seed=1)
    different = (kernels.rms_norm(x, norm.weight, 1e-5) != norm(x)).double().mean()
    assert different < 0.01  # rsqrt may differ in its last bit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "query_heads", "kv_heads", "dim"), [(1, 3, 1, 8), (5, 4, 2, 24), (3, 2, 2, 16)]
)
def test_rotate_and_store(n: int, query_heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    buffer = noise(n, (query_heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, v = buffer.view(n, -1, dim).split([query_heads, kv_heads, kv_heads], 1)
    positions, frequencies = 130_000 - torch.arange(n, device=DEVICE), noise(dim // 2, seed=2).abs()
    angles = (positions[:, None].float() * frequencies).double().repeat(1, 2)
    cos, sin = ((turn(angles) * 1.2).to(dtype) for turn in (torch.cos, torch.sin))
    turned = apply_rotary_pos_emb(
        *(part.double().transpose(0, 1)[None] for part in (q, k)), cos.double()[None], sin.double()[None]
    )
    expected_q, expected_k = (part[0].transpose(0, 1) for part in turned)
    expected_v = v.clone()
    slab = torch.full((2, kv_heads, 12, dim), -7.0, dtype=dtype, device=DEVICE)
    at = torch.tensor([4], device=DEVICE)
    kernels.rotate_and_store(q, k, v, positions, frequencies, 1.2, slab[0], slab[1], at)
    assert close(q, expected_q)
    assert close(k, expected_k)
    assert torch.equal(v, expected_v)
    new = slice(4, 4 + n)
    assert torch.equal(slab[0, :, new], k.transpose(0, 1))
    assert torch.equal(slab[1, :, new], v.transpose(0, 1))
    assert (slab[:, :, :4] == -7).all()
    assert (slab[:, :, 4 + n :] == -7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [3, 1024, 1500])
def test_silu_mul(half: int, dtype: torch.dtype) -> None:
    both = noise(2, 2 * half + 1, dtype=dtype)[:, : 2 * half]
    gate, up = both.double().chunk(2, -1)
    assert close(kernels.silu_mul(both), torch.nn.functional.silu(gate) * up)


def attention(q: Tensor, keys: Tensor, values: Tensor, at: int, scale: float) -> Tensor:
    """By the definition, in float64."""
    n, heads, _ = q.shape
    group = heads // len(keys)
    keys, values = (part[:, : at + n].double().repeat_interleave(group, 0) for part in (keys, values))
    scores = torch.einsum("nhd,hsd->hns", q.double(), keys) * scale
    seen = torch.arange(at + n, device=q.device) <= at + torch.arange(n, device=q.device)[:, None]
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return torch.einsum("hns,hsd->nhd", weights, values)


def case(
    n: int, group: int, heads: int, dim: int, at: int, dtype: torch.dtype, size: int = 256
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries inside a wider buffer, and a slab in which every slot that no row sees is NaN."""
    q = noise(n, (group + 2) * heads, dim, dtype=dtype)[:, : group * heads]
    slab = noise(2, heads, size, dim, dtype=dtype)
    slab[:, :, at + n :] = float("nan")
    return q, slab[0], slab[1], torch.tensor([at], device=DEVICE, dtype=torch.int32)


ATTENTIONS = [  # new tokens, group, KV heads, head dimension, at
    (1, 1, 2, 16, 0),
    (1, 1, 1, 64, 127),
    (1, 4, 2, 64, 128),
    (2, 3, 3, 64, 62),
    (17, 1, 2, 128, 63),
    (17, 1, 1, 64, 200),
    (17, 4, 1, 64, 111),
    (40, 3, 1, 16, 0),
    (6, 1, 2, 128, 122),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "group", "heads", "dim", "at"), ATTENTIONS)
def test_decode_attention(n: int, group: int, heads: int, dim: int, at: int, dtype: torch.dtype) -> None:
    q, keys, values, place = case(n, group, heads, dim, at, dtype)
    found = kernels.decode_attention(q, keys, values, place, 0.3, at + n)
    assert found.shape == q.shape
    assert close(found, attention(q, keys, values, at, 0.3))


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("at", [0, 13, 14, 15, 16, 45, 93, 126])
def test_any_number_of_splits_serves_any_length(at: int, parts: int) -> None:
    q, keys, values, place = case(3, 2, 1, 16, at, torch.float32, 136)
    found = kernels.decode_attention(q, keys, values, place, 0.25, 136, Tiling(16, 16), parts)
    assert close(found, attention(q, keys, values, at, 0.25))


@pytest.mark.parametrize("rows", [16, 32, 64])
def test_any_tile_serves_any_number_of_rows(rows: int) -> None:
    q, keys, values, place = case(25, 3, 1, 32, 90, torch.bfloat16)
    found = kernels.decode_attention(q, keys, values, place, 0.25, 120, Tiling(rows, 32), 3)
    assert close(found, attention(q, keys, values, 90, 0.25))


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    q, keys, values, place = case(2, 1, 1, 16, 150, torch.float32)
    keys[:, :100] *= 300
    found = kernels.decode_attention(q, keys, values, place, 1.0, 152, Tiling(16, 16), 4)
    assert close(found, attention(q, keys, values, 150, 1.0))


QUANTIZED = [  # new tokens, group, KV heads, head dimension, quantized groups, at
    (1, 1, 2, 16, 1, 0),
    (3, 2, 2, 64, 5, 130),
    (17, 1, 1, 128, 3, 77),
    (9, 4, 2, 32, 9, 3),
    (32, 3, 1, 16, 2, 100),
    (2, 1, 1, 64, 0, 60),
]


@pytest.mark.parametrize("parts", [None, 1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "group", "heads", "dim", "groups", "at"), QUANTIZED)
def test_attention_over_quantized_tokens(
    n: int, group: int, heads: int, dim: int, groups: int, at: int, dtype: torch.dtype, parts: int | None
) -> None:
    """As over the numbers that the codes stand for; groups after those that count are not read."""
    q, keys, values, place = case(n, group, heads, dim, at, dtype)
    tokens = quantized_tokens(heads, dim, (groups + 2) * GROUP)
    count = groups * GROUP
    tokens.key_scales[:, groups:] = float("nan")
    tokens.value_scales[:, count:] = float("nan")
    each = [tokens._replace(tokens=count).of_head(head, torch.float64) for head in range(heads)]
    all_keys, all_values = (
        torch.cat([torch.stack(quantized), own.double()], 1)
        for quantized, own in zip(zip(*each, strict=True), (keys, values), strict=True)
    )
    amount = torch.tensor([count], device=DEVICE)
    found = kernels.decode_quantized(q, tokens[:4], amount, keys, values, place, 0.3, parts=parts)
    expected = attention(q, all_keys, all_values, count + at, 0.3)
    torch.testing.assert_close(found.double(), expected.double(), atol=2 * TOLERANCE[dtype], rtol=0.02)


def quantized_tokens(heads: int, dim: int, tokens: int) -> QuantizedTokens:
    """Some, whose channels differ in size and in their middle."""
    shape = Shape(1, heads, heads, dim, torch.float32, torch.device(DEVICE))
    made = QuantizedGroups(shape, tokens, 4, turned=True).first(0, tokens)
    keys, values = noise(heads, tokens, dim), noise(heads, tokens, dim, seed=1)
    made.write(0, keys * noise(dim, seed=2) + noise(dim, seed=3), values)
    return made


LISTS = [  # new tokens, group, KV heads, head dimension, chunk, chunks that are listed, slots after them
    (1, 1, 2, 16, 1, 37, 0),
    (3, 2, 2, 64, 1, 100, 9),
    (5, 1, 2, 128, 8, 9, 61),
    (7, 4, 1, 64, 16, 8, 3),
    (17, 1, 1, 64, 4, 50, 30),
]


def listing(heads: int, chunk: int, chunks: int, tail: int, size: int) -> Tensor:
    """Other chunks for every head, in reading order, then the slots from ``tail`` on: [heads, ...]."""
    worth = noise(heads, tail // chunk)
    places = best(worth, chunks)[..., None] * chunk + torch.arange(chunk, device=DEVICE)
    after = torch.arange(tail, size, device=DEVICE).expand(heads, -1)
    return torch.cat([places.flatten(1), after], 1).int()


@pytest.mark.parametrize("parts", [None, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "group", "heads", "dim", "chunk", "chunks", "tail"), LISTS)
def test_attention_by_a_list_of_slots(
    n: int,
    group: int,
    heads: int,
    dim: int,
    chunk: int,
    chunks: int,
    tail: int,
    dtype: torch.dtype,
    parts: int | None,
) -> None:
    """As over a copy of the listed slots, each head its own; no other slot is read, nor the list's end."""
    q, keys, values, _ = case(n, group, heads, dim, 380, dtype, 400)
    at = chunks * chunk + tail
    listed = listing(heads, chunk, chunks, 256, 400)
    my_keys, my_values = (
        torch.stack([part[head].index_select(0, listed[head]) for head in range(heads)])
        for part in (keys, values)
    )
    for part in (keys, values):
        for head in range(heads):
            unread = torch.ones(400, dtype=torch.bool, device=DEVICE)
            unread[listed[head, : at + n].long()] = False
            part[head, unread] = float("nan")
    listed[:, at + n :] = -(10**6)
    place = torch.tensor([at], device=DEVICE)
    found = kernels.decode_attention(q, keys, values, place, 0.3, at + n, parts=parts, listed=listed)
    assert close(found, attention(q, my_keys, my_values, at, 0.3))


WEIGHED = [  # new tokens, those that count, group, KV heads, head dimension, chunk, at
    (1, 1, 1, 2, 16, 1, 0),
    (3, 3, 2, 2, 64, 8, 200),
    (8, 5, 1, 2, 128, 8, 250),
    (7, 4, 4, 1, 64, 16, 121),
    (24, 20, 3, 1, 64, 4, 333),
    (2, 0, 2, 1, 16, 2, 40),
]


@pytest.mark.parametrize("parts", [None, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "count", "group", "heads", "dim", "chunk", "at"), WEIGHED)
def test_what_attention_pays_to_every_chunk(
    n: int,
    count: int,
    group: int,
    heads: int,
    dim: int,
    chunk: int,
    at: int,
    dtype: torch.dtype,
    parts: int | None,
) -> None:
    """What a CPU weighs, of those tokens that count; what was there before has faded by as many."""
    q, keys, values, place = case(n, group, heads, dim, at, dtype, 400)
    keys[:, : at // 3] *= 3  # so that the highest score is not the last
    before = noise(heads, -(-400 // chunk)).abs()
    total, counted = before.clone(), torch.tensor([count], device=DEVICE)
    weighing = kernels.Weighing(total, chunk, 16.0, counted)
    found = kernels.decode_attention(q, keys, values, place, 0.3, at + n, parts=parts, weighing=weighing)
    assert close(found, attention(q, keys, values, at, 0.3))
    faded = before * 0.5 ** (count / 16)
    if count:
        rows = q[:count].transpose(0, 1).float()
        paid = chunk_mass(rows, keys[:, : at + count].float(), chunk, 0.3).sum((1, 2))
        faded[:, : paid.shape[1]] += paid
        assert float(total.sum() - before.sum() * 0.5 ** (count / 16)) == pytest.approx(
            count * group * heads, rel=2e-3
        )
    assert torch.allclose(total, faded, rtol=5e-3, atol=1e-4)


TOGETHER = [  # group, KV heads, head dimension, sequences' new tokens, their slots, tokens that all begin with
    (1, 2, 16, (1, 1, 1), (5, 0, 140), 0),
    (3, 2, 16, (2, 5, 1), (60, 130, 9), 0),
    (1, 2, 64, (1, 1, 1, 1), (3, 70, 0, 20), 150),
    (4, 1, 16, (7, 1, 3), (0, 12, 129), 77),
    (2, 1, 16, (0, 4, 0), (0, 33, 0), 1),
]


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # rows of no sequence
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "heads", "dim", "new", "at", "shared"), TOGETHER)
def test_attention_of_several_sequences(
    group: int,
    heads: int,
    dim: int,
    new: tuple[int, ...],
    at: tuple[int, ...],
    shared: int,
    dtype: torch.dtype,
) -> None:
    """Each sequence gets what it gets alone after the common prefix; nobody reads another's keys."""
    places = [4, 1, 2, 0][: len(new)]
    q = noise(sum(new) + 3, group * heads, dim, dtype=dtype)
    own, before = noise(2, 5, heads, 160, dim, dtype=dtype), noise(2, heads, 192, dim, dtype=dtype, seed=1)
    before[:, :, shared:] = float("nan")
    for place in range(5):
        used = at[places.index(place)] + new[places.index(place)] if place in places else 0
        own[:, place, :, used:] = float("nan")
    starts = [sum(new[:i]) for i in range(len(new) + 1)]
    numbers = [torch.tensor(each, device=DEVICE) for each in (starts, at, places)]
    sequences = kernels.Sequences(numbers[0], numbers[1], numbers[2], 8)
    length = torch.tensor([shared], device=DEVICE)
    everybody = torch.tensor([0, sum(new)], device=DEVICE)
    prefix = kernels.Prefix(before[0], before[1], length, everybody) if shared else None
    found = kernels.attend_together(q, own[0], own[1], sequences, 0.3, 160, prefix)
    for i, place in enumerate(places):
        rows = slice(starts[i], starts[i + 1])
        keys, values = (
            torch.cat([first[:, :shared], later[place]], 1) for first, later in zip(before, own, strict=True)
        )
        assert close(found[rows], attention(q[rows], keys, values, shared + at[i], 0.3))


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_room_for_tokens_that_nobody_has_costs_no_pass_over_the_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, empty = list[decoding.Partial](), decoding.Partial.empty

    def kept(*sizes: Any) -> decoding.Partial:
        made.append(empty(*sizes))
        return made[-1]

    monkeypatch.setattr(decoding.Partial, "empty", kept)
    q, before, own = noise(80, 2, 16), noise(2, 2, 192, 16, seed=1), noise(2, 4, 2, 160, 16, seed=2)
    starts, at, places, length, rows = (
        torch.tensor(each, device=DEVICE)
        for each in ([0, 3, 9, 9, 9], [5, 0, 0, 0], [0, 1, 0, 0], [150], [0, 9])
    )
    sequences, prefix = (
        kernels.Sequences(starts, at, places, 20),
        kernels.Prefix(before[0], before[1], length, rows),
    )
    found = kernels.attend_together(q, own[0], own[1], sequences, 0.3, 160, prefix)
    keys, values = (torch.cat([b[:, :150], o[0]], 1) for b, o in zip(before, own, strict=True))
    assert close(found[:3], attention(q[:3], keys, values, 155, 0.3))
    tile = decoding.tiling(80, 16, q.dtype).rows
    assert tile < 80
    assert made[0].tops[:, :, tile:].isnan().all()
    assert not made[0].tops[0, :, :9].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_token_is_stored_where_its_sequence_lies(dtype: torch.dtype) -> None:
    q, k, v = (
        noise(4, 2, 16, dtype=dtype),
        noise(4, 1, 16, dtype=dtype, seed=1),
        noise(4, 1, 16, dtype=dtype, seed=2),
    )
    positions, frequencies = torch.tensor([7, 3, 90, 5], device=DEVICE), noise(8, seed=2).abs()
    slots, places = [4, 9, -1, 0], [2, 0, 1, 2]
    one = torch.full((2, 1, 12, 16), -7.0, dtype=dtype, device=DEVICE)
    several = torch.full((2, 3, 1, 12, 16), -7.0, dtype=dtype, device=DEVICE)
    turned_q, turned_k = q.clone(), k.clone()
    at, where = (torch.tensor(each, device=DEVICE) for each in (slots, places))
    turn = frequencies, 1.2
    kernels.rotate_and_store(turned_q, turned_k, v, positions, *turn, several[0], several[1], at, where)
    for i, (slot, place) in enumerate(zip(slots, places, strict=True)):
        my_q, my_k, my_v = (each[i : i + 1].clone() for each in (q, k, v))
        first = torch.tensor([max(slot, 0)], device=DEVICE)
        kernels.rotate_and_store(my_q, my_k, my_v, positions[i : i + 1], *turn, one[0], one[1], first)
        assert torch.equal(my_q, turned_q[i : i + 1])
        if slot >= 0:
            assert torch.equal(several[:, place, :, slot], one[:, :, slot])
    assert (several[:, 1] == -7).all()
    assert (several[:, 2] != -7).any(-1).sum() == 4


SCORES = [
    (1, 1, 2, 16, 1, 5),
    (3, 2, 1, 32, 2, 70),
    (2, 1, 2, 128, 8, 11),
    (16, 4, 1, 16, 16, 9),
    (5, 1, 1, 64, 64, 3),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "group", "heads", "dim", "chunk", "chunks"), SCORES)
def test_chunk_scores(
    m: int, group: int, heads: int, dim: int, chunk: int, chunks: int, dtype: torch.dtype
) -> None:
    slots = chunks * chunk
    q = noise(m, group * heads, dim, dtype=dtype).transpose(0, 1)  # strided
    slab = torch.full((heads, slots + 9, dim), float("nan"), dtype=dtype, device=DEVICE)
    slab[:, 3 : 3 + slots] = noise(heads, slots, dim, dtype=dtype, seed=1)
    keys = slab[:, 3 : 3 + slots]
    found = kernels.chunk_scores(q, keys, chunk)
    rows = q.double().unflatten(0, (heads, -1)).flatten(1, 2)
    means = keys.double().unflatten(1, (chunks, chunk)).mean(2)
    assert found.dtype == torch.float32
    assert close(found, rows @ means.transpose(1, 2) * dim**-0.5, torch.float32)
    assert close(kernels.chunk_scores(q, keys, chunk, 0.5), rows @ means.transpose(1, 2) * 0.5, torch.float32)


@pytest.mark.parametrize(("chunk", "slots"), [(3, 9), (128, 256), (4, 10), (0, 0)])
def test_chunks_are_powers_of_two_that_fill_the_keys(chunk: int, slots: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        kernels.chunk_scores(noise(1, 1, 16), noise(1, slots, 16), chunk)


GATHERS = [  # layers, KV heads, head dimension, chunk, tokens, budget of tokens
    (2, 2, 16, 8, 200, 96),
    (3, 1, 64, 1, 90, 40),
    (1, 2, 24, 64, 700, 300),
    (2, 3, 128, 8, 333, 200),
    (1, 1, 8, 256, 1600, 800),
    (2, 2, 16, 5, 121, 60),
    (2, 2, 16, 8, 61, 96),  # no chunks: all tokens fit
    (1, 2, 16, 8, 0, 96),  # no tokens either
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layers", "heads", "dim", "chunk", "total", "tokens"), GATHERS)
def test_gather_chunks(
    layers: int, heads: int, dim: int, chunk: int, total: int, tokens: int, dtype: torch.dtype
) -> None:
    """Bit by bit what a layout takes, of layers inside wider buffers; no slot behind is touched."""
    budget = Budget(tokens, chunk, sinks=5, tail=7)
    layout = Layout.of(total, budget)
    assert bool(layout.chunks) == (total > tokens)
    # Slots before heads, and room on all sides: no two dimensions can be taken for one.
    source = noise(layers + 1, total + 9, heads, dim + 8, dtype=dtype)[1:, :, :, 8:].transpose(1, 2)
    source.view(bits(dtype))[:, :, :3, ::2] = -1  # a NaN with a payload
    chosen = picked(layers, heads, layout)
    found, expected = noise(2, layers + 2, heads, budget.capacity, dim, dtype=dtype, seed=1)
    expected.copy_(found)
    kernels.gather_chunks(source, chosen, found[1:-1], layout.sinks, layout.tail, total, chunk)
    for layer in range(layers):
        layout.gather_layer(source[layer], None if chosen is None else chosen[layer], expected[1 + layer])
    assert torch.equal(found.view(bits(dtype)), expected.view(bits(dtype)))


@pytest.mark.parametrize("size", [1, 2, 9, 60, 1024, 1025, 2500])
@pytest.mark.parametrize("words", [2, 5, 400])
def test_search(size: int, words: int) -> None:
    """The place that plain arithmetic finds, whatever stands behind the end."""
    history = torch.randint(0, words, (size,), generator=torch.Generator().manual_seed(size)).to(DEVICE)
    for end in {1, size // 2 + 1, size}:
        at = torch.tensor(end, device=DEVICE)
        n = 1 + end % 20
        tokens, length = kernels.search(history, at, ORDERS, n)
        place, matched = longest_match(history[:end].cpu().numpy())
        assert int(length) == matched
        assert tokens.tolist() == [int(history[place + i % max(1, end - place)]) for i in range(n)]


def bits(dtype: torch.dtype) -> torch.dtype:
    return torch.int32 if dtype.itemsize == 4 else torch.int16


def picked(layers: int, heads: int, layout: Layout) -> Tensor | None:
    """Other chunks for every head, in reading order; the first and the last candidate among them."""
    if not layout.chunks:
        return None
    count = (layout.tail - layout.sinks) // layout.chunk
    worth = noise(layers, heads, count)
    worth[0, 0, 0] = worth[-1, -1, -1] = 9.0
    return best(worth, layout.chunks)


@pytest.fixture
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches take the way of a GPU, whatever the device."""
    for module in (layout_module, selection):
        monkeypatch.setattr(module, "kernels_run", lambda _device: True)


@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize("together", [1, 2, 9])
@pytest.mark.parametrize("m", [0, 3])
def test_layers_are_scored_together_as_one_by_one(
    together: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, slab = noise(3, 4, m, 16), noise(3, 2, 100, 16, seed=1)
    keys = slab[:, :, 8:72].unflatten(2, (-1, 8))
    monkeypatch.setattr(selection, "LOGITS_BYTES", together * 4 * 8 * 4 * max(1, m))
    launches: list[Tensor] = []
    monkeypatch.setattr(kernels, "chunk_scores", counted(kernels.chunk_scores, launches))
    found = selection.layer_scores(selection.MeanKey(), queries, keys)
    assert len(launches) == -(-3 // together)
    assert {seen.untyped_storage().data_ptr() for seen in launches} == {slab.data_ptr()}  # no copies
    monkeypatch.setattr(selection, "kernels_run", lambda _device: False)
    for layer in range(3):
        assert close(found[layer], selection.MeanKey().scores(queries[layer], keys[layer]))


def counted(call: Callable[..., Tensor], seen: list[Tensor]) -> Callable[..., Tensor]:
    def noted(q: Tensor, keys: Tensor, chunk: int) -> Tensor:
        seen.append(keys)
        return call(q, keys, chunk)

    return noted


@pytest.mark.usefixtures("kernels_everywhere")
@pytest.mark.parametrize("policy", [selection.MeanKey(), selection.MinMaxKey(), selection.Recent()])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_retrieval_cache_built_by_kernels_is_the_plain_one(
    policy: selection.Policy, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a forward tells of all layers together, or of each while it is on the device."""
    found = built(policy, at_once)
    monkeypatch.setattr(layout_module, "kernels_run", lambda _device: False)
    monkeypatch.setattr(selection, "kernels_run", lambda _device: False)
    expected = built(policy, at_once=False)
    assert found.layout.chunks == expected.layout.chunks == 5
    assert torch.equal(found.storage.keys, expected.storage.keys)
    assert torch.equal(found.storage.values, expected.storage.values)
    for layer in range(3):
        for mine, whole in zip(
            layer_of(found.storage, layer), layer_of(found.source.storage, layer), strict=True
        ):
            assert torch.equal(mine[:, :8], whole[:, :8])  # the sinks
    assert torch.equal(found.storage.keys[:, :, found._slot(200)], buffer_of(found.source).keys[:, :, 200])
    assert not found.storage.keys[:, :, found._slot(201) :].any()


def built(policy: selection.Policy, at_once: bool) -> RetrievalCache:
    """By a token that follows 200 others through three layers."""
    full = FullCache(Shape(3, 4, 2, 16, torch.float32, torch.device(DEVICE)), 300)
    budget = Budget(tokens=64, chunk=8, sinks=8, tail=16, stride=8, scratch=8)
    cache = RetrievalCache(full, budget, policy, lambda _event: None)
    q, (k, v) = noise(3, 1, 4, 201, 16), noise(2, 3, 1, 2, 201, 16, seed=1)
    for start, end in ((0, 200), (200, 201)):
        for layer in range(3):
            new = (each[layer, :, :, start:end] for each in (q, k, v))
            if at_once and start:
                full.queries.write(layer, start, next(new))
                full.storage.write(layer, start, *new)
            else:
                full.update(layer, *new)
        if at_once and start:
            full.wrote(1, 1)
        full.advance(end - start)
        cache.ready(1)
    assert cache.state is State.READY
    return cache


def test_a_head_dimension_is_a_power_of_two() -> None:
    keys, values = noise(2, 1, 4, 96)
    with pytest.raises(ValueError, match="96"):
        kernels.decode_attention(noise(1, 1, 96), keys, values, torch.tensor([0]), 1.0, 1)


def test_quantized_rows_are_within_half_a_step() -> None:
    weight = noise(5, 40) * torch.tensor([1.0, 1e-3, 50.0, 0.0, 1.0], device=DEVICE)[:, None]
    made = kernels.quantize(weight)
    assert made.data.dtype == torch.int8
    data, scale = made.data, made.scale[:, 0]
    assert (data.float() * scale[:, None] - weight).abs().le(scale[:, None] * 0.501).all()
    assert data.abs().amax(1).tolist() == [127, 127, 127, 0, 127]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "outputs", "inputs"), [(1, 48, 64), (17, 33, 200), (40, 16, 48), (3, 100, 1040)]
)
def test_int8_linear(n: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, weight = (
        noise(n, inputs + 4, dtype=dtype)[:, :inputs],
        kernels.quantize(noise(outputs, inputs, seed=3)),
    )
    dense = weight.data.double() * weight.scale.double() / inputs**0.5
    weight = weight._replace(scale=weight.scale / inputs**0.5)
    residual = noise(n, outputs, dtype=dtype, seed=4)
    expected = x.double() @ dense.T
    assert close(kernels.quantized_linear(x, weight), expected)
    assert close(kernels.quantized_linear(x, weight, residual), expected + residual.double())
    bias = residual[:1].expand(n, -1)
    assert close(kernels.quantized_linear(x, weight, bias), expected + bias.double())


def quantized(outputs: int, inputs: int) -> tuple[kernels.QuantizedWeight, Tensor]:
    """A weight whose products are about as large as the input, and the same in float64."""
    made = kernels.quantize(noise(outputs, inputs, seed=3) / inputs**0.5)
    return made, made.data.double() * made.scale.double()


def normal(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.double() * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "outputs", "inputs"), [(1, 48, 64), (9, 33, 200), (3, 20, 1040)])
def test_int8_linear_norms_its_input(n: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight, dense = quantized(outputs, inputs)
    x = 3 * noise(n, inputs + 4, dtype=dtype)[:, :inputs]
    norm = kernels.Norm(noise(inputs, dtype=dtype, seed=1), 0.1)
    add = noise(n, outputs, dtype=dtype, seed=4)
    expected = normal(x, *norm) @ dense.T
    assert close(kernels.quantized_linear(x, weight, norm=norm), expected)
    assert close(kernels.quantized_linear(x, weight, add, norm), expected + add.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "outputs", "inputs"), [(1, 48, 64), (9, 33, 200)])
def test_int8_linear_gates_its_output(n: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight, dense = quantized(2 * outputs, inputs)
    x, norm = noise(n, inputs, dtype=dtype), kernels.Norm(noise(inputs, dtype=dtype, seed=1), 1e-5)
    for given, right in ((None, x.double()), (norm, normal(x, *norm))):
        gate, up = (right @ dense.T).chunk(2, -1)
        found = kernels.quantized_linear(x, weight, norm=given, gated=True)
        assert close(found, torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("outputs", [16, 1024, 4096, 11008, 12288, 49152])
@pytest.mark.parametrize("n", [1, 16, 17, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_of_linear_layers_fit_the_chip(n: int, outputs: int, dtype: torch.dtype, gated: bool) -> None:
    shape = tiles.blocking(n, outputs, dtype, gated)
    assert shape.stages >= 3
    assert (shape.stages - 1) * tiles.tile_bytes(n, shape, dtype, gated) <= 115_000  # two on a processor
    assert shape.inputs >= 16  # of a product


@pytest.mark.parametrize("shape", [tiles.Blocking(64, 32, 3, 4), tiles.Blocking(32, 16, 3, 2)])
def test_any_tile_serves_any_weight(shape: tiles.Blocking) -> None:
    x, (weight, dense) = noise(3, 72), quantized(70, 72)
    expected = x.double() @ dense.T
    assert close(kernels.quantized_linear(x, weight, shape=shape), expected)


@pytest.mark.parametrize(("heads", "row_tiles"), [(32, 1), (8, 1), (8, 2), (3, 1), (3, 2), (40, 1), (4, 1)])
def test_programs_fill_the_processors(heads: int, row_tiles: int) -> None:
    programs = heads * row_tiles * splits(heads, row_tiles, 124_928)
    waves = -(-programs // 264)
    assert programs / (264 * waves) > 0.9
    assert waves <= 2


@pytest.mark.parametrize("most", [1, 128, 129, 4_100])
def test_short_views_are_not_split_into_crumbs(most: int) -> None:
    assert 1 <= splits(1, 1, most) <= -(-most // 128)
    assert splits(1_000, 4, most) == 1


def test_the_bench_runs_through(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--tiny", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert not [row for row in found if row["failure"]]
    errors = [row["error"] for row in found if row["error"] is not None]
    assert len(errors) >= 5
    assert max(errors) < 0.03
    assert {"attention", "quantized_linear", "rms_norm", "silu_mul", "chunk_scores", "gather_chunks"} <= {
        row["kernel"] for row in found
    }


def test_the_bench_ends_in_time_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--tiny", "--seconds", "0"])
    assert "the rest was not measured" in capsys.readouterr().out


def test_the_best_tiles_of_a_sweep_are_one_line_for_each_shape() -> None:
    rows = [
        bench.Row(f"quantized_linear {name}", "48x64", ms, 0.001)
        for name, ms in (("32x64x6x4", 0.02), ("16x64x6x4", 0.01))
    ]
    rows += [
        bench.Row("quantized_linear", "48x64", 0.003, 0.001),
        bench.Row("quantized_linear 64x64x6x4", "48x64", failure="no"),
    ]
    assert bench.best(rows) == ["best quantized_linear 48x64: 16x64x6x4 10.00, 32x64x6x4 20.00"]


def test_a_sweep_tries_every_shape_before_the_next_tiles() -> None:
    made = list(linear_sweep(TINY[0][0], (3,)))
    assert len({case.shape for case in made[:5]}) == 5
    gates = [case for case in made if "gate" in case.shape]
    assert {int(case.kernel.split()[1].split("x")[0]) for case in gates} == {16, 32}
    assert all(torch.isfinite(case.call(case.copies[0])).all() for case in made[:5])
