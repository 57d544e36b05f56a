"""What is asked of ``plan``, with models of which there is no file here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from triforce_chat.loading import device
from triforce_chat.loading.plan_request import PlanRequest
from triforce_chat.loading.planning import draft_name
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.plan import Memory
from triforce_chat.memory_plan.remedies import FILE, find_remedies
from triforce_chat.memory_plan.rounded import file_in_4_bits
from triforce_chat.models.describe import describe
from triforce_chat.settings.settings import Settings

GB = 10**9


@pytest.fixture(autouse=True)
def any_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_gpu", lambda _: None)


def request(gigabytes: int, host: int, quantized: bool = False, **given: Any) -> PlanRequest:
    settings = Settings(model="llama-3.1-8b", **given)
    target = describe(settings.model)
    name = draft_name(settings, target)
    if quantized:
        target = replace(target, stored=file_in_4_bits(Dimensions.of(target.fields)))
    draft = describe(name) if name else None
    return PlanRequest(settings, target, draft, torch.device("cuda"), Memory(gigabytes * GB, host * GB))


def test_what_takes_more_is_no_help() -> None:
    """Expanded weights would fit, in host memory, from where each forward has to copy them."""
    run = request(12, 32, quantized=True, dtype="stored")
    now = run.planned()
    assert not now.fits
    wide = run.changed({"dtype": "bfloat16"}).planned()
    assert wide.fits
    assert wide.host > 20 * GB
    named = {name for remedy in find_remedies(run, now) for name in remedy.changes}
    assert {"draft", "kv"} <= named
    assert "dtype" not in named


@pytest.mark.parametrize("context", [4096, 16_384])
def test_a_file_in_4_bits_is_planned_like_one_that_is_here(context: int) -> None:
    run = request(16, 32, context=context, draft="none")
    now = run.planned()
    assert not now.on_device
    (remedy,) = (each for each in find_remedies(run, now) if each.changes.keys() == {FILE})
    there = request(16, 32, quantized=True, context=context, draft="none").planned()
    assert there.on_device
    assert (remedy.device, remedy.host) == (there.device, there.host)
    quantized = request(16, 32, quantized=True, context=context, draft="none")
    assert FILE not in [name for name, values in quantized.offers().items() if values]
