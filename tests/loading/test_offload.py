"""Keys and values in host memory, because of the plan or the user's flag; on a CPU, with pretended memory sizes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_models import save_model

from triforce_chat.engine.cache.eviction import EVICTIONS
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.storage import KVBuffer
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.group import SINGLE
from triforce_chat.engine.speculation.stacks import STREAMED_GAMMA
from triforce_chat.errors import OutOfMemory, UsageError
from triforce_chat.loading import load_engine as loading
from triforce_chat.loading import planning
from triforce_chat.loading.device import cap_memory
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.memory_plan.plan import Memory as Sizes
from triforce_chat.memory_plan.plan import MemoryPlan
from triforce_chat.models.describe import describe_source
from triforce_chat.models.registry import resolve
from triforce_chat.settings.engine_options import stack_options
from triforce_chat.settings.settings import Settings

LAYERS, CONTEXT = 5, 4096
HUGE = 10**12
Machine = Any


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offload") / "model"
    return save_model(folder, num_hidden_layers=LAYERS, max_position_embeddings=CONTEXT)


def settings_of(model: Path, **more: Any) -> Settings:
    return Settings(**{"model": str(model), "draft": "none", "device": "cpu", "stack": "triforce", **more})


def loaded(settings: Settings, monkeypatch: pytest.MonkeyPatch, sizes: Sizes) -> tuple[Engine, list[str]]:
    """(engine, notes) on a machine whose accelerator has its own memory."""
    notes: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(planning, "available_memory", lambda *_: sizes)
        engine, _ = load_engine(EngineSpec(settings), LoadHooks(note=notes.append))
    return engine, notes


def needs(model: Path, resident: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes on the device if ``resident`` layers stay there."""
    settings = settings_of(model)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "available_memory", lambda *_: Sizes(HUGE, HUGE))
        description = describe_source(resolve(settings.model))
        plan = planning.memory_plan(EngineSpec(settings), description, None, CONTEXT, SINGLE)
    return int(MemoryPlan(plan.workload, plan.memory, resident).device / 0.95) + 1


def answers(engine: Engine) -> list[int]:
    return tokens_of(engine, Request([5 + n % 90 for n in range(300)], 60))


@pytest.mark.parametrize("resident", [0, 2])
def test_a_capped_gpu_has_the_room_of_a_smaller_one(
    model: Path, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = needs(model, resident, monkeypatch)
    capped: list[tuple[str, int]] = []
    monkeypatch.setattr(planning, "available_memory", lambda _device, _ranks, own: Sizes(own, HUGE))
    monkeypatch.setattr(loading, "cap_memory", lambda device, own: capped.append((device.type, own)))
    engine, loaded = load_engine(EngineSpec(settings_of(model), CONTEXT, device_memory=size))
    assert capped == [("cpu", size)]
    assert isinstance(engine.full.storage, OffloadedKV)
    assert (engine.full.storage.resident, loaded.offloaded) == (resident, True)
    assert load_engine(EngineSpec(settings_of(model), CONTEXT))[1].offloaded is False


def test_a_restacked_engine_drafts_as_long_as_streaming_asks_for(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "available_memory", lambda *_: Sizes(needs(model, 1, monkeypatch), HUGE))
    settings = settings_of(model, stack="auto")
    engine, loaded = load_engine(EngineSpec(settings))
    assert engine.top.planner.most == STREAMED_GAMMA
    engine.restack(stack_options(settings, loaded.context))
    assert engine.top.planner.most == STREAMED_GAMMA


def test_the_cap_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fractions: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 10**9)
    )
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: fractions.append(given))
    for name, number in (("cuda", 1), ("cuda:0", 0)):  # torch needs a device index
        cap_memory(torch.device(name), 24 * 10**9)
        fraction, device = fractions.pop()
        assert fraction == pytest.approx(0.3)
        assert device == number
    with pytest.raises(UsageError, match=r"--device-memory 90.0 GB, but the GPU has 80.0 GB"):
        cap_memory(torch.device("cuda"), 90 * 10**9)


@pytest.mark.parametrize("resident", range(LAYERS - 2))
def test_layers_without_room_on_the_device_go_to_the_host(
    model: Path, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, nothing = loaded(settings_of(model), monkeypatch, Sizes(HUGE, HUGE))
    assert isinstance(plain.full.storage, KVBuffer)
    sizes = Sizes(needs(model, resident, monkeypatch), HUGE)
    engine, notes = loaded(settings_of(model), monkeypatch, sizes)
    store = engine.full.storage
    assert isinstance(store, OffloadedKV)
    assert (store.resident, engine.context) == (resident, CONTEXT)
    [line] = [line for line in notes if line not in nothing]
    assert line.startswith(f"keys and values of {LAYERS - resident} of {LAYERS} layers in host memory")
    assert answers(engine) == answers(plain)


def test_the_flag_offloads_all_layers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = loaded(settings_of(model, offload=True), monkeypatch, Sizes(HUGE, HUGE))
    assert isinstance(engine.full.storage, OffloadedKV)
    assert engine.full.storage.resident == 0


@pytest.mark.parametrize(("resident", "gamma"), [(2, STREAMED_GAMMA), (LAYERS, 16)])
def test_the_planner_may_draft_more_where_verifications_stream(
    model: Path, resident: int, gamma: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = Sizes(needs(model, resident, monkeypatch), HUGE)
    settings = settings_of(model, stack="auto")
    engine, _ = loaded(settings, monkeypatch, sizes)
    assert engine.top.planner.most == gamma
    engine.restack(stack_options(settings, CONTEXT))  # as a changed setting in a chat does
    assert engine.top.planner.most == gamma


def planned(model: Path, sizes: Sizes, monkeypatch: pytest.MonkeyPatch, **more: Any) -> MemoryPlan:
    with monkeypatch.context() as patch:
        patch.setattr(planning, "available_memory", lambda *_: sizes)
        description = describe_source(resolve(str(model)))
        return planning.memory_plan(
            EngineSpec(settings_of(model, **more)), description, None, CONTEXT, SINGLE
        )


@pytest.mark.parametrize(
    ("more", "budget"),
    [
        ({}, 1024),
        ({"budget": 200}, 200),
        ({"seed": 3}, 512),
        ({"context": 16_384}, 4096),
        ({"offload": False}, 512),
    ],
)
def test_a_retrieval_cache_grows_where_keys_and_values_stream(
    model: Path, more: dict[str, Any], budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(model, Sizes(HUGE, HUGE), monkeypatch, **{"offload": True, **more})
    assert plan.workload.caches.budget == budget


def test_a_retrieval_cache_grows_no_further_than_there_is_room(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never pushes a layer's keys and values off the device."""
    largest = planned(model, Sizes(HUGE, HUGE), monkeypatch, offload=True, context=131_072)
    assert largest.workload.caches.budget == 16_384
    found = []
    for less in range(1, 7):
        sizes = Sizes(int(largest.device * (1 - less / 7) / 0.95), HUGE)
        plan = planned(model, sizes, monkeypatch, offload=True, context=131_072)
        found += [plan.workload.caches.budget] if plan.fits else []
    assert found == sorted(found, reverse=True)
    assert {8192, 4096} <= {*found}
    resident = needs(model, 1, monkeypatch)
    assert planned(model, Sizes(resident, HUGE), monkeypatch).resident == 1


@pytest.mark.parametrize(("more", "streams"), [({}, True), ({"tree": "sequoia"}, True), ({"seed": 3}, False)])
def test_drafts_over_what_streams_are_planned_as_such_without_a_seed(
    model: Path, more: dict[str, Any], streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = loaded(settings_of(model, offload=True, **more), monkeypatch, Sizes(HUGE, HUGE))
    assert engine.options.streams is streams
    near, _ = loaded(settings_of(model, **more), monkeypatch, Sizes(HUGE, HUGE))
    assert not near.options.streams


def test_a_policy_that_lists_slots_takes_a_copy_where_some_layers_stream(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan without that copy would fit with all layers on the device, and another one be made of it."""
    plan = planned(model, Sizes(needs(model, 2, monkeypatch), HUGE), monkeypatch, policy="attention")
    assert plan.resident == 2
    assert not plan.workload.caches.in_place


def test_a_cpu_has_one_memory(model: Path) -> None:
    notes: list[str] = []
    engine, _ = load_engine(EngineSpec(settings_of(model, offload=True)), LoadHooks(note=notes.append))
    assert isinstance(engine.full.storage, KVBuffer)
    assert not any("host memory" in line for line in notes)
    assert [line for line in notes if "has no effect" in line]


def test_no_room_anywhere_shortens_the_context(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(needs(model, 0, monkeypatch), 100_000)
    engine, notes = loaded(settings_of(model), monkeypatch, sizes)
    assert 1024 <= engine.context < CONTEXT
    assert isinstance(engine.full.storage, KVBuffer)
    assert any(f"context of {engine.context:,} tokens" in line for line in notes)


def test_unpinned_layers_are_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffloadedKV, "_pin", lambda _: 2)
    _, notes = loaded(settings_of(model, offload=True), monkeypatch, Sizes(HUGE, HUGE))
    assert any(line.startswith("2 of these layers are slower: the system declined to pin") for line in notes)


def test_expensive_verifications_make_longer_drafts() -> None:
    """The planner weighs the cost of streamed verifications against that of drafting."""
    from triforce_chat.engine.speculation.arm import Arm
    from triforce_chat.engine.speculation.cost_model import Average
    from triforce_chat.engine.speculation.planner import Planner

    chosen = []
    for verification in (0.02, 1.2):
        arm = Arm(drafter=Any, cost=Average(1.0, 1.0, 0.01))  # type: ignore[arg-type]
        arm.curve.overall = Average(1.0, 100, 95)
        planner = Planner([arm], most=STREAMED_GAMMA)
        for _ in range(50):
            planner.times.steps.add(1, verification)
            planner.times.steps.add(9, verification)
        chosen.append(planner._drafted(arm, STREAMED_GAMMA).n)
    assert chosen[0] < 8
    assert chosen[1] > 20


@pytest.mark.parametrize("policy", EVICTIONS)
def test_an_endless_conversation_moves_tokens_on_the_device_alone(
    model: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they do not fit, nothing goes to host memory; the queries that weigh them are counted."""
    sizes = Sizes(needs(model, 0, monkeypatch), HUGE)
    assert isinstance(
        loaded(settings_of(model, context=CONTEXT), monkeypatch, sizes)[0].full.storage, OffloadedKV
    )
    settings = settings_of(model, endless=policy, keep=CONTEXT)
    with pytest.raises(OutOfMemory, match=r"no memory for a cache of 4,096 tokens; .*--keep \d+ is the most"):
        loaded(settings, monkeypatch, sizes)
    engine, _ = loaded(settings, monkeypatch, Sizes(HUGE, HUGE))
    description = describe_source(resolve(settings.model))
    plan = planning.memory_plan(EngineSpec(settings), description, None, CONTEXT, SINGLE)
    assert plan.workload.layout.queries == engine.full.queries.size
