"""The kernels that are compiled while a model is loaded are those of the engine that then stands there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_models import save_model

from triforce_chat.engine import compile_ahead
from triforce_chat.engine.group import SINGLE
from triforce_chat.loading import load_engine as loading
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.planning import memory_plan
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.models.describe import describe_source
from triforce_chat.models.registry import resolve
from triforce_chat.settings.settings import Settings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("compiling") / "model", max_position_embeddings=4096)


@pytest.mark.parametrize("stack", ["triforce", "retrieval", "naive", "autoregressive"])
def test_its_caches_are_the_engines(model: Path, stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[compile_ahead.Kernels] = []
    notes: list[str] = []

    def start(models: list[compile_ahead.Kernels], device: torch.device) -> bool:
        assert device.type == "cuda"
        asked.extend(models)
        return True

    monkeypatch.setattr(compile_ahead, "start", start)
    spec = EngineSpec(Settings(model=str(model), draft=str(model), device="cpu", stack=stack))
    engine, _ = load_engine(spec)
    assert not asked
    description, drafting = describe_source(resolve(str(model))), str(model)
    plan = memory_plan(spec, description, drafting, 4096, SINGLE)
    hooks, cuda = LoadHooks(note=notes.append), torch.device("cuda")
    two: Any = SimpleNamespace(size=2)
    for group in (two, SINGLE):
        loading.compile_kernels(spec, hooks, plan, description, drafting, cuda, torch.bfloat16, group)
    buffers = [engine.full.storage.capacity]
    level, streaming = engine.top, list[int]()
    while level.planner.arms:
        level = level.planner.arms[0].drafter  # type: ignore[assignment]
        caches = buffers if hasattr(level, "planner") else streaming
        caches.append(level.cache.storage.capacity)  # type: ignore[attr-defined]
        if caches is streaming:
            break
    assert [each.buffers for each in asked] == [each for each in (buffers, streaming) if each]
    assert asked[0].int8 == (len(buffers) > 1)
    assert json.loads(json.dumps([asdict(each) for each in asked], default=str))[0]["dtype"] == "bfloat16"
    assert len(notes) == 1
