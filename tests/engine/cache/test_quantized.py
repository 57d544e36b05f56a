"""The quantized full cache: what a token attends to is a function of positions alone, however its tokens are fed."""

from __future__ import annotations

import copy

import pytest
import torch
from support.labs import Lab, perturbed, random_model
from torch import Tensor

from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.quantization import BITS, GROUP, INT4, INT8, bytes_of
from triforce_chat.engine.cache.quantized import NEWEST, QuantizedKV, storage_for
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.engine import Request
from triforce_chat.engine.events import Prefilled, Text
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.attention import read_attention
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.errors import UsageError

FORMATS = (INT8, INT4)
STACKS = ("auto", "triforce", "retrieval", "streaming", "naive", "lookup")
# Of the largest number that one scale serves: half a step, and fp16's rounding of the scale.
ERROR = {INT8: 0.5 / 127 + 1e-3, INT4: 1.0 / 15 + 2e-3}


def shape_of(kv: torch.dtype | None, dtype: torch.dtype = torch.float32) -> Shape:
    return Shape(2, 6, 2, 16, dtype, torch.device("cpu"), kv)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Keys, some channels of which are large, and values [1, 2, n, 16] in fp16's numbers."""
    keys, values = noise(2, 1, 2, n, 16, seed=seed)
    keys = keys * torch.tensor([1.0, 30.0, *[1.0] * 14])
    return keys.half().float(), values.half().float()


def written(kv: torch.dtype, sizes: list[int], capacity: int = 1024) -> tuple[QuantizedKV, list[KVView]]:
    """A storage fed in pieces of these sizes, and the first layer's view of each."""
    storage, keys, values = QuantizedKV(shape_of(kv), capacity), *tokens(sum(sizes))
    views, at = [], 0
    for n in sizes:
        for layer in range(2):
            view = storage.write(layer, at, keys[:, :, at : at + n], values[:, :, at : at + n])
            views += [view] if layer == 0 else []
        at += n
    return storage, views


def reference(query: Tensor, storage: QuantizedKV, first: int) -> Tensor:
    """Attention in fp64 of the queries [1, 6, n, 16] of positions from ``first`` on, as the rule says it."""
    keys, values = tokens(first + query.shape[2])
    rows = []
    for i in range(query.shape[2]):
        own = (first + i) // GROUP * GROUP
        quantized = storage.groups.first(0, own)
        parts = [quantized.of_head(head, torch.float32) for head in range(2)]
        seen = slice(own, first + i + 1)
        k = torch.stack([torch.cat([parts[h][0], keys[0, h, seen]]) for h in range(2)]).repeat_interleave(
            3, 0
        )
        v = torch.stack([torch.cat([parts[h][1], values[0, h, seen]]) for h in range(2)]).repeat_interleave(
            3, 0
        )
        weights = (query[0, :, i, None].double() @ k.double().transpose(1, 2) * 0.3).softmax(-1)
        rows.append((weights @ v.double())[:, 0])
    return torch.stack(rows, 1)[None].float()


@pytest.mark.parametrize("kv", FORMATS)
def test_numbers_come_back_within_a_step(kv: torch.dtype) -> None:
    n = 3 * GROUP
    storage, _ = written(kv, [n])
    keys, values = tokens(n)
    for head in range(2):
        k, v = storage.groups.first(0, n).of_head(head, torch.float32)
        by_channel = keys[0, head].unflatten(0, (-1, GROUP)).abs().amax(1, keepdim=True)
        off = (k - keys[0, head]).unflatten(0, (-1, GROUP)).abs()
        assert (off <= ERROR[kv] * by_channel).all()
        assert ((v - values[0, head]).abs() <= ERROR[kv] * values[0, head].abs().amax(-1, keepdim=True)).all()
        assert (k != keys[0, head]).any()


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("numbers", [0.0, 3.5, 1e-7, 6e4])
def test_groups_of_equal_or_tiny_or_huge_numbers(kv: torch.dtype, numbers: float) -> None:
    storage = QuantizedKV(shape_of(kv), GROUP)
    given = torch.full((1, 2, GROUP, 16), numbers)
    storage.write(0, 0, given, given)
    for part in storage.groups.first(0, GROUP).of_head(1, torch.float32):
        torch.testing.assert_close(part, given[0, 1], atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize(
    "sizes", [[5], [64, 1], [60, 4], [60, 9], [63, 3], [250, 8], [300, 200, 16], [640, 1], [130, 500, 12]]
)
def test_attention_follows_the_rule(kv: torch.dtype, sizes: list[int]) -> None:
    storage, views = written(kv, sizes)
    first, n = sum(sizes[:-1]), sizes[-1]
    query = noise(1, 6, n, 16, seed=3)
    wanted = reference(query, storage, first)
    torch.testing.assert_close(read_attention(query, views[-1], 0.3), wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kv", FORMATS)
def test_pieces_do_not_matter(kv: torch.dtype) -> None:
    """The codes are the same bit by bit, however the same numbers are written, with rejected ones in between."""
    whole, _ = written(kv, [700])
    keys, values = tokens(700)
    other, wrong = QuantizedKV(shape_of(kv), 1024), tokens(700, seed=9)
    at = 0
    while at < 700:
        n = min(1 + at * 7 % 40, 700 - at)
        for layer in range(2):
            other.write(layer, at, wrong[0][:, :, at : at + n], wrong[1][:, :, at : at + n])
        kept = n // 2
        assert other.rewound(at + kept) == at + kept
        other.truncate(at)
        for layer in range(2):
            other.write(layer, at, keys[:, :, at : at + n], values[:, :, at : at + n])
        at += n
    for mine, theirs in zip(whole.groups.first(1, 640), other.groups.first(1, 640), strict=True):
        assert not isinstance(mine, Tensor) or (isinstance(theirs, Tensor) and torch.equal(mine, theirs))


def test_a_rollback_beyond_the_ring_ends_at_a_group() -> None:
    storage, _ = written(INT8, [700])
    assert storage.held == 700 - NEWEST
    asked = (699, 512, 450, 440, 130, 64, 63, 0)
    assert [storage.rewound(n) for n in asked] == [699, 512, 450, 384, 128, 64, 0, 0]
    codes = storage.groups.keys.clone()
    storage.truncate(128)
    assert storage.rewound(128) == 128
    assert torch.equal(codes, storage.groups.keys)
    keys, values = tokens(700)
    view = storage.write(0, 128, keys[:, :, 128:129], values[:, :, 128:129])
    assert (view.end, view.length, view.before and view.before.tokens) == (129, 1, 128)
    assert torch.equal(view.whole[0][0, :, 128], keys[0, :, 128].half())


def test_tokens_are_restored_while_captures_write_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread restores them, which may be interrupted anywhere by one that captures forwards."""
    full, again, latest = written(INT4, [40])[0], QuantizedKV(shape_of(INT4), 1024), QuantizedKV._latest
    held = [full.parts(layer, 0, 40) for layer in range(2)]

    def interrupted(self: QuantizedKV, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        again.wrote(NEWEST + 16, 8)
        return latest(self, layer, first, end)

    with monkeypatch.context() as patch:
        patch.setattr(QuantizedKV, "_latest", interrupted)
        again.restored(40, held)
    assert again.held == 24  # the captures wrote over the first ones
    for layer in range(2):
        for mine, theirs in zip(again.parts(layer, 0, 40), held[layer], strict=True):
            assert torch.equal(mine[2], theirs[2])


def test_a_broken_off_forward_loses_no_group() -> None:
    """One layer was written and the other not; then fewer tokens are kept, and both hold the same ones."""
    storage, _ = written(INT8, [100])
    keys, values = tokens(612)
    storage.write(0, 100, keys[:, :, 100:], values[:, :, 100:])  # and layer 1 never
    assert storage.rewound(100) == 64
    storage.truncate(64)
    for layer in range(2):
        storage.write(layer, 64, keys[:, :, 64:110], values[:, :, 64:110])
    for mine, theirs in zip(storage.view(0, 110).whole, storage.view(1, 110).whole, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("kv", "share"), [(INT8, 0.5156), (INT4, 0.2812)])
def test_sizes(kv: torch.dtype, share: float) -> None:
    """Beside fp16, at a head of 64 channels: codes, and a scale for 64 of them."""
    half = 2 * 64 * 2
    assert bytes_of(GROUP, 64, BITS[kv]) / (GROUP * half) == pytest.approx(share, abs=1e-3)
    shape = Shape(2, 6, 2, 64, torch.float32, torch.device("cpu"), kv)
    storage = storage_for(shape, 1024)
    assert isinstance(storage, QuantizedKV)
    groups = storage.groups
    parts = (groups.keys, groups.values, groups.key_scales, groups.value_scales)
    assert sum(part.nbytes for part in parts) == 1024 * shape.bytes_per_token
    assert storage.newest.keys.dtype == torch.float16
    assert shape_of(kv, torch.bfloat16).kv_dtype == torch.bfloat16
    assert isinstance(storage_for(shape_of(None), 64), KVBuffer)


@pytest.fixture(scope="module")
def labs() -> dict[torch.dtype, Lab]:
    torch.manual_seed(0)
    stock = random_model(head_dim=16)
    draft = Runner(perturbed(stock, 0.1))
    return {kv: Lab(stock, Runner(copy.deepcopy(stock), kv=kv), draft) for kv in FORMATS}


@pytest.mark.parametrize(
    ("kv", "stack", "policy"),
    [
        *((INT8, stack, "mean") for stack in STACKS),
        (INT8, "triforce", "attention"),
        (INT4, "triforce", "mean"),
    ],
)
def test_greedy_answers_are_those_of_plain_decoding(
    labs: dict[torch.dtype, Lab], kv: torch.dtype, stack: str, policy: str
) -> None:
    engine = labs[kv].engine(stack, policy=policy, gamma=6)
    assert isinstance(engine.full.storage, QuantizedKV)
    asked = Request(labs[kv].text(160), 45)
    assert tokens_of(engine, asked) == tokens_of(engine, asked, plain=True)


@pytest.mark.parametrize("kv", FORMATS)
def test_the_law_of_a_token_is_that_of_plain_decoding(labs: dict[torch.dtype, Lab], kv: torch.dtype) -> None:
    """Verified in rows of any number, across borders, after rejected drafts: the distribution of every next token.

    What a level draws has the distribution of these logits, for any logits, by enumeration in
    ``test_exact_distributions.py``.
    """
    runner, ids = labs[kv].target, torch.tensor(labs[kv].text(200))

    def logits(sizes: list[int], wrong: int = 0) -> Tensor:
        cache, rows, at, turn = FullCache(runner.shape, 400), [], 0, 0
        while at < len(ids):
            n = min(sizes[turn % len(sizes)], len(ids) - at)
            if wrong:
                runner(ids[at : at + wrong].flip(0)[None], cache, 1)
                cache.truncate(at)
            rows.append(runner(ids[at : at + n][None], cache, n)[0])
            at, turn = at + n, turn + 1
        return torch.cat(rows).softmax(-1)

    plain = logits([1])
    for sizes, wrong in (([200], 0), ([7, 64, 3, 80], 0), ([5], 17), ([64], 0)):
        torch.testing.assert_close(logits(sizes, wrong), plain, atol=2e-4, rtol=1e-2)
    exact = Runner(copy.deepcopy(labs[kv].stock))
    rounded = torch.cat([exact(ids[None], FullCache(exact.shape, 400), 200)[0]]).softmax(-1)
    assert (rounded - plain)[64:].abs().max() > 1e-3  # and it is the quantized cache's
    torch.testing.assert_close(rounded[:64], plain[:64], atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("kv", FORMATS)
def test_turns_and_rewinds(labs: dict[torch.dtype, Lab], kv: torch.dtype) -> None:
    """A rewind beyond the ring reads the rest of a group again, and answers as a new engine does."""
    lab = labs[kv]
    engine, history = lab.engine(context=900), lab.text(500)
    tokens_of(engine, Request(history, 40))
    for length, kept in ((490, 489), (200, 192), (64, 0), (63, 62), (320, 62)):
        asked = Request(history[:length], 8)
        events = [*engine.answer(asked)]
        assert max(event.cached for event in events if isinstance(event, Prefilled)) >= kept
        assert length == 320 or max(event.cached for event in events if isinstance(event, Prefilled)) == kept
        made = [token for event in events if isinstance(event, Text) for token in event.token_ids]
        assert made == tokens_of(lab.engine("autoregressive", context=900), asked)


@pytest.mark.parametrize("kv", [INT8, INT4])
def test_what_is_not_built_is_one_line(labs: dict[torch.dtype, Lab], kv: torch.dtype) -> None:
    engine = labs[kv].engine()
    assert engine.forkable is None
    with pytest.raises(UsageError, match=r"trees .*--kv int8 or --kv int4"):
        engine.check(StackOptions("naive", tree=TreeOptions("sequoia")))
    with pytest.raises(UsageError, match=r"'triforce-int4' quantizes .*--kv int8 or --kv int4"):
        engine.check(StackOptions("triforce-int4"))


def test_a_quantized_view_may_end_within_a_group() -> None:
    """As attribution reads it, long after the tokens in 16 bits were lost."""
    storage, _ = written(INT8, [700])
    view = storage.view(0, 100)
    assert (view.length, view.end) == (0, 100)
    keys, _ = tokens(700)
    torch.testing.assert_close(view.whole[0].float(), keys[:, :, :100], atol=0.5, rtol=0)
