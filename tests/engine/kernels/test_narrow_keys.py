"""Kernels over keys and values in 8 or 4 bits, against plain arithmetic: by Triton's interpreter, or on the GPU."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from support import triton_interpreter
from torch import Tensor

pytest.importorskip("triton")

from triforce_chat.engine import kernels
from triforce_chat.engine.cache.quantization import BITS, FP8, GROUP, INT4, INT8, QuantizedTokens, narrowed
from triforce_chat.engine.cache.quantized import NEWEST
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import QuantizedGroups
from triforce_chat.engine.forward.graphs import own_groups
from triforce_chat.engine.kernels.decoding import Tiling

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    triton_interpreter.patch()

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}
FORMATS = (INT8, INT4)


def noise(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(size) + seed)
    return torch.randn(size, generator=generator).to(DEVICE, dtype)


def attention(q: Tensor, seen: Iterable[Tensor], scale: float) -> Tensor:
    """Of one token over all keys, by the definition, in float64: q [Hq, D], keys and values [Hkv, S, D]."""
    keys, values = seen
    group = len(q) // len(keys)
    keys, values = (part.double().repeat_interleave(group, 0) for part in (keys, values))
    weights = torch.softmax((keys @ q.double()[..., None])[..., 0] * scale, -1)
    return (weights[:, None] @ values)[:, 0]


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    tolerance = TOLERANCE[dtype]
    return torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


SLOTS = [(1, 1, 2, 16, 0), (3, 3, 2, 64, 130), (17, 1, 1, 128, 77), (8, 4, 1, 64, 200)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "group", "heads", "dim", "at"), SLOTS)
def test_attention_over_slots_of_8_bits(
    n: int, group: int, heads: int, dim: int, at: int, dtype: torch.dtype
) -> None:
    """As over the numbers that they stand for; none after the visible ones is read."""
    q, slots = noise(n, group * heads, dim, dtype=dtype), noise(2, heads, 256, dim)
    slots[:, :, at + n :] = float("nan")
    keys, values = slots.to(FP8)
    place = torch.tensor([at], device=DEVICE)
    found = kernels.decode_attention(q, keys, values, place, 0.3, at + n)
    for i in range(n):
        seen = (part[:, : at + i + 1].float() for part in (keys, values))
        assert close(found[i], attention(q[i], seen, 0.3), dtype)


def test_queries_over_slots_of_8_bits_may_be_larger_than_fp16_holds() -> None:
    q, (keys, values) = 4e4 * noise(3, 2, 16, dtype=torch.bfloat16), noise(2, 1, 64, 16).to(FP8)
    assert q.abs().max() > torch.finfo(torch.float16).max
    place = torch.tensor([40], device=DEVICE)
    found = kernels.decode_attention(q, keys, values, place, 1e-5, 43)
    for i in range(3):
        seen = (part[:, : 41 + i].float() for part in (keys, values))
        assert close(found[i], attention(q[i], seen, 1e-5), torch.bfloat16)


def test_attention_of_several_sequences_over_slots_of_8_bits() -> None:
    q = noise(5, 4, 16)
    own, before = noise(2, 3, 2, 80, 16).to(FP8), noise(2, 2, 128, 16, seed=1).to(FP8)
    keys, values = own
    starts, at, places, shared, rows = (
        torch.tensor(each, device=DEVICE) for each in ([0, 2, 5], [7, 60], [2, 0], [100], [0, 5])
    )
    sequences, prefix = (
        kernels.Sequences(starts, at, places, 4),
        kernels.Prefix(before[0], before[1], shared, rows),
    )
    found = kernels.attend_together(q, keys, values, sequences, 0.3, 80, prefix)
    for i, (place, end) in enumerate([(2, 8), (2, 9), (0, 61), (0, 62), (0, 63)]):
        seen = (
            torch.cat([b[:, :100], o[place, :, :end]], 1).float() for b, o in zip(before, own, strict=True)
        )
        assert close(found[i], attention(q[i], seen, 0.3), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_rounded_to_8_bits_when_they_are_stored(dtype: torch.dtype) -> None:
    """As torch rounds them; those that are too large become the largest ones."""
    q, k, v = noise(3, 2, 16, dtype=dtype), noise(3, 1, 16, dtype=dtype), 200 * noise(3, 1, 16, dtype=dtype)
    v[0, 0, :4] = torch.tensor([1e4, -1e4, 448.0, 470.0])
    slab = torch.zeros(2, 1, 8, 16, device=DEVICE).to(FP8)
    positions, frequencies, at = (
        torch.arange(3, device=DEVICE),
        noise(8).abs(),
        torch.tensor([2], device=DEVICE),
    )
    kernels.rotate_and_store(q, k, v, positions, frequencies, 1.0, slab[0], slab[1], at)
    for part, given in zip(slab, (k, v), strict=True):
        wanted = narrowed(given.transpose(0, 1), FP8)
        assert torch.equal(part[:, 2:5].view(torch.uint8), wanted.view(torch.uint8))
        assert not part[:, 5:].float().any()
    assert slab[1, 0, 2, :4].tolist() == [448, -448, 448, 448]


@pytest.mark.parametrize("chunk", [1, 8])
def test_chunks_of_slots_of_8_bits_are_scored(chunk: int) -> None:
    q, keys = noise(4, 3, 16), noise(2, 64, 16).to(FP8)
    means = keys.float().unflatten(1, (-1, chunk)).mean(2)
    expected = q.unflatten(0, (2, -1)).flatten(1, 2) @ means.mT * 0.25
    assert torch.allclose(kernels.chunk_scores(q, keys, chunk), expected, atol=1e-5)


def groups_of(kv: torch.dtype, heads: int, dim: int, tokens: int) -> tuple[QuantizedTokens, Tensor, Tensor]:
    """Room for so many tokens of one layer, and the keys and values [1, heads, tokens, D] that belong there."""
    shape = Shape(1, heads, heads, dim, torch.float32, DEVICE, kv)
    keys = noise(heads, tokens, dim) * noise(dim, seed=2) + noise(dim, seed=3)
    values = noise(heads, tokens, dim, seed=1)
    return QuantizedGroups(shape, tokens, BITS[kv], turned=True).first(0, tokens), keys, values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("tokens", [0, 64, 192, 100])
def test_codes_become_numbers(tokens: int, kv: torch.dtype, dtype: torch.dtype) -> None:
    quantized, keys, values = groups_of(kv, 2, 32, 256)
    quantized.write(0, keys, values)
    wide = kernels.dequantized(quantized[:4], tokens, dtype, 3)
    assert [part.shape for part in wide] == 2 * [(2, tokens + 3, 32)]
    found = [part[:, :tokens] for part in wide]
    for kind in range(2):
        each = [quantized._replace(tokens=tokens).of_head(head, torch.float32)[kind] for head in range(2)]
        torch.testing.assert_close(found[kind], torch.stack(each).to(dtype), rtol=1e-2, atol=1e-6)
        if dtype == torch.float32 and tokens:
            torch.testing.assert_close(found[kind], torch.stack(each), rtol=1e-6, atol=1e-6)


FED = [
    (60, 3),
    (60, 4),
    (63, 1),
    (127, 30),
    (192, 40),
    (250, 40),
    (0, 1),
    (319, 1),
]  # tokens before, new ones


def ring(keys: Tensor, values: Tensor, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The newest of the first ``end`` tokens [Hkv, S, D] in a ring, by group: [P, Hkv, GROUP, D] each."""
    places = torch.arange(max(0, end - NEWEST), end, device=DEVICE)
    made = torch.full((2, len(keys), NEWEST, keys.shape[2]), float("nan"), device=DEVICE, dtype=dtype)
    made[0][:, places % NEWEST], made[1][:, places % NEWEST] = (
        part[:, places].to(dtype) for part in (keys, values)
    )
    by_group = made.unflatten(2, (-1, GROUP)).transpose(1, 2)
    return by_group[0], by_group[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize(("at", "n"), FED)
def test_the_group_that_is_filled_is_quantized(at: int, n: int, kv: torch.dtype, dtype: torch.dtype) -> None:
    """To the same bits as elsewhere; without a full group nothing is written."""
    quantized, keys, values = groups_of(kv, 2, 32, 384)
    quantized.write(0, noise(2, 384, 32, seed=5), noise(2, 384, 32, seed=6))
    wanted = [part.clone() for part in quantized[:4]]
    group = at // GROUP
    if (at + n) // GROUP > group:
        own = slice(group * GROUP, (group + 1) * GROUP)
        fresh = (part[:, own].to(dtype).float() for part in (keys, values))
        QuantizedTokens(wanted[0], wanted[1], wanted[2], wanted[3], 0).write(own.start, *fresh)
    newest = ring(keys, values, at + n, dtype)
    kernels.quantize_full(*newest, quantized[:4], torch.tensor([at], device=DEVICE), n)
    for mine, right in zip(quantized[:4], wanted, strict=True):
        assert torch.equal(mine, right)


@pytest.mark.parametrize("numbers", [0.0, 3.5, 1e-7, 6e4])
@pytest.mark.parametrize("kv", FORMATS)
def test_groups_of_equal_or_tiny_or_huge_numbers_are_quantized(kv: torch.dtype, numbers: float) -> None:
    quantized, keys, _ = groups_of(kv, 1, 16, GROUP)
    given = torch.full_like(keys, numbers)
    at = torch.tensor([GROUP - 1], device=DEVICE)
    kernels.quantize_full(*ring(given, given, GROUP, torch.float32), quantized[:4], at, 1)
    for part in quantized.of_head(0, torch.float32):
        torch.testing.assert_close(part, given[0], atol=1e-6, rtol=1e-3)


GROUPED = [  # group, KV heads, head dimension, tokens before, new ones
    (1, 2, 16, 60, 3),
    (3, 1, 64, 60, 9),
    (1, 1, 128, 63, 1),
    (2, 2, 16, 127, 30),
    (1, 1, 32, 192, 40),
    (4, 1, 16, 250, 40),
    (1, 1, 16, 0, 1),
    (1, 2, 64, 319, 2),
]


@pytest.mark.parametrize("parts", [None, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize(("group", "heads", "dim", "at", "n"), GROUPED)
def test_every_token_reads_its_own_group_as_it_is(
    group: int,
    heads: int,
    dim: int,
    at: int,
    n: int,
    kv: torch.dtype,
    dtype: torch.dtype,
    parts: int | None,
) -> None:
    """And all earlier ones quantized, on both sides of a border; what lies behind is not read."""
    quantized, keys, values = groups_of(kv, heads, dim, 384)
    quantized.write(0, keys, values)
    full = (at + n - 1) // GROUP * GROUP
    quantized.key_scales[:, full // GROUP :] = float("nan")
    quantized.value_scales[:, full:] = float("nan")
    newest, q = ring(keys, values, at + n, dtype), noise(n, group * heads, dim, dtype=dtype, seed=4)
    place = torch.tensor([at], device=DEVICE)
    own = own_groups(place, torch.arange(n, device=DEVICE), NEWEST)
    found = kernels.decode_grouped(q, quantized[:4], place, *newest, own.sequences, 0.3, parts=parts)
    for i in range(n):
        start = (at + i) // GROUP * GROUP
        mine = slice(start, at + i + 1)
        codes = [quantized._replace(tokens=start).of_head(head, torch.float32) for head in range(heads)]
        seen = (
            torch.cat([torch.stack(coded), part[:, mine].to(dtype).float()], 1)
            for coded, part in zip(zip(*codes, strict=True), (keys, values), strict=True)
        )
        assert close(found[i], attention(q[i], seen, 0.3), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_8_bits_may_be_as_large_as_numbers_of_16(dtype: torch.dtype) -> None:
    quantized, keys, values = groups_of(INT8, 1, 16, 256)
    values = values.clamp(-1, 1) * 6e4
    quantized.write(0, keys, values)
    q, own = noise(2, 1, 16, dtype=dtype, seed=4), noise(2, 1, 64, 16, dtype=dtype, seed=5)
    count, at = torch.tensor([128], device=DEVICE), torch.tensor([0], device=DEVICE)
    found = kernels.decode_quantized(q, quantized[:4], count, own[0], own[1], at, 0.3).double() / 6e4
    coded = quantized._replace(tokens=128).of_head(0, torch.float32)
    for i in range(2):
        seen = (torch.cat([a[None], b[:, : 1 + i].float()], 1) for a, b in zip(coded, own, strict=True))
        assert close(found[i], attention(q[i], seen, 0.3) / 6e4, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "slots", "warps"), [(16, GROUP, 4), (32, GROUP, 4), (16, 32, 1), (32, 16, 1)]
)
def test_any_tile_serves_8_bits(rows: int, slots: int, warps: int, dtype: torch.dtype) -> None:
    quantized, keys, values = groups_of(INT8, 1, 32, 256)
    quantized.write(0, keys, values)
    q, own = noise(20, 1, 32, dtype=dtype, seed=4), noise(2, 1, 64, 32, dtype=dtype, seed=5)
    count, at = torch.tensor([192], device=DEVICE), torch.tensor([9], device=DEVICE)
    shape = Tiling(rows, slots, 2, warps)
    found = kernels.decode_quantized(q, quantized[:4], count, own[0], own[1], at, 0.3, shape, 3)
    coded = quantized._replace(tokens=192).of_head(0, torch.float32)
    for i in range(20):
        seen = (torch.cat([a[None], b[:, : 10 + i].float()], 1) for a, b in zip(coded, own, strict=True))
        assert close(found[i], attention(q[i], seen, 0.3), dtype)
