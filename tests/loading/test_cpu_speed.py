"""The measured speed of the CPU: what it is kept for, and what a damaged file costs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from triforce_chat.loading import cpu_speed, device
from triforce_chat.loading.device import device_and_dtype
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models.describe import describe
from triforce_chat.models.presets import find_preset
from triforce_chat.settings.settings import Settings

MEASURED = 1e10  # bytes per second


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The measurements that were made, each of ``MEASURED``; the cache folder does not exist yet."""
    made: list[float] = []

    def measure(_dtype: torch.dtype) -> tuple[float, bool]:
        made.append(MEASURED)
        return MEASURED, True

    monkeypatch.setenv("TRIFORCE_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_speed, "measure", measure)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "cpu-speed.json"


def dimensions(name: str) -> Dimensions:
    preset = find_preset(name)
    assert preset is not None
    return Dimensions.of(preset.sizes)


def test_a_step_reads_all_weights_but_an_embedding_of_its_own() -> None:
    large, middle, small = map(dimensions, ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "small"))
    full, half = torch.float32, torch.bfloat16
    assert cpu_speed.step_bytes(small, full) == 4 * small.parameters()  # the embedding is the output matrix
    assert cpu_speed.step_bytes(middle, full) == 4 * (middle.parameters() - 151_936 * 896)
    assert cpu_speed.step_bytes(middle, full) == pytest.approx(4 * 494e6, rel=0.01)
    assert cpu_speed.step_bytes(large, half) == pytest.approx(2 * 1.54e9, rel=0.01)


def test_the_estimate(made: list[float]) -> None:
    """Two cores of a Xeon that read 28 GB/s took 131 ms and, on two occasions, 400 and 770 ms."""
    scale = MEASURED / 28e9
    middle, large = map(describe, ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"))
    assert cpu_speed.ms_per_token(middle) * scale == pytest.approx(131, rel=0.2)
    assert 400 < cpu_speed.ms_per_token(large) * scale < 770
    assert len(made) == 1


def test_the_estimate_of_quantized_weights(made: list[float]) -> None:
    """Two cores of a Xeon that read 32 GB/s took 49 and 95 ms."""
    scale = MEASURED / 32e9
    for name, taken in (("qwen2.5-coder-0.5b", 49), ("qwen2.5-coder-1.5b", 95)):
        model = describe(name)
        assert model.preset is not None
        assert model.preset.packed is not None
        kept = replace(model, stored=model.preset.packed.stored)
        assert cpu_speed.ms_per_token(kept, torch.bfloat16) * scale == pytest.approx(taken, rel=0.2)
    assert len(made) == 1


def test_narrow_weights_are_measured_themselves(made: list[float], file: Path) -> None:
    model = describe("medium")
    full, half = (cpu_speed.ms_per_token(model, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert half == full / 2
    assert len(made) == len(json.loads(file.read_text())) == 2


def test_it_is_measured_once(made: list[float], file: Path) -> None:
    assert [cpu_speed.bandwidth(torch.float32) for _ in range(3)] == [MEASURED] * 3
    assert len(made) == 1
    (key,) = json.loads(file.read_text())
    assert torch.__version__ in key
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_other_threads_and_other_machines_are_measured_themselves(
    made: list[float], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_speed.bandwidth(torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    cpu_speed.bandwidth(torch.float32)
    monkeypatch.setattr(cpu_speed, "processor", lambda: "another one")
    cpu_speed.bandwidth(torch.float32)
    monkeypatch.setattr(torch, "__version__", "99.0")
    cpu_speed.bandwidth(torch.float32)
    assert len(made) == len(json.loads(file.read_text())) == 4


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "\udcff", '{"KEY": "fast"}', '{"KEY": -1.0}', '{"KEY": NaN}', '{"KEY": Infinity}'],
)
def test_a_damaged_file_is_measured_again(made: list[float], file: Path, text: str) -> None:
    cpu_speed.bandwidth(torch.float32)
    (key,) = json.loads(file.read_text())
    file.write_bytes(text.replace("KEY", key.replace('"', '\\"')).encode("utf-8", "surrogateescape"))
    assert cpu_speed.bandwidth(torch.float32) == MEASURED
    assert len(made) == 2
    assert json.loads(file.read_text()) == {key: MEASURED}


def test_a_folder_that_cannot_be_written(made: list[float], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where the folder would be")
    assert [cpu_speed.bandwidth(torch.float32) for _ in range(2)] == [MEASURED] * 2
    assert len(made) == 2


def test_a_disturbed_measurement_is_not_kept(
    made: list[float], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_speed, "measure", lambda _: (1e8, False))
    assert cpu_speed.bandwidth(torch.float32) == 1e8
    assert not file.exists()
    monkeypatch.setattr(cpu_speed, "measure", lambda _: (2e8, True))
    assert [cpu_speed.bandwidth(torch.float32) for _ in range(2)] == [2e8] * 2
    assert made == []


@pytest.mark.parametrize(("share", "undisturbed"), [(0.95, True), (0.6, False)])
def test_other_programs_on_the_cores_are_noticed(
    monkeypatch: pytest.MonkeyPatch, share: float, undisturbed: bool
) -> None:
    """A clock that advances by a hundredth of a second whenever it is read; the threads run for a share of it."""
    ticks = count()
    clock = SimpleNamespace(
        perf_counter=lambda: next(ticks) / 100,
        process_time=lambda: share * torch.get_num_threads() * next(ticks) / 100,
    )
    monkeypatch.setattr(cpu_speed, "time", clock)
    monkeypatch.setattr(cpu_speed, "SIDE", 1024)
    assert cpu_speed.measure(torch.float32)[1] is undisturbed


def test_the_measurement_is_plausible_and_short() -> None:
    started = time.process_time()  # other programs may hold the machine
    assert 1e8 < cpu_speed.measure(torch.float32)[0] < 1e13
    assert time.process_time() - started < 10 * cpu_speed.DURATION


def test_bfloat16_is_measured_once(file: Path, made: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    gains = iter([1.4, 1.6])
    monkeypatch.setattr(cpu_speed, "bfloat16_gain", lambda: next(gains))
    assert [cpu_speed.bfloat16_pays() for _ in range(3)] == [False] * 3
    file.unlink()
    assert [cpu_speed.bfloat16_pays() for _ in range(3)] == [True] * 3
    cpu_speed.bandwidth(torch.float32)  # the other measurement is kept beside it
    assert len(made) == len(json.loads(file.read_text())) - 1 == 1
    assert cpu_speed.bfloat16_pays()


def test_the_gain_is_a_ratio_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[torch.dtype] = []

    def seconds(_product: object, x: torch.Tensor, weight: torch.Tensor) -> float:
        products.append(weight.dtype)
        return 0.001 if x.dtype == weight.dtype == torch.float32 else slow

    monkeypatch.setattr(cpu_speed, "_seconds", seconds)
    slow = 0.0005
    assert cpu_speed.bfloat16_gain() == pytest.approx(2)
    assert len(products) == 2 * cpu_speed.PRODUCT_REPEATS
    products.clear()
    slow = 0.4
    assert cpu_speed.bfloat16_gain() == pytest.approx(0.0025)
    assert products == [torch.float32, torch.bfloat16]  # once is enough


def test_a_cpu_with_fast_bfloat16_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_and_dtype(Settings(device="cpu")) == ("cpu", torch.float32)
    monkeypatch.setattr(device, "bfloat16_pays", lambda: True)
    assert device_and_dtype(Settings(device="cpu")) == ("cpu", torch.bfloat16)
    assert device_and_dtype(Settings(device="cpu", tp=2)) == ("cpu", torch.float32)
    assert device_and_dtype(Settings(device="cpu", dtype="float32")) == ("cpu", torch.float32)
