"""Attention in blocks of keys: equal to attention in one piece, whatever the blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from triforce_chat.engine.cache.quantization import INT4, INT8
from triforce_chat.engine.cache.quantized import QuantizedKV
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.view import KVView, SharedView, seen_by
from triforce_chat.engine.forward import prefill_attention
from triforce_chat.engine.forward.attention import causal_attention, folded_attention, joined_attention

Part = tuple[Tensor, Tensor]
LAST_PLACE = torch.finfo(
    torch.bfloat16
).eps  # the distance of a number of bfloat16 to the next, relative to it


def plainly(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Part:
    """Attention and its log-sum-exps, written out."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
    scores = query @ keys.transpose(-1, -2) * 0.125
    if mask is not None:
        scores = scores.masked_fill(mask, -torch.inf)
    return scores.softmax(-1) @ values, scores.logsumexp(-1)


def unmasked(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Part:
    assert scale == 0.125
    return plainly(query, keys, values, None)


def masked(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Part:
    assert scale == 0.125
    n, length = query.shape[2], keys.shape[2]
    return plainly(query, keys, values, torch.ones(n, length).triu(length - n + 1).bool())


@pytest.fixture
def written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, and kernels of no GPU."""
    monkeypatch.setattr(prefill_attention, "BLOCKS", (64, 32, 16, 8))
    monkeypatch.setattr(prefill_attention, "unmasked", unmasked)
    monkeypatch.setattr(prefill_attention, "masked", masked)


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize("length", [8, 9, 16, 23, 64, 71, 136, 200])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_blocks_together_are_the_whole(length: int, heads: int, kv_heads: int) -> None:
    torch.manual_seed(length)
    query = 3 * torch.randn(1, heads, 8, 64)
    keys, values = torch.randn(2, 1, kv_heads, 200, 64).unbind()
    expected = folded_attention(query, KVView(keys, values, length), 0.125)
    found = prefill_attention.attention(query, keys[:, :, :length], values[:, :, :length], 0.125)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
@pytest.mark.parametrize("own", [20, 33])
def test_what_follows_a_shared_prefix_is_read_without_a_copy_of_it(
    heads: int, kv_heads: int, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix has 70 of 80 slots, the second of three sequences 20 or 33 tokens, the last 20 of which are new."""
    given: list[Tensor] = []

    def flash(query: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float) -> Part:
        given.append(keys)
        return (masked if causal else unmasked)(query, keys, values, scale)

    monkeypatch.setattr(prefill_attention, "flash", flash)
    torch.manual_seed(own)
    query, before = 3 * torch.randn(1, heads, 20, 64), torch.randn(2, 1, kv_heads, 80, 64)
    after = torch.randn(2, 3, kv_heads, 40, 64)
    shared = SharedView(KVView(before[0], before[1], 70), after[0], after[1], 1)
    view = KVView(after[0, 1:2], after[1, 1:2], own, shared)
    whole = torch.cat([before[:, :, :, :70], after[:, 1:2, :, :own]], 3)
    expected = folded_attention(query, KVView(whole[0], whole[1], 70 + own), 0.125)
    assert torch.allclose(joined_attention(query, view, 0.125), expected, atol=1e-5)
    assert [keys.data_ptr() for keys in given] == [before[0].data_ptr(), after[0, 1].data_ptr()]


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize("kv", [INT8, INT4])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
@pytest.mark.parametrize(
    ("before", "n"), [(0, 65), (0, 128), (64, 300), (100, 30), (130, 500), (63, 2), (128, 448)]
)
def test_groups_in_pairs_are_all_earlier_groups(
    before: int, n: int, heads: int, kv_heads: int, kv: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a mask that says which token sees which group quantized and which as it is."""

    def flash(query: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float) -> Part:
        return (masked if causal else unmasked)(query, keys, values, scale)

    monkeypatch.setattr(prefill_attention, "flash", flash)
    torch.manual_seed(n)
    storage = QuantizedKV(Shape(1, heads, kv_heads, 64, torch.float32, torch.device("cpu"), kv), 1000)
    keys, values = torch.randn(2, 1, kv_heads, before + n, 64)
    if before:
        storage.write(0, 0, keys[:, :, :before], values[:, :, :before])
    view = storage.write(0, before, keys[:, :, before:], values[:, :, before:])
    assert view.repeated
    query = 3 * torch.randn(1, heads, n, 64)
    expected = folded_attention(query, view.masked(n), 0.125)
    assert not torch.allclose(expected, folded_attention(query, view, 0.125), atol=1e-3)
    wide = view._replace(keys=view.keys.float(), values=view.values.float())
    assert torch.allclose(prefill_attention.over_groups(query, wide, 0.125), expected, atol=1e-5)


def test_few_shapes_cover_what_lies_before() -> None:
    assert list(prefill_attention.spans(8191)) == []
    assert list(prefill_attention.spans(124_928 - 8192)) == [
        (0, 65_536),
        (65_536, 98_304),
        (98_304, 114_688),
    ]
    sizes = {
        end - start for length in range(0, 200_000, 777) for start, end in prefill_attention.spans(length)
    }
    assert sizes == set(prefill_attention.BLOCKS)


def test_other_devices_do_without() -> None:
    query = torch.zeros(1, 1, prefill_attention.CHUNK, 64, dtype=torch.bfloat16)
    assert not prefill_attention.serves(query, 10 * prefill_attention.CHUNK)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 32, 128), (32, 8, 128), (9, 3, 64)])
@pytest.mark.parametrize("past", [8192, 24_576, 30_001])
def test_it_equals_flash_attention(
    heads: int, kv_heads: int, dim: int, past: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability() != prefill_attention.HOPPER:
        pytest.skip("the GPU is no Hopper")
    torch.manual_seed(past)
    n, room = prefill_attention.CHUNK, 40_000
    query = torch.randn(n, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(0, 1)[None]
    keys, values = torch.randn(2, 1, kv_heads, room, dim, device="cuda", dtype=torch.bfloat16).unbind()
    view = KVView(keys, values, past + n)
    assert prefill_attention.serves(query, view.length)
    found = causal_attention(query, view, dim**-0.5)
    monkeypatch.setattr(prefill_attention, "serves", lambda *_: False)
    expected = causal_attention(query, view, dim**-0.5)
    assert torch.allclose(found.float(), expected.float(), atol=4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kv", [INT8, INT4])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 8, 128), (9, 3, 64)])
@pytest.mark.parametrize(("before", "n"), [(30, 100), (4096, 8192), (16_384, 8192), (10_001, 700)])
def test_groups_in_pairs_are_all_earlier_groups_on_a_gpu(
    before: int, n: int, heads: int, kv_heads: int, dim: int, kv: torch.dtype
) -> None:
    """By a mask the last few rows are compared."""
    torch.manual_seed(n)
    storage = QuantizedKV(
        Shape(1, heads, kv_heads, dim, torch.bfloat16, torch.device("cuda"), kv), before + n
    )
    keys, values = torch.randn(2, 1, kv_heads, before + n, dim, device="cuda", dtype=torch.bfloat16)
    storage.write(0, 0, keys[:, :, :before], values[:, :, :before])
    view = storage.write(0, before, keys[:, :, before:], values[:, :, before:])
    query = torch.randn(n, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(0, 1)[None]
    assert prefill_attention.joins(query)
    found = prefill_attention.over_groups(query, view, dim**-0.5)[:, :, -90:]
    mask = seen_by(view.length - n, n)[-90:].cuda()
    expected = folded_attention(query[:, :, -90:], view._replace(visible=mask), dim**-0.5)
    # Both end with a rounding to bfloat16: sums that are almost equal may become neighbours among its numbers. After
    # 130 tokens some results are as large as 1.4, where these are 2**-7 apart.
    assert torch.allclose(found.float(), expected.float(), rtol=LAST_PLACE, atol=4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 32, 128), (32, 8, 128), (9, 3, 64)])
@pytest.mark.parametrize(("n", "own"), [(17, 17), (300, 300), (338, 850)])
def test_what_follows_a_prefix_equals_flash_attention(
    heads: int, kv_heads: int, dim: int, n: int, own: int
) -> None:
    torch.manual_seed(own)
    query = torch.randn(n, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(0, 1)[None]
    before = torch.randn(2, 1, kv_heads, 30_080, dim, device="cuda", dtype=torch.bfloat16)
    after = torch.randn(2, 3, kv_heads, 1024, dim, device="cuda", dtype=torch.bfloat16)
    view = KVView(
        after[0, 1:2],
        after[1, 1:2],
        own,
        SharedView(KVView(before[0], before[1], 30_001), after[0], after[1], 1),
    )
    assert prefill_attention.joins(query)
    whole = torch.cat([before[:, :, :, :30_001], after[:, 1:2, :, :own]], 3)
    expected = causal_attention(query, KVView(whole[0], whole[1], 30_001 + own), dim**-0.5)
    assert torch.allclose(joined_attention(query, view, dim**-0.5).float(), expected.float(), atol=4e-3)
