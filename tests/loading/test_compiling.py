"""The kernels that are compiled while a model is loaded are those of the engine that then stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import save_model

from triforce_chat.engine.kernels_available import kernels_compile
from triforce_chat.errors import DoesNotFit
from triforce_chat.loading import compile_job
from triforce_chat.loading.compile_job import Job, start, triton_cache
from triforce_chat.loading.gpu import Gpu, find_gpu
from triforce_chat.loading.load_engine import load_engine
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models.shapes import find_shape
from triforce_chat.settings.settings import Settings

pytest.importorskip("triton")

from triforce_chat.loading.compiling import needed

HOPPER = Gpu((9, 0), 80 * 10**9, 232_448)
FORWARD = {"_norm_row", "_gate", "_rotate_head", "_attend", "_join"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiling") / "model"
    return save_model(folder, max_position_embeddings=4096, head_dim=16)


@pytest.mark.parametrize("stack", ["triforce", "retrieval", "naive", "autoregressive"])
def test_its_caches_are_the_engines(model: Path, stack: str) -> None:
    spec = EngineSpec(Settings(model=str(model), draft=str(model), device="cpu", stack=stack))
    engine, _ = load_engine(spec)
    buffers = [engine.full.storage.capacity]
    level, streaming = engine.top, list[int]()
    while level.planner.arms:
        level = level.planner.arms[0].drafter  # type: ignore[assignment]
        caches = buffers if hasattr(level, "planner") else streaming
        caches.append(level.cache.storage.capacity)  # type: ignore[attr-defined]
        if caches is streaming:
            break
    asked = [*needed(Job(spec, HOPPER))]
    assert [each.buffers for each in asked] == [each for each in (buffers, streaming) if each]
    assert asked[0].int8 == (len(buffers) > 1)
    assert asked[0].dtype == torch.bfloat16


def test_resized_and_shared_models_are_known_too(model: Path) -> None:
    shape = find_shape("llama-3.1-8b")
    settings = Settings(model=str(model), draft="none", context=2048, tp=2)
    (asked,) = needed(Job(EngineSpec(settings, shape=shape), HOPPER))
    sizes = asked.sizes
    assert isinstance(sizes, Dimensions)
    assert (sizes.hidden, sizes.mlp, sizes.kv_heads, asked.ranks) == (4096, 14_336, 8, 2)
    assert sizes.vocabulary < 1000


def test_the_model_that_auto_chooses_is_described_without_transformers() -> None:
    # The import of transformers would take as long as all the rest of the process.
    code = f"""
import sys
from triforce_chat.loading.compiling import needed
from triforce_chat.loading.compile_job import Job
print([each.sizes.hidden for each in needed(Job.of({Job(EngineSpec(Settings()), HOPPER).text()!r}))])
assert "transformers" not in sys.modules
"""
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    assert printed.decode().strip() == "[1536]"


def test_a_process_compiles_and_leaves_a_mark(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # tests' own processes interpret the kernels
    settings = Settings(model=str(model), draft="none", stack="autoregressive", temperature=0.5)
    started = start(EngineSpec(settings), HOPPER)
    assert bool(started) == kernels_compile()
    if not started:
        pytest.skip("there is no C compiler")
    started.join()
    assert {path.stem for path in (tmp_path / "cache").rglob("*.cubin")} == FORWARD
    same, other = (
        Settings(model=str(model), draft="none", stack="autoregressive", **changes)
        for changes in ({"temperature": 1.0, "max_tokens": 3}, {"context": 64})
    )
    assert start(EngineSpec(same), HOPPER) is None
    assert Job(EngineSpec(same), HOPPER).marker.exists()
    assert not Job(EngineSpec(other), HOPPER).marker.exists()


def test_what_cannot_be_compiled_is_not_tried_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    spec = EngineSpec(Settings(model=str(model), context=10**6))
    with pytest.raises(DoesNotFit):
        needed(Job(spec, HOPPER))
    compile_job.run(Job(spec, HOPPER))
    assert start(spec, HOPPER) is None


def test_nothing_is_compiled_without_a_gpu_that_runs_it(model: Path) -> None:
    spec = EngineSpec(Settings(model=str(model), device="cpu"))
    assert find_gpu("cpu") is None
    assert find_gpu("cuda:99") is None
    for gpu in (None, Gpu((7, 5), 24 * 10**9, 65_536)):
        assert start(spec, gpu) is None


def test_a_gpu_is_found_where_torch_finds_one() -> None:
    gpu = find_gpu("auto")
    assert bool(gpu) == torch.cuda.is_available()
    if gpu:
        properties: Any = torch.cuda.get_device_properties(0)
        capability, shared = (properties.major, properties.minor), properties.shared_memory_per_block_optin
        assert gpu == Gpu(capability, properties.total_memory, shared)


def test_a_relative_path_is_another_model_in_another_folder(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(name: str) -> str:
        return Job(EngineSpec(Settings(model=name)), HOPPER).text()

    monkeypatch.chdir(model.parent)
    assert text(model.name) == text(str(model))
    monkeypatch.chdir(model)
    assert text(model.name) != text(str(model))
    assert text("default") == text("small")


def test_marks_lie_where_triton_keeps_its_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from triton import knobs

    for variable in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert triton_cache(os.environ) == Path(knobs.cache.dir)
    for variable in ("TRITON_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert triton_cache(os.environ) == Path(knobs.cache.dir)


def test_a_job_begins_without_torch() -> None:
    code = "import sys; import triforce_chat.cli.engines, triforce_chat.loading.compile_job, triforce_chat.loading.gpu"
    heavy = "assert not {'torch', 'triton', 'transformers'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", f"{code}\n{heavy}"], check=True)
