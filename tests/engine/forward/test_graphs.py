"""Fused blocks and forwards of fixed size say what transformers' own forward says, in every cache and stack.

Without a GPU a captured forward is computed anew, by plain arithmetic in place of the kernels, which have tests of
their own; everything around them is the same.
"""

from __future__ import annotations

import copy
import gc
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from support import plain_kernels
from support.emulated_graphs import emulate
from support.labs import ARCHITECTURES, SMALL_BUDGET, perturbed, random_model, spell
from torch import Tensor

from triforce_chat.engine.cache import quantized
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.quantization import FP8, INT4, INT8
from triforce_chat.engine.cache.quantized import NEWEST
from triforce_chat.engine.cache.quantized_copy import QuantizedCopy
from triforce_chat.engine.cache.retrieval import RetrievalCache
from triforce_chat.engine.cache.streaming import StreamingCache
from triforce_chat.engine.cuda_graph import SIZES, captures_on
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward import runner as runner_module
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.speculation import speculative
from triforce_chat.engine.speculation.stacks import StackOptions

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPT = [int(token) for token in torch.randint(1, 48, (70,), generator=torch.Generator().manual_seed(3))]
KEPT = (INT8, INT4, FP8)
STACKS = ("autoregressive", "triforce", "triforce-int4", "retrieval", "streaming", "naive", "lookup")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        plain_kernels.replace(monkeypatch)
        emulate(monkeypatch)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(11)
    return random_model(head_dim=16)


def runner(model: Any, monkeypatch: pytest.MonkeyPatch, fused: bool, kv: torch.dtype | None = None) -> Runner:
    monkeypatch.setattr(runner_module, "fusible", lambda _: fused)
    monkeypatch.setattr(quantized, "kernels_run", lambda _: True)
    made = Runner(copy.deepcopy(model).to(DEVICE), kv=kv)
    assert bool(made.decoder) == fused
    return made


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_blocks_compute_the_same(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model = random_model(architecture, head_dim=16)
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            weight.data.normal_(1, 0.3)
    logits = []
    for fused in (False, True):
        made = runner(model, monkeypatch, fused)
        cache = FullCache(made.shape, 128)
        ids = torch.tensor(PROMPT[:50], device=DEVICE)
        made.prefill(ids[:30], cache)
        logits.append(
            [made(part[None], cache, len(part))[0].clone() for part in (ids[30:33], ids[33:34], ids[34:])]
        )
    for plain, fused in zip(*logits, strict=True):
        torch.testing.assert_close(fused, plain, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_says_the_same(stack: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for fused in (False, True):
        target, draft = (runner(each, monkeypatch, fused) for each in (model, perturbed(model, 0.02)))
        options = StackOptions(name=stack, gamma=5, draft_gamma=2, budget=SMALL_BUDGET)
        engine = Engine(target, 256, TextCodec(spell), draft, options)
        first = tokens_of(engine, Request(PROMPT, 40))
        said.append((first, tokens_of(engine, Request([*PROMPT, *first, 7, 8, 9], 20))))
    assert said[0] == said[1]


def test_what_a_level_has_confirmed_is_not_fed_again(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the level below, whose keys of it are there; but for the last proposed token, which was only drawn."""
    fed, plain = list[int](), runner_module.feed

    def noted(model: Any, cache: Any, ids: Tensor) -> None:
        if isinstance(cache, RetrievalCache):
            fed.append(len(ids))
        plain(model, cache, ids)

    monkeypatch.setattr(speculative, "feed", noted)
    target, draft = (runner(each, monkeypatch, True) for each in (model, perturbed(model, 0.02)))
    options = StackOptions(name="triforce-int4", gamma=8, draft_gamma=2, budget=SMALL_BUDGET)
    engine = Engine(target, 256, TextCodec(spell), draft, options)
    made = tokens_of(engine, Request(PROMPT, 40))
    assert made == tokens_of(engine, Request(PROMPT, 40), plain=True)
    assert len(fed) > 4
    assert max(fed) <= 1


@pytest.mark.parametrize("kv", KEPT)
@pytest.mark.parametrize("stack", ["autoregressive", "triforce", "retrieval", "naive", "lookup"])
def test_every_stack_says_the_same_over_narrow_keys(
    stack: str, kv: torch.dtype, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for fused in (False, True):
        target, draft = (
            runner(model, monkeypatch, fused, kv),
            runner(perturbed(model, 0.02), monkeypatch, fused),
        )
        options = StackOptions(name=stack, gamma=5, draft_gamma=2, budget=SMALL_BUDGET)
        engine = Engine(target, 400, TextCodec(spell), draft, options)
        assert engine.full.write_slot() is not None or kv == FP8
        first = tokens_of(engine, Request([*PROMPT, *PROMPT], 70))
        said.append((first, tokens_of(engine, Request([*PROMPT, *PROMPT, *first[:30], 7, 8, 9], 40))))
    assert said[0] == said[1]


@pytest.mark.parametrize("kv", KEPT)
def test_narrow_keys_are_read_and_written_by_captured_forwards(
    kv: torch.dtype, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any number of tokens, padded ones too, on both sides of a group's border, and after rejected drafts."""
    ids, logits = torch.tensor(PROMPT * 8, device=DEVICE), []
    for fused in (False, True):
        made = runner(model, monkeypatch, fused, kv)
        cache, rows = FullCache(made.shape, 500), []
        made.prefill(ids[:50], cache)
        luck = random.Random(1)
        while cache.length < 420:
            at, wrong = cache.length, luck.randrange(1, 25)
            made(ids[at : at + wrong].flip(0)[None], cache, 1)
            cache.truncate(at)
            part = ids[at : at + luck.choice([1, 1, 3, 7, 11, 13, 21, 31, 39])]
            rows.append(made(part[None], cache, len(part))[0].clone())
            if luck.random() < 0.2:
                cache.truncate(cache.length - luck.randrange(len(part) + 1))
        logits.append(torch.cat(rows))
        if fused:
            assert captures_on(made.device).count > 0
            assert len(next(iter(made.graphs.made.values()))) > 5
    torch.testing.assert_close(logits[1], logits[0], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kv", [INT8, INT4, None])
def test_what_a_captured_forward_has_written_is_found(
    kv: torch.dtype | None, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a ring also where it has gone round: by retrieval caches, which copy it."""
    made = runner(model, monkeypatch, True, kv)
    cache, ids = FullCache(made.shape, 500), torch.tensor(PROMPT * 8, device=DEVICE)
    made.prefill(ids[:253], cache)
    slot = cache.write_slot()
    assert slot
    made(ids[None, 253:263], cache, 1)
    for layer in range(2):
        for found, whole in zip(slot.written(10), cache.storage.view(layer, 263).whole, strict=True):
            assert torch.equal(found[layer, :, 3:], whole[0, :, 256:263])  # of the last group, as they are
            torch.testing.assert_close(found[layer, :, :3], whole[0, :, 253:256], atol=0.6, rtol=0)


@pytest.mark.parametrize("kv", [INT8, INT4])
def test_a_rollback_beyond_what_captured_forwards_have_overwritten_ends_at_a_group(
    kv: torch.dtype, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner(model, monkeypatch, True, kv)
    cache, ids = FullCache(made.shape, 500), torch.tensor(PROMPT * 8, device=DEVICE)
    made.prefill(ids[:300], cache)
    for at in range(300, 340, 8):
        made(ids[None, at : at + 7], cache, 1)  # in a forward of 8
        cache.truncate(at)
        made(ids[None, at : at + 8], cache, 1)
    lost = 340 - NEWEST
    assert [cache.rewound(n) for n in (339, 330, 128, 127, lost + 1, 60)] == [339, 330, 128, 64, 64, 0]
    [prepare] = made.unprepared(cache, 40)
    prepare()  # writes 40 tokens of no meaning
    assert [cache.rewound(n) for n in (340, 330, 191, 127)] == [340, 330, 191, 64]
    whole = made(ids[None, 340:345], cache, 5)[0].clone()
    fresh = FullCache(made.shape, 500)
    made.prefill(ids[:340], fresh)
    torch.testing.assert_close(whole, made(ids[None, 340:345], fresh, 5)[0], atol=2e-4, rtol=1e-3)


def test_a_quantized_copy_is_read_by_captured_forwards(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of any number over groups in 4 bits and the newest tokens, as without graphs; nothing is captured anew."""
    logits, sizes = [], (1, 5, 12, 3)
    for fused in (False, True):
        made = runner(model, monkeypatch, fused)
        full = FullCache(made.shape, 500)
        copy = QuantizedCopy(full)
        ids = torch.tensor(PROMPT * 5, device=DEVICE)
        made.prefill(ids[:300], full)
        assert copy.ready(sum(sizes))
        assert copy.quantized == 128
        parts = ids[300 : 300 + sum(sizes)].split(sizes)
        logits.append([made(part[None], copy, len(part))[0].clone() for part in parts])
        captures = captures_on(made.device).count
        copy.truncate(300)
        made.prefill(ids[300:370], full)
        assert copy.ready(1)
        assert copy.quantized == 192
        logits[-1].append(made(parts[0][None], copy, 1)[0].clone())
        assert captures_on(made.device).count == captures
    for plain, fused in zip(*logits, strict=True):
        torch.testing.assert_close(fused, plain, atol=2e-4, rtol=1e-3)


def test_tokens_of_no_meaning_leave_nothing_behind(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tokens go through a forward of eight; the next one must not see the eighth."""
    made = runner(model, monkeypatch, True)
    ids = torch.tensor(PROMPT[:20], device=DEVICE)
    whole, pieces = FullCache(made.shape, 64), FullCache(made.shape, 64)
    expected = made(ids[None], whole, 20)[0].clone()
    got = torch.cat([made(part[None], pieces, len(part))[0].clone() for part in (ids[:7], ids[7:9], ids[9:])])
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)
    assert pieces.length == 20
    latest = pieces.queries.latest(0, 20, 64)
    torch.testing.assert_close(latest, whole.queries.latest(0, 20, 64), atol=2e-5, rtol=1e-4)
    assert latest.shape[1] == 20


def test_queries_that_were_overwritten_are_known_to_be_lost(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner(model, monkeypatch, True)
    cache = FullCache(made.shape, 200, query_window=64)
    ids = torch.tensor(PROMPT, device=DEVICE)
    made.prefill(ids[:64], cache)
    [prepare] = made.unprepared(cache, 12)
    prepare()
    assert cache.queries.latest(0, 64, 64).shape[1] == 64 - 12
    made(ids[None, 64:69], cache, 1)
    assert cache.queries.latest(0, 69, 64).shape[1] == 69 - 12
    made(ids[None, :23], cache, 1)  # 23 tokens in a forward of 24
    assert cache.queries.latest(0, 92, 64).shape[1] == 92 - 29


def test_a_cache_that_is_nearly_full_takes_the_other_way(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner(model, monkeypatch, True)
    cache = FullCache(made.shape, 23)
    ids = torch.tensor(PROMPT[:23], device=DEVICE)
    made(ids[None, :16], cache, 1)
    made(ids[None, 16:], cache, 1)  # 7 tokens fit, 8 do not
    assert cache.length == 23


def test_captured_forwards_go_with_their_buffer(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner(model, monkeypatch, True)
    cache = StreamingCache(made.shape)
    for n in (3, 7, 8):
        made(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8][:n]], device=DEVICE), cache, 1)
    assert [list(sizes) for sizes in made.graphs.made.values()] == [[4, 8]]
    del cache
    gc.collect()
    assert not made.graphs.made


def test_graphs_that_were_given_up_are_captured_anew(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner(model, monkeypatch, True)
    ids, said = torch.tensor(PROMPT[:9], device=DEVICE), []
    cache = FullCache(made.shape, 64)
    for _ in range(2):
        said.append(made(ids[None], cache, 9).clone())
        made.graphs.forget()
        assert not made.graphs.made
        cache.truncate(0)
    assert torch.equal(*said)


def test_sizes_leave_no_room_unused() -> None:
    assert SIZES[0] == 1
    assert all(after <= 1.5 * before + 1 for before, after in pairwise(SIZES))


def test_eight_bits_are_nearly_right_and_share_the_rest(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner(model, monkeypatch, True)
    ids = torch.tensor(PROMPT[:20], device=DEVICE)
    exact, near = (each(ids[None], FullCache(made.shape, 64), 20) for each in (made, made.quantized))
    assert not torch.equal(exact, near)
    assert (exact - near).abs().max() < 0.1 * exact.abs().max()
    assert made.quantized is made.quantized
    assert made.quantized.model is made.model


def test_an_eight_bit_middle_changes_no_answer(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for middle in ("full", "int8"):
        target, draft = (runner(each, monkeypatch, True) for each in (model, perturbed(model, 0.02)))
        options = StackOptions("triforce", gamma=5, draft_gamma=2, budget=SMALL_BUDGET, middle=middle)
        said.append(tokens_of(Engine(target, 256, TextCodec(spell), draft, options), Request(PROMPT, 60)))
    assert said[0] == said[1]
