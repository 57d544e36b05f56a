"""A GPU is made ready by its driver while torch is imported; whatever goes wrong there, torch tells."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest
import torch

from triforce_chat.cli import engines
from triforce_chat.loading import gpu
from triforce_chat.loading.gpu import Gpu, begin_context
from triforce_chat.settings.settings import Settings


class Driver:
    """Records its calls; those that are named fail."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[str] = []
        self.numbers: list[int] = []
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuDeviceGet":
                self.numbers.append(arguments[1])
            return int(name in self.failing)

        return call


def called(monkeypatch: pytest.MonkeyPatch, device: str, *failing: str) -> Driver:
    driver = Driver(*failing)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    ahead = begin_context(device)
    assert ahead
    ahead.join()
    return driver


@pytest.mark.parametrize(("device", "number"), [("auto", 0), ("cuda", 0), ("cuda:3", 3)])
def test_the_context_of_the_gpu_that_is_named(
    monkeypatch: pytest.MonkeyPatch, device: str, number: int
) -> None:
    driver = called(monkeypatch, device)
    assert driver.calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert driver.numbers == [number]


def test_a_driver_that_fails_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, "cuda", "cuInit").calls == ["cuInit"]
    assert called(monkeypatch, "cuda", "cuDeviceGet").calls == ["cuInit", "cuDeviceGet"]


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DRIVER", "libno-such-driver.so")
    ahead = begin_context("cuda")
    assert ahead
    ahead.join()
    assert begin_context("cpu") is None


@pytest.mark.parametrize(
    ("torch_version", "ranks", "begun"),
    [("2.13.0", 1, True), ("2.13.0+cpu", 1, False), ("2.11.0+cu130", 2, False)],
)
def test_only_where_torch_will_work_on_it(
    monkeypatch: pytest.MonkeyPatch, torch_version: str, ranks: int, begun: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("triforce_chat.loading.compile_job.released", lambda _: torch_version)
    monkeypatch.setattr(gpu, "begin_context", asked.append)
    engines.begin_on_gpu(Settings(device="cuda:1", tp=ranks))
    assert asked == (["cuda:1"] if begun else [])


@pytest.mark.parametrize(
    ("found", "begun"), [(Gpu((8, 6), 1, 1), True), (Gpu((7, 5), 1, 1), False), (None, False)]
)
def test_kernels_get_ready_for_a_gpu_that_runs_them(
    monkeypatch: pytest.MonkeyPatch, found: Gpu | None, begun: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(gpu, "find_gpu", lambda _: found)
    for name, answer in (("kernels_compile", lambda: True), ("identify_triton", lambda: asked.append("key"))):
        monkeypatch.setattr(f"triforce_chat.engine.kernels_available.{name}", answer)
    monkeypatch.setattr(engines, "import_module", asked.append)
    engines._begin_kernels("cuda:1")
    assert asked == (["key", engines.KERNELS] if begun else [])


@pytest.mark.gpu
def test_kernels_are_ready_then() -> None:
    from triton.runtime.cache import triton_key

    before = triton_key.cache_info().hits
    engines._begin_kernels("auto")
    assert engines.KERNELS in sys.modules
    triton_key()
    assert triton_key.cache_info().hits > before


@pytest.mark.gpu
def test_torch_works_in_that_context() -> None:
    ahead = begin_context("cuda")
    assert ahead
    ahead.join()
    assert float(torch.ones(3, device="cuda").sum()) == 3
