"""The engine on a CUDA device: the same answers as plain decoding there and as the CPU."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support.caches import layer_of
from support.judging import greedy_test, sampling_test
from support.labs import SMALL_BUDGET, perturbed, random_model, spell
from torch.nn.attention import SDPBackend, sdpa_kernel

from triforce_chat.engine import prefix_cache
from triforce_chat.engine.cache.layout import Budget
from triforce_chat.engine.cache.offload import BUFFERS, OffloadedKV
from triforce_chat.engine.cache.quantization import FP8, INT4, INT8, format_name
from triforce_chat.engine.cache.quantized import storage_for
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.cache.view import KVView
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Verified
from triforce_chat.engine.exactness import judge, tokens_of
from triforce_chat.engine.forward.attention import causal_attention, folded_attention, read_attention
from triforce_chat.engine.forward.attention_backend import (
    FLASH_ATTN,
    NAMED,
    SDPA,
    TRITON,
    USUAL,
    flash_decode,
    flash_prefill,
    flash_problem,
)
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.loading.attention_choice import fastest

pytestmark = pytest.mark.gpu

PROMPT = [int(token) for token in torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3))]
STACKS = ("auto", "triforce", "triforce-int4", "retrieval", "streaming", "naive", "lookup")


def engine_on(device: str, stack: str = "triforce", store: Any = KVBuffer, layers: int = 2) -> Engine:
    torch.manual_seed(11)
    model = random_model(num_hidden_layers=layers)
    draft = perturbed(model, 0.02)
    options = StackOptions(name=stack, gamma=5, draft_gamma=2, budget=SMALL_BUDGET)
    runners = [Runner(copy.deepcopy(each).to(device)) for each in (model, draft)]
    return Engine(runners[0], 512, TextCodec(spell), runners[1], options, storage=store)


@pytest.mark.parametrize("stack", STACKS)
def test_greedy_equals_plain_decoding(stack: str) -> None:
    verdict = greedy_test(engine_on("cuda", stack), Request(PROMPT, 120))
    assert verdict.mismatches == 0


def test_greedy_equals_the_cpu() -> None:
    request = Request(PROMPT, 60)
    assert tokens_of(engine_on("cuda"), request) == tokens_of(engine_on("cpu"), request)


@pytest.mark.parametrize("stack", STACKS)
def test_samples_follow_the_targets_law(stack: str) -> None:
    engine = engine_on("cuda", stack)
    test = sampling_test(engine, Request(PROMPT, 100, Sampling(temperature=1.0, top_p=0.9)), range(6))
    assert test.p_value > 1e-4


def test_auto_has_a_level_over_few_of_the_keys_that_stream() -> None:
    """And none over a quantized copy of all; answers stay those of plain decoding."""
    engine = engine_on("cuda", "auto", OffloadedKV)
    assert [arm.drafter.name for arm in engine.top.planner.arms] == ["retrieval", "draft"]
    events = [event for event in engine.answer(Request(PROMPT, 120)) if isinstance(event, Verified)]
    assert {"target", "retrieval"} <= {event.level for event in events}
    assert greedy_test(engine, Request(PROMPT, 120)).mismatches == 0


@pytest.mark.parametrize("stack", ["auto", "triforce", "retrieval", "streaming"])
@pytest.mark.parametrize("policy", ["mean", "attention"])
def test_long_drafts_over_keys_in_host_memory(stack: str, policy: str) -> None:
    """Planned as settings do there: the prompt's end selects, and proposals have more room."""
    pair, options = (
        engine_on("cuda"),
        StackOptions(stack, policy=policy, budget=Budget(tokens=64), streams=True),
    )
    engine = Engine(pair.target, 900, TextCodec(spell), pair.draft, options, storage=OffloadedKV)
    events = [event for event in engine.answer(Request(PROMPT * 4, 200)) if isinstance(event, Verified)]
    first = next(event for event in events if event.level == "target")
    assert first.proposed > 0 or stack == "auto"  # which drafts by what it costs on this GPU
    assert greedy_test(engine, Request(PROMPT * 4, 200)).mismatches == 0


def view_on(
    device: str, dtype: torch.dtype, heads: int, kv_heads: int, n: int, length: int
) -> tuple[Any, KVView]:
    """A query of n tokens as a model hands it over, and a view that ends with them."""
    generator = torch.Generator().manual_seed(n)
    query = torch.randn(1, n, heads, 64, generator=generator).to(device, dtype).transpose(1, 2)
    width = -(-length // 64) * 64
    buffer = torch.randn(2, 2, kv_heads, width + 64, 64, generator=generator).to(device, dtype)
    return query, KVView(buffer[0, 1, None, :, :width], buffer[1, 1, None, :, :width], length)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "length"), [(9, 3, 100, 1000), (4, 4, 17, 17), (8, 1, 513, 700)]
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3), (torch.float32, 1e-4)]
)
def test_many_tokens_attend_as_few_do(
    heads: int, kv_heads: int, n: int, length: int, dtype: torch.dtype, tolerance: float
) -> None:
    query, view = view_on("cuda", dtype, heads, kv_heads, n, length)
    exact = KVView(view.keys.float().cpu(), view.values.float().cpu(), length)
    expected = folded_attention(query.float().cpu(), exact, 0.125)
    assert torch.allclose(causal_attention(query, view, 0.125).float().cpu(), expected, atol=tolerance)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "length"),
    [(9, 3, 1, 4097), (9, 3, 2, 1000), (4, 4, 1, 700), (4, 4, 5, 5), (8, 1, 16, 1000), (32, 8, 7, 4097)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3)])
def test_few_tokens_see_all_up_to_themselves_where_nothing_is_captured(
    heads: int, kv_heads: int, n: int, length: int, dtype: torch.dtype, tolerance: float
) -> None:
    """As over keys in host memory, where they take the kernel of many."""
    query, view = view_on("cuda", dtype, heads, kv_heads, n, length)
    exact = KVView(view.keys.float().cpu(), view.values.float().cpu(), length)
    expected = folded_attention(query.float().cpu(), exact, 0.125)
    assert torch.allclose(read_attention(query, view, 0.125).float().cpu(), expected, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [100, 1000])
def test_many_tokens_take_the_flash_kernel(dtype: torch.dtype, length: int) -> None:
    query, view = view_on("cuda", dtype, 9, 3, 100, length)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # any other kernel would now be an error
        causal_attention(query, view, 0.125)


@pytest.fixture
def flash() -> None:
    if problem := flash_problem():
        pytest.skip(problem)


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "length"), [(9, 3, 100, 1000), (4, 4, 17, 17), (8, 1, 513, 700)]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3)])
def test_flash_attn_prefills_as_torch_does(
    heads: int, kv_heads: int, n: int, length: int, dtype: torch.dtype, tolerance: float
) -> None:
    query, view = view_on("cuda", dtype, heads, kv_heads, n, length)
    expected = causal_attention(query, view, 0.125)
    assert torch.allclose(flash_prefill(query, view, 0.125), expected, atol=tolerance)


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize(("n", "at"), [(1, 0), (1, 900), (8, 700), (16, 1000)])
@pytest.mark.parametrize("kv_heads", [1, 3, 9])
def test_flash_attn_decodes_as_triton_does(kv_heads: int, n: int, at: int) -> None:
    generator = torch.Generator().manual_seed(n)
    q = torch.randn(n, 9, 64, generator=generator).to("cuda", torch.bfloat16)
    keys, values = torch.randn(2, kv_heads, 1024, 64, generator=generator).to("cuda", torch.bfloat16)
    given = q, keys, values, torch.tensor([at], device="cuda"), 0.125, 1024
    assert torch.allclose(flash_decode(*given), USUAL.decode(*given), atol=2e-2)


@pytest.mark.usefixtures("flash")
def test_a_captured_flash_attn_follows_the_length_on_the_device() -> None:
    q, at = torch.randn(4, 8, 64, device="cuda", dtype=torch.bfloat16), torch.zeros(1, device="cuda").long()
    keys, values = torch.randn(2, 2, 4096, 64, device="cuda", dtype=torch.bfloat16)
    flash_decode(q, keys, values, at, 0.125, 4096)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = flash_decode(q, keys, values, at, 0.125, 4096)
    for length in (0, 100, 4000):
        at.fill_(length)
        graph.replay()
        assert torch.allclose(found, USUAL.decode(q, keys, values, at, 0.125, 4096), atol=2e-2)


@pytest.mark.parametrize("name", [TRITON, FLASH_ATTN, SDPA])
def test_every_backend_answers_as_it_decodes_plainly(name: str, request: pytest.FixtureRequest) -> None:
    if name == FLASH_ATTN:
        request.getfixturevalue("flash")
    torch.manual_seed(11)
    model = random_model(head_dim=64).to("cuda", torch.bfloat16)
    options = StackOptions(name="triforce", gamma=5, draft_gamma=2, budget=SMALL_BUDGET)
    forwards = [Runner(copy.deepcopy(model), backend=NAMED[name]) for _ in range(2)]
    engine = Engine(forwards[0], 512, TextCodec(spell), forwards[1], options)
    assert forwards[0].captures == (name != SDPA)
    assert greedy_test(engine, Request(PROMPT, 80)).mismatches == 0


@pytest.mark.usefixtures("flash")
def test_auto_measures_both_kernels(empty_cache: Any) -> None:
    shape = Shape(2, 32, 8, 128, torch.bfloat16, torch.device("cuda"))
    found = fastest(shape, True)
    (kept,) = json.loads((empty_cache / "attention.json").read_text()).values()
    assert list(found) == kept["backend"]
    assert all(0 < ms < 1000 for of_kind in kept["ms"].values() for ms in of_kind.values())


KEPT = (INT8, INT4, FP8)


def narrow_engine(
    kv: torch.dtype,
    stack: str,
    storage: Any = storage_for,
    dtype: torch.dtype = torch.bfloat16,
    layers: int = 2,
) -> Engine:
    torch.manual_seed(11)
    model = random_model(head_dim=64, num_hidden_layers=layers).to("cuda", dtype)
    draft = perturbed(model, 0.02)
    options = StackOptions(name=stack, gamma=5, draft_gamma=2, budget=SMALL_BUDGET)
    target = Runner(copy.deepcopy(model), kv=kv)
    return Engine(target, 1024, TextCodec(spell), Runner(draft), options, storage=storage)


@pytest.mark.parametrize(
    ("stack", "kv"),
    # Of groups no copy in 4 bits is made.
    [(stack, kv) for stack in STACKS for kv in KEPT if stack != "triforce-int4" or kv == FP8],
    ids=lambda given: given if isinstance(given, str) else format_name(given),
)
def test_greedy_over_narrow_keys_equals_plain_decoding(stack: str, kv: torch.dtype) -> None:
    engine = narrow_engine(kv, stack)
    assert engine.full.write_slot() is not None
    assert greedy_test(engine, Request([*PROMPT, *PROMPT, *PROMPT], 150)).mismatches == 0


@pytest.mark.parametrize("kv", KEPT, ids=format_name)
def test_samples_over_narrow_keys_follow_the_targets_law(kv: torch.dtype) -> None:
    engine = narrow_engine(kv, "triforce")
    asked = Request([*PROMPT, *PROMPT], 100, Sampling(temperature=1.0, top_p=0.9))
    assert sampling_test(engine, asked, range(4)).p_value > 1e-4


def near_and_far(dtype: torch.dtype) -> Iterator[Engine]:
    """One engine with keys and values on the GPU, one with them in host memory: a layer more than it has buffers."""
    for storage in (storage_for, OffloadedKV):
        yield narrow_engine(FP8, "triforce", storage, dtype, BUFFERS + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=format_name)
def test_host_memory_gives_the_same_tokens_in_fp8(dtype: torch.dtype) -> None:
    """But for ties: few tokens read keys on the GPU by Triton's kernel, and those of host memory by torch's.

    How both round decides what a tie is, as forwards of many tokens take torch's kernel on the GPU, too.
    """
    near, far = near_and_far(dtype)
    request = Request([*PROMPT, *PROMPT], 60)
    assert judge(near, request, tokens_of(far, request), tokens_of(near, request)).mismatches == 0


# In bfloat16, attention as sharp as that of random weights makes much of rounding.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.bfloat16, 0.1)])
def test_host_memory_gives_the_same_numbers_in_fp8(dtype: torch.dtype, tolerance: float) -> None:
    """Scores, keys and values of a text that is fed a few tokens at a time."""
    text, found = Request([*PROMPT, *PROMPT], 60), []
    for engine in near_and_far(dtype):
        scores = [scores.clone() for scores, _ in engine.rescore(text, PROMPT[:60], rows=6)]
        kept = (layer_of(engine.full.storage, layer) for layer in range(BUFFERS + 1))
        end = engine.full.length
        found.append([torch.cat(scores), *(part[:, :end].float() for parts in kept for part in parts)])
    for near, far in zip(*found, strict=True):
        assert (near.cpu() - far.cpu()).abs().mean() < tolerance * near.abs().mean()


@pytest.mark.parametrize("kv", KEPT, ids=format_name)
def test_narrow_keys_of_a_prefill_are_those_of_decoding(
    kv: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read at once, in pieces, or a few tokens at a time as in decoding: what is kept differs by rounding alone.

    In fp32: a prefill and decoding round the rotations of bfloat16 at other places, which an attention as sharp as that
    of random weights makes much of.
    """
    prompt, kept = (PROMPT * 5)[:400], []
    for chunk in (8192, 100, 7):
        engine = narrow_engine(kv, "autoregressive", dtype=torch.float32)
        monkeypatch.setattr(prefix_cache, "GPU_PREFILL_CHUNK", 100 if chunk == 100 else 8192)
        if chunk == 7:
            for piece in torch.tensor(prompt, device="cuda").split(chunk):
                engine.target(piece[None], engine.full, 1)
        else:
            for _ in engine.prefill(prompt):
                pass
        kept.append(
            [part.float() for layer in range(2) for part in engine.full.storage.view(layer, 400).whole]
        )
    for other in kept[1:]:
        for mine, first in zip(other, kept[0], strict=True):
            assert (mine - first).abs().mean() < 0.005 * first.abs().mean()


def test_prefill_in_pieces_equals_prefill_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces = engine_on("cuda"), engine_on("cuda")
    expected = tokens_of(whole, Request(PROMPT, 40))
    monkeypatch.setattr(prefix_cache, "GPU_PREFILL_CHUNK", 32)
    assert [event.done for event in pieces.prefill(PROMPT)] == [0, 32, 64, 90]
    assert tokens_of(pieces, Request(PROMPT, 40)) == expected


@pytest.mark.parametrize("resident", [0, 2, 4])
@pytest.mark.parametrize("stack", STACKS)
def test_host_memory_gives_the_same_tokens_and_numbers(stack: str, resident: int) -> None:
    near = engine_on("cuda", stack, layers=5)
    far = engine_on("cuda", stack, partial(OffloadedKV, resident=resident), layers=5)
    # What "auto" verifies at once depends on the clock, and the last bits of the numbers on that.
    tolerance = 1e-4 if stack == "auto" else 0
    for turn in range(3):
        request = Request([*near.cached, *PROMPT[turn:]], 60)
        assert tokens_of(far, request) == tokens_of(near, request)
        n = near.full.length
        for layer in range(5):
            for mine, theirs in zip(
                layer_of(far.full.storage, layer), layer_of(near.full.storage, layer), strict=True
            ):
                assert torch.allclose(mine[:, :n].cpu(), theirs[:, :n].cpu(), rtol=0, atol=tolerance)


def test_host_memory_is_pinned_and_given_back() -> None:
    store = OffloadedKV(Shape.of(random_model().config, torch.float16, torch.device("cuda")), 100_000)
    parts = [part for held in store.far for part in held.storage.layer(0)]
    assert store.pageable == 0
    assert all(part.is_pinned() for part in parts)
    del store
    assert not any(part.is_pinned() for part in parts)


def test_copies_run_while_the_device_computes() -> None:
    """The next layer arrives during the arithmetic of this one: together they take little more than the longer."""
    device = torch.device("cuda")
    shape = Shape(8, 8, 8, 128, torch.float16, device)
    tokens = 60_000  # 0.12 GB of keys in each layer
    store = OffloadedKV(shape, tokens + 1)
    for layer in range(8):
        store.far[layer].tokens = tokens
    busy = torch.randn(8192, 8192, dtype=torch.float16, device=device)
    row = torch.randn(1, 8, 1, 128, dtype=torch.float16, device=device)

    def through(copies: bool, arithmetic: bool) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for layer in range(8):
            if copies:
                store.write(layer, tokens, row, row)
            for _ in range(4 if arithmetic else 0):
                busy @ busy
        end.record()
        torch.cuda.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds

    through(True, True)
    copies, arithmetic, both = (through(*kind) for kind in ((True, False), (False, True), (True, True)))
    assert both < 0.75 * (copies + arithmetic)
