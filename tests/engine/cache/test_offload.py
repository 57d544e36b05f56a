"""Keys and values in host memory: the same numbers in every cache and the same tokens as on the device."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from support.caches import STACKS, answer_of, caches, check_retrieval, in_turn, interrupt, layer_of
from support.labs import SMALL_BUDGET, Lab, spell

from triforce_chat.engine.cache.allocation import PAGE
from triforce_chat.engine.cache.full import FullCache
from triforce_chat.engine.cache.offload import OffloadedKV, occupy
from triforce_chat.engine.cache.retrieval import RetrievalCache, State
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.events import Rebuilt, Text, Verified
from triforce_chat.engine.prefix_cache import PrefixCache
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.planner import Planner
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.errors import UsageError
from triforce_chat.storage.kv.cache_directory import CacheDirectory
from triforce_chat.storage.kv.disk_cache import KVDiskCache

LAYERS = 5  # an odd number of layers that stream, and with two resident ones another
RESIDENT = (0, 2, 3, 4, 5)
MEMORY_IN_USE = Path("/proc/self/statm")


def resident() -> int:
    """Bytes of main memory that the system has allocated to this process."""
    return int(MEMORY_IN_USE.read_text().split()[1]) * PAGE


@pytest.fixture(scope="module")
def deep() -> Lab:
    return Lab.of(seed=4, num_hidden_layers=LAYERS)


def engine_of(lab: Lab, stack: str = "triforce", storage: Any = KVBuffer, **more: Any) -> Engine:
    options = StackOptions(name=stack, gamma=4, draft_gamma=2, budget=SMALL_BUDGET)
    return Engine(lab.target, 400, TextCodec(spell), lab.draft, options, storage=storage, **more)


def treed(lab: Lab, stack: str, storage: Any) -> Engine:
    options = StackOptions(stack, gamma=4, budget=SMALL_BUDGET, tree=TreeOptions("sequoia", 8, 3))
    return Engine(lab.target, 400, TextCodec(spell), lab.draft, options, storage=storage)


def offloaded(engine: Engine) -> OffloadedKV:
    storage = engine.full.storage
    assert isinstance(storage, OffloadedKV)
    return storage


def told(engine: Engine, prompt: list[int], sampling: Sampling, n: int = 20) -> list[Any]:
    """Everything that an answer reports but for its times."""
    events = list(engine.answer(Request(prompt, n, sampling)))
    rebuilt = [replace(event, seconds=0.0) for event in events if isinstance(event, Rebuilt)]
    return [event for event in events if isinstance(event, Text | Verified)] + rebuilt


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_says_and_does_the_same(
    deep: Lab, stack: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "_choose", in_turn)
    near, far = engine_of(deep, stack), engine_of(deep, stack, OffloadedKV)
    prompt = deep.text(70)
    for turn, cut in enumerate((11, 0)):
        sampling = Sampling(temperature, seed=turn)
        expected = told(near, prompt, sampling)
        assert told(far, prompt, sampling) == expected
        check_same_numbers(far, near)
        for one, other in zip(caches(far, RetrievalCache), caches(near, RetrievalCache), strict=True):
            check_layout(one, other)
        prompt = [*near.cached[: len(near.cached) - cut], *deep.text(9, seed=turn)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stack", ["triforce", "streaming"])
def test_trees_are_drafted_below_a_middle_level(deep: Lab, stack: str, temperature: float) -> None:
    """Its keys and values are on the device; the target itself verifies chains."""
    near, far = treed(deep, stack, KVBuffer), treed(deep, stack, OffloadedKV)
    prompt, sampling = deep.text(70), Sampling(temperature, seed=3)
    expected = told(near, prompt, sampling)
    assert told(far, prompt, sampling) == expected
    assert (
        max(each.proposed for each in expected if isinstance(each, Verified) and each.level != "target") == 8
    )
    check_same_numbers(far, near)
    with pytest.raises(UsageError, match="with --offload choose --stack triforce"):
        treed(deep, "naive", OffloadedKV)


def test_attention_selects_at_every_verification(deep: Lab) -> None:
    """Of keys and values in host memory: no list of slots, but copies of what passes the device."""
    options = StackOptions(name="retrieval", budget=SMALL_BUDGET, policy="attention")
    engine = Engine(deep.target, 400, TextCodec(spell), None, options, storage=OffloadedKV)
    prompt = deep.text(90)
    events = list(engine.answer(Request(prompt, 24)))
    answer = [token for event in events if isinstance(event, Text) for token in event.token_ids]
    assert answer == deep.greedy(prompt, 24)
    verified = [event for event in events if isinstance(event, Verified) and event.level == "target"]
    rebuilt = [event for event in events if isinstance(event, Rebuilt)]
    assert len(rebuilt) >= len(verified) - 1
    [cache] = caches(engine, RetrievalCache)
    check_retrieval(cache)


@pytest.mark.parametrize("policy", ["mean", "attention"])
@pytest.mark.parametrize(("resident", "length"), [(0, 90), (0, 97), (2, 129)])
def test_what_completes_a_prompt_selects(deep: Lab, resident: int, length: int, policy: str) -> None:
    """So the first round drafts, where a round without a draft would take as long as the whole prompt's keys take."""
    options = StackOptions("triforce", policy=policy, budget=replace(SMALL_BUDGET, scratch=128), streams=True)
    store = partial(OffloadedKV, resident=resident)
    engine = Engine(deep.target, 400, TextCodec(spell), deep.draft, options, storage=store)
    engine.prefix.__class__ = SmallChunks
    given, prompt = list[int](), deep.text(length)
    for turn in range(3):
        events = list(engine.answer(Request(prompt, 24)))
        answer = [token for event in events if isinstance(event, Text) for token in event.token_ids]
        assert answer == deep.greedy(prompt, 24)
        rounds = [event for event in events if isinstance(event, Verified) and event.level == "target"]
        assert rounds[0].proposed > 0
        [cache] = caches(engine, RetrievalCache)
        check_retrieval(cache)
        given = [*prompt, *answer[: 24 - 7 * turn]]
        prompt = [*given, *deep.text(20 + 40 * turn, seed=turn)]


def test_every_prompt_is_selected_from_up_to_its_end(deep: Lab) -> None:
    options = StackOptions("retrieval", budget=SMALL_BUDGET, streams=True)
    engine, tokens = (
        Engine(deep.target, 400, TextCodec(spell), None, options, storage=OffloadedKV),
        deep.text(300),
    )
    [cache] = caches(engine, RetrievalCache)
    for length in (20, 90, 93, 300, 120):
        list(engine.prefill(tokens[:length]))
        if length != 120:  # which is there already: nothing is read
            assert (cache.state, cache.layout.total, cache.verified_length) == (State.READY, length, length)
        check_retrieval(cache)


def test_only_a_stack_that_is_planned_for_streaming_selects_early(deep: Lab) -> None:
    options = StackOptions(name="triforce", gamma=4, budget=SMALL_BUDGET)
    engine = Engine(deep.target, 400, TextCodec(spell), deep.draft, options, storage=OffloadedKV)
    list(engine.prefill(deep.text(90)))
    [cache] = caches(engine, RetrievalCache)
    assert cache.state is State.STALE


def check_layout(one: RetrievalCache, other: RetrievalCache) -> None:
    assert (one.layout, one.state, one.verified_length) == (other.layout, other.state, other.verified_length)
    n = one._slot(one.verified_length) if one.state is State.READY else 0
    assert torch.equal(one.storage.keys[:, :, :n], other.storage.keys[:, :, :n])
    assert torch.equal(one.storage.values[:, :, :n], other.storage.values[:, :, :n])


@pytest.mark.parametrize("resident", RESIDENT)
def test_layers_that_stay_on_the_device(deep: Lab, resident: int) -> None:
    engine = engine_of(deep, storage=partial(OffloadedKV, resident=resident))
    prompt = deep.text(120)
    assert answer_of(engine, prompt, 40) == deep.greedy(prompt, 40)
    assert offloaded(engine).near.keys.shape[0] == resident
    assert len(offloaded(engine).buffers) == min(2, LAYERS - resident)


def stores(shape: Shape, resident: int) -> tuple[KVStorage, OffloadedKV]:
    return KVBuffer(shape, 60), OffloadedKV(shape, 60, resident)


@pytest.mark.parametrize("resident", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_writes_views_and_cuts(resident: int, seed: int) -> None:
    """As forwards come, complete or broken off at any layer, and as a memory fills slots from outside."""
    luck = random.Random(seed)
    torch.manual_seed(seed)
    shape = Shape(3, 4, 2, 8, torch.float32, torch.device("cpu"))
    plain, host = stores(shape, resident)
    length = 0
    for _ in range(80):
        n = luck.choice([1, 1, 2, 7])
        if length + n > 60:
            length = luck.choice([0, 20, 40])
            plain.truncate(length)
            host.truncate(length)
        kind = luck.choice(["forward", "forward", "broken", "attribution", "filled"])
        layers = luck.randrange(3) if kind == "broken" else 3
        if kind == "filled":  # as the engine does before
            host.truncate(length)
        for layer in range(layers):
            k, v = torch.randn(1, 2, n, 8), torch.randn(1, 2, n, 8)
            if kind == "attribution":
                views = [store.view(layer, length) for store in (plain, host)]
            elif kind == "filled":
                for store in (plain, host):
                    for part, fresh in zip(layer_of(store, layer), (k, v), strict=True):
                        part[:, length : length + n] = fresh[0]
                continue
            else:
                views = [store.write(layer, length, k, v) for store in (plain, host)]
            (one, other), held = views, views[0].length
            assert held == views[1].length
            assert torch.equal(one.keys[:, :, :held], other.keys[:, :, :held])
            assert torch.equal(one.values[:, :, :held], other.values[:, :, :held])
        length += n if kind in ("forward", "filled") else 0
        if luck.random() < 0.3:
            length = max(0, length - luck.randrange(4))
            plain.truncate(length)
            host.truncate(length)
        for layer in range(3):
            for mine, theirs in zip(layer_of(host, layer), layer_of(plain, layer), strict=True):
                assert torch.equal(mine[:, :length], theirs[:, :length])


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that each use of a layer took to the device."""
    carried: list[int] = []
    real = OffloadedKV._fetch

    def counted(store: OffloadedKV, buffer: Any, layer: int, n: int) -> None:
        before = buffer.tokens if buffer.layer == layer else 0
        real(store, buffer, layer, n)
        carried.append(max(0, n - before))

    monkeypatch.setattr(OffloadedKV, "_fetch", counted)
    return carried


def test_the_bus_carries_each_token_once_per_forward(deep: Lab, carried: list[int]) -> None:
    """The prefix that a layer holds, and no slot behind it; what the device has already, not at all."""
    cache = FullCache(deep.target.shape, 300, storage=OffloadedKV)
    deep.target.prefill(torch.tensor(deep.text(100)), cache)
    assert sum(carried) == 100  # the first layer comes back for the next forward
    carried.clear()
    for _ in range(3):
        deep.target(torch.tensor([[1, 2]]), cache, 1)
    assert carried.count(0) == 3 * LAYERS  # each layer was fetched ahead, none when it was needed
    assert sum(carried) == sum(4 * length + length + 2 for length in (100, 102, 104))


@pytest.mark.parametrize("far", [1, 2])
def test_as_many_layers_as_there_are_buffers_never_leave_the_device(
    deep: Lab, carried: list[int], far: int
) -> None:
    cache = FullCache(deep.target.shape, 300, storage=partial(OffloadedKV, resident=LAYERS - far))
    for n in (100, 2, 3):
        deep.target.prefill(torch.tensor(deep.text(n)), cache)
        cache.truncate(cache.length - 1)
    assert sum(carried) == 0


def test_a_full_store_overflows_as_a_slab_does() -> None:
    shape = Shape(2, 2, 1, 4, torch.float32, torch.device("cpu"))
    store = OffloadedKV(shape, 5)
    k = torch.zeros(1, 1, 6, 4)
    with pytest.raises(ValueError, match="slot 6 of 5"):
        store.write(0, 0, k, k)


@pytest.mark.skipif(not MEMORY_IN_USE.exists(), reason="the system does not say which pages it has allocated")
def test_memory_is_allocated_before_it_is_pinned() -> None:
    size = 64 << 20
    # Not from the heap, which may give back memory that was allocated before.
    fresh = mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
    part = torch.frombuffer(fresh, dtype=torch.bfloat16).view(8, size // 16)
    part[3] = 1.5
    before = resident()
    occupy(part)
    assert resident() - before > size * 3 // 4
    assert bool((part[3] == 1.5).all())
    assert int(part.count_nonzero()) == part[3].numel()


@pytest.mark.skipif(not MEMORY_IN_USE.exists(), reason="the system does not say which pages it has allocated")
def test_the_first_tokens_take_little_memory() -> None:
    shape = Shape(12, 4, 4, 64, torch.float32, torch.device("cpu"))
    store = KVBuffer(shape, 50_000)
    before = resident()
    k = torch.ones(1, 4, 10, 64)
    for layer in range(shape.layers):
        store.write(layer, 0, k, k)
    assert resident() - before < 16 << 20  # it was 200 MB where the system allocates 2 MB at a time


@pytest.mark.parametrize("stack", ["triforce", "auto"])
def test_an_interrupt_in_any_layer(deep: Lab, stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planner, "_choose", in_turn)
    luck = random.Random(7)
    engine, prompt = engine_of(deep, stack, OffloadedKV), deep.text(40)
    for turn in range(9):
        with monkeypatch.context() as patch:
            interrupt(patch, [(FullCache, "update")], luck.randrange(1, 70), late=True)
            with pytest.raises(KeyboardInterrupt):
                answer_of(engine, prompt, 100)
        prompt = [*engine.cached[: luck.choice([30, 200])], *deep.text(luck.choice([1, 12]), seed=turn)]
        if turn % 3 == 2:
            assert answer_of(engine, prompt, 12) == deep.greedy(prompt, 12)
            for cache in caches(engine, RetrievalCache):
                check_retrieval(cache)


@contextmanager
def interrupted(code: CodeType, lines: int) -> Iterator[None]:
    """Ctrl-C in a function after so many of its lines have begun."""
    left, before = lines, sys.gettrace()

    def inside(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        left -= event == "line"
        if left == 0 and event == "line":
            raise KeyboardInterrupt
        return inside

    sys.settrace(lambda frame, *_: inside if frame.f_code is code else None)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("lines", range(1, 40, 2))
def test_an_interrupt_at_any_line_leaves_both_buffers(deep: Lab, lines: int) -> None:
    """One alone would take the next layer while this one is computed."""
    engine, prompt = engine_of(deep, storage=OffloadedKV), deep.text(40)
    with interrupted(OffloadedKV._arrived.__code__, lines):
        answer_of(engine, prompt, 6)
    assert len(offloaded(engine).buffers) == 2
    assert answer_of(engine, prompt, 6) == deep.greedy(prompt, 6)


def test_what_is_recalled_from_the_disk_streams_as_well(deep: Lab, tmp_path: Path) -> None:
    prompt = deep.text(300)
    expected = deep.greedy(prompt, 20)
    computed = engine_of(deep)
    computed.prefix.__class__ = SmallChunks
    assert answer_of(computed, prompt, 20) == expected
    for store in (OffloadedKV, KVBuffer, partial(OffloadedKV, resident=2)):
        memory = KVDiskCache(CacheDirectory(tmp_path), b"a model", "tiny")
        engine = engine_of(deep, storage=store, prefix_store=memory)
        engine.prefix.__class__ = SmallChunks
        answer_of(engine, deep.text(30, seed=3), 5)  # other tokens in the same slots, and in the buffers
        assert answer_of(engine, prompt, 20) == expected
        check_same_numbers(engine, computed)
        memory.writer.finish()
        fresh = engine_of(
            deep, storage=store, prefix_store=KVDiskCache(CacheDirectory(tmp_path), b"a model", "tiny")
        )
        fresh.prefix.__class__ = SmallChunks
        assert next(reversed([*fresh.prefill(prompt)])).recalled == 288
        assert answer_of(fresh, prompt, 20) == expected


def check_same_numbers(one: Engine, other: Engine) -> None:
    assert one.cached == other.cached
    for layer in range(LAYERS):
        for mine, theirs in zip(
            layer_of(one.full.storage, layer), layer_of(other.full.storage, layer), strict=True
        ):
            assert torch.equal(mine[:, : one.full.length], theirs[:, : one.full.length])


class SmallChunks(PrefixCache):
    """Reads 32 tokens at a time, so that short prompts have whole chunks."""

    chunk_size = 32


def test_sources_are_found_in_host_memory(deep: Lab) -> None:
    prompt = deep.text(90)
    found = []
    for store in (KVBuffer, partial(OffloadedKV, resident=1)):
        engine = engine_of(deep, storage=store)
        request = Request(prompt, 20)
        made = answer_of(engine, prompt, 20)
        steps = engine.attribute(request, made)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                found.append(stop.value)
                break
    assert found[0] == found[1]
