"""Engines over quantized weights that stay as they are: answers, dtypes, memory plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import VOCABULARY, save_model, write_quantized_gguf
from torch import nn
from typer.testing import CliRunner

from triforce_chat.chat.events import Tally
from triforce_chat.cli.app import app
from triforce_chat.engine.engine import Engine, Request
from triforce_chat.engine.forward.quantized import QuantizedLayer
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.loading import device
from triforce_chat.loading.calibration_file import about
from triforce_chat.loading.device import keeps_format
from triforce_chat.loading.gpu import Gpu
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.planning import plan_for
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.memory_plan.plan import Memory, MemoryPlan
from triforce_chat.models.describe import describe
from triforce_chat.models.load import LoadedModel, load_model
from triforce_chat.models.placement import OnCpu, OnGpu
from triforce_chat.models.registry import resolve
from triforce_chat.models.stored_weights import stored_weights
from triforce_chat.settings.settings import Settings

BUDGET = 104  # tokens
PROMPT = torch.randint(
    3, len(VOCABULARY), (BUDGET + 20,), generator=torch.Generator().manual_seed(0)
).tolist()

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_quantized_gguf(tmp_path / "tiny.gguf", context=512)


def settings(file: Path, **changes: Any) -> Settings:
    given = {"model": str(file), "draft": "none", "device": "cpu", "context": 512, **changes}
    return Settings(**given)


def engine(settings: Settings) -> tuple[Engine, LoadedModel]:
    return load_engine(EngineSpec(settings), LoadHooks(note=lambda text: pytest.fail(text)))


def answer(made: Engine, plain: bool = False) -> list[int]:
    result = Tally()
    for event in made.answer(Request(PROMPT, 40, past_end=True), plain):
        result.add(event)
    return result.token_ids


def load(file: Path, keep: bool = True) -> LoadedModel:
    return load_model(str(file), attention="sdpa", keep_format=keep)


@pytest.mark.parametrize("stack", STACKS)
def test_greedy_answers_of_all_stacks(file: Path, stack: str) -> None:
    draft = write_quantized_gguf(file.parent / "draft.gguf", seed=3, context=512)
    made, loaded = engine(settings(file, draft=str(draft), stack=stack, budget=BUDGET))
    assert loaded.stored is not None
    assert made.draft is not None
    assert layers_of(made.draft.model)
    assert layers_of(made.target.model)
    plain = answer(made, plain=True)
    assert len(plain) == 40
    assert answer(made) == plain


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if isinstance(each, QuantizedLayer)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_expands(file: Path, dtype: str) -> None:
    made, loaded = engine(settings(file, dtype=dtype))
    assert (loaded.stored, loaded.format) == (None, dtype)
    assert layers_of(made.target.model) == []
    assert made.target.dtype == getattr(torch, dtype)


def test_everything_else_is_in_fp32(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "bfloat16_pays", lambda: True)
    draft = save_model(file.parent / "draft", max_position_embeddings=512)
    made, _ = engine(settings(file, draft=str(draft)))
    assert made.draft is not None
    assert made.target.dtype == made.draft.dtype == torch.float32


def test_a_draft_stays_as_it_is_beside_another_target(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "bfloat16_pays", lambda: True)
    target = save_model(file.parent / "target", max_position_embeddings=512)
    made, loaded = engine(settings(target, draft=str(file)))
    assert loaded.format == "bfloat16"
    assert made.draft is not None
    assert layers_of(made.draft.model)
    assert answer(made) == answer(made, plain=True)


def test_the_plan_counts_their_bytes(file: Path) -> None:
    stored = stored_weights(resolve(str(file)), OnCpu())
    assert stored is not None
    free = 10**9
    machine = torch.device("cpu"), torch.float32, Memory(free, free, is_host=True)
    target, draft = describe(str(file)), describe(str(file))

    def planned(**changes: Any) -> MemoryPlan:
        return plan_for(settings(file, **changes), target, draft, 100, machine, 1)

    kept, expanded = planned(), planned(dtype="float32")
    assert (kept.workload.stored, expanded.workload.stored) == (stored, None)
    assert kept.parts["weights"] == stored.bytes < expanded.parts["weights"] / 2
    saved = expanded.parts["weights"] - stored.bytes
    assert expanded.parts["draft"] - kept.parts["draft"] == saved
    assert kept.parts["kv"] == expanded.parts["kv"]


def test_the_plan_for_a_gpu_counts_what_lies_there(file: Path) -> None:
    def planned(**changes: Any) -> MemoryPlan:
        machine = torch.device("cuda"), torch.bfloat16, Memory(10**9, 10**9)
        given = settings(file, device="auto", **changes)
        return plan_for(given, describe(str(file)), None, 100, machine, given.tp)

    place = OnGpu(torch.device("cuda"), torch.bfloat16)
    kept, expanded, shared = planned(), planned(dtype="bfloat16"), planned(tp=2)
    assert kept.workload.stored == stored_weights(resolve(str(file)), place)
    assert (expanded.workload.stored, shared.workload.stored) == (None, None)
    assert kept.parts["weights"] < 0.6 * expanded.parts["weights"]
    assert kept.parts["kv"] == expanded.parts["kv"]


def test_small_gpus_expand(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, keeps in (((8, 9), False), ((9, 0), True)):
        monkeypatch.setattr(device, "find_gpu", lambda _, own=capability: Gpu(own, 10**9))
        assert keeps_format(settings(file), "cuda") == keeps


def test_plan_names_the_format(file: Path) -> None:
    result = CliRunner().invoke(
        app, ["plan", "--model", str(file), "--device", "cpu", "--dtype", "auto", "--json"]
    )
    told = json.loads(result.stdout)
    assert (told["dtype"], told["weights"]) == ("float32", "Q4_K_M")


def test_what_was_measured_counts_for_the_format(file: Path) -> None:
    kept, expanded = load(file), load(file, keep=False)
    formats = [about(target, draft, 1) for target in (kept, expanded) for draft in (kept, expanded)]
    assert len({json.dumps(each) for each in formats}) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("stack", STACKS)
def test_greedy_answers_on_a_gpu(file: Path, stack: str) -> None:
    draft = write_quantized_gguf(file.parent / "draft.gguf", seed=3, context=512)
    made, loaded = engine(settings(file, draft=str(draft), stack=stack, budget=BUDGET, device="cuda"))
    assert loaded.stored is not None
    assert made.draft is not None
    assert layers_of(made.draft.model)
    assert made.target.decoder is not None
    assert made.target.decoder.keeps_format
    assert made.target.quantized is made.target
    plain = answer(made, plain=True)
    assert len(plain) == 40
    assert answer(made) == plain


@pytest.mark.gpu
def test_on_a_gpu_no_expanded_copy_is_made(file: Path) -> None:
    before = torch.cuda.memory_allocated()
    loaded = load_model(str(file), attention="sdpa", keep_format=True, device="cuda", dtype=torch.bfloat16)
    assert loaded.stored is not None
    taken = torch.cuda.memory_allocated() - before
    assert taken < 1.2 * loaded.stored.bytes + (1 << 20)
