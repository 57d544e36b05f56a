"""Weights in host memory, because of the plan or the user's flag; on a CPU, with pretended memory sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import plain_kernels
from support.tiny_models import save_model

from triforce_chat.cli.chat import model_label
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.streamed_weights import StreamedWeights
from triforce_chat.engine.group import SINGLE
from triforce_chat.errors import UsageError
from triforce_chat.loading import load_engine as loading
from triforce_chat.loading import planning
from triforce_chat.loading.calibration_file import about
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.memory_plan.plan import Memory as Sizes
from triforce_chat.memory_plan.plan import MemoryPlan
from triforce_chat.models.describe import describe_source
from triforce_chat.models.load import LoadedModel
from triforce_chat.models.registry import resolve
from triforce_chat.models.shapes import BigShape
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import Settings

LAYERS, CONTEXT = 5, 64
HUGE = 10**12
BIG = BigShape("big", hidden=64, layers=6, heads=4, kv_heads=2, head_dim=16, mlp=96)


@pytest.fixture(scope="module", params=[False, True], ids=["two matrices", "tied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streamed") / "model"
    return save_model(
        folder, num_hidden_layers=LAYERS, max_position_embeddings=CONTEXT, tie_word_embeddings=request.param
    )


def settings_of(model: Path, **more: Any) -> Settings:
    return Settings(**{"model": str(model), "draft": "none", "device": "cpu", "stack": "lookup", **more})


def loaded(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch, sizes: Sizes
) -> tuple[Engine, LoadedModel, list[str]]:
    """(engine, model, notes) on a machine whose accelerator has its own memory."""
    notes: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(planning, "available_memory", lambda *_: sizes)
        engine, target = load_engine(spec, LoadHooks(note=notes.append))
    return engine, target, notes


def needs(model: Path, gpu_layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes on the device if so many layers have their weights there."""
    settings = settings_of(model, gpu_layers=gpu_layers)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "available_memory", lambda *_: Sizes(HUGE, HUGE))
        description = describe_source(resolve(settings.model))
        plan = planning.memory_plan(EngineSpec(settings), description, None, CONTEXT, SINGLE)
    return int(MemoryPlan(plan.workload, plan.memory, LAYERS).device / 0.95) + 1


def answers(engine: Engine) -> list[int]:
    return tokens_of(engine, Request([5 + n % 90 for n in range(30)], 30))


@pytest.mark.parametrize("resident", [0, 1])
def test_layers_without_room_on_the_device_go_to_the_host(
    model: Path, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, whole, _ = loaded(EngineSpec(settings_of(model)), monkeypatch, Sizes(HUGE, HUGE))
    assert whole.streamed is None
    sizes = Sizes(needs(model, resident, monkeypatch), HUGE)
    engine, target, notes = loaded(EngineSpec(settings_of(model)), monkeypatch, sizes)
    assert target.streamed is engine.target.streamed
    assert target.streamed is not None
    assert (target.streamed.resident, target.offloaded) == (resident, False)
    assert len(target.streamed.homes) == LAYERS - resident
    assert any(
        note.startswith(f"weights of {LAYERS - resident} of {LAYERS} layers in host memory (")
        for note in notes
    )
    assert answers(engine) == answers(plain)


def test_as_many_layers_as_the_flag_says(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(HUGE, HUGE)
    plain, whole, _ = loaded(EngineSpec(settings_of(model)), monkeypatch, sizes)
    engine, target, _ = loaded(EngineSpec(settings_of(model, gpu_layers=3)), monkeypatch, sizes)
    assert target.streamed is not None
    assert target.streamed.resident == 3
    assert answers(engine) == answers(plain)
    session: Any = SimpleNamespace(loaded=target, settings=settings_of(model))
    label = model_label(Options(model="tiny"), session, False)
    assert label == f"tiny in {target.format}, from layer 4 on streamed from host memory"
    keys = [about(each, None, 1) for each in (whole, target)]
    assert keys[1] == {**keys[0], "gpu_layers": 3}  # what was measured with all of them there says nothing
    engine, target, _ = loaded(EngineSpec(settings_of(model, gpu_layers=LAYERS)), monkeypatch, sizes)
    assert target.streamed is None
    both, target, _ = loaded(EngineSpec(settings_of(model, gpu_layers=2, offload=True)), monkeypatch, sizes)
    assert target.offloaded
    assert answers(both) == answers(plain)


def test_an_inflated_model_is_built_layer_by_layer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, taken = Sizes(HUGE, HUGE), list[int]()
    plain, _, _ = loaded(EngineSpec(settings_of(model), CONTEXT, BIG), monkeypatch, sizes)
    take = StreamedWeights.take

    def watched(weights: StreamedWeights, number: int, layer: Any) -> None:
        taken.append(number)
        take(weights, number, layer)

    monkeypatch.setattr(StreamedWeights, "take", watched)
    spec = EngineSpec(settings_of(model, gpu_layers=2), CONTEXT, BIG)
    engine, target, _ = loaded(spec, monkeypatch, sizes)
    assert taken == [*range(BIG.layers)]
    assert target.streamed is not None
    assert len(target.streamed.homes) == 4
    assert answers(engine) == answers(plain)


@pytest.mark.parametrize(("bits", "format"), [(4, "Q4_0"), (8, "Q8_0")])
def test_an_inflated_model_is_rounded_before_its_layers_are_placed(
    model: Path, bits: int, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    plain_kernels.replace(monkeypatch)
    made = []
    for count in (BIG.layers, 2):
        spec = EngineSpec(
            settings_of(model, dtype="stored", gpu_layers=count), CONTEXT, replace(BIG, bits=bits)
        )
        made.append(loaded(spec, monkeypatch, Sizes(HUGE, HUGE)))
    (there, whole, _), (engine, target, notes) = made
    assert whole.streamed is None
    assert target.streamed is not None
    assert target.stored is not None
    assert (target.format, len(target.streamed.homes)) == (format, 4)
    assert target.streamed.nbytes == sum(target.stored.blocks[2:])
    assert any(f", layers 3 to 6 in {format}): " in note for note in notes)
    assert answers(engine) == answers(there)


def test_a_cpu_has_one_memory(model: Path) -> None:
    notes: list[str] = []
    _, target = load_engine(EngineSpec(settings_of(model, gpu_layers=1)), LoadHooks(note=notes.append))
    assert target.streamed is None
    assert [line for line in notes if line.startswith("--gpu-layers has no effect without a GPU")]


@pytest.mark.parametrize("stack", ["triforce", "streaming"])
def test_a_stack_that_makes_no_sense_is_refused_before_weights_are_read(
    model: Path, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UsageError, match=f"the stack '{stack}' has a level below the target"):
        loaded(EngineSpec(settings_of(model, gpu_layers=1, stack=stack)), monkeypatch, Sizes(HUGE, HUGE))


def test_several_processes_go_without_weights_in_host_memory() -> None:
    with pytest.raises(UsageError, match="--gpu-layers is for one process: leave out --tp 2"):
        Settings(gpu_layers=1, tp=2)
    assert Settings(gpu_layers=1, dtype="stored").gpu_layers == 1
