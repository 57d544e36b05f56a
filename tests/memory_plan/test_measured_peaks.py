"""Memory plans against the peaks that were measured on a GPU: what a stack takes, with the copies that it may make."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from triforce_chat.loading.planning import draft_name, plan_for, resized
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan.plan import Memory, MemoryPlan
from triforce_chat.models.describe import describe
from triforce_chat.models.shapes import BigShape
from triforce_chat.settings.settings import SPECIFICATIONS, Settings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WHOLE = 150 * 10**9  # bytes, of an H200
AROUND = 32  # tokens of a bench's warm-up behind a text
HELD_TO_24_GB = ("card", "card-8b", "bf16-8b-4096", "four-bits-8b-4096", "four-bits-8b-131000", "weights-34b")
ROOMY = (
    "contexts",
    "large",
    "large-7b",
    "large-8b",
    "large-13b",
    "medium",
    "offload",
    "offload-int4-same",
    "parallel",
    "small-same",
)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [*((name, 0.98, 1.03) for name in HELD_TO_24_GB), *((name, 0.97, 1.04) for name in ROOMY)],
)
def test_a_plan_foretells_the_peak(name: str, least: float, most: float) -> None:
    record = json.loads((BENCHMARKS / f"h200-{name}.json").read_text())
    stack = max(record["rows"], key=lambda row: row["peak_bytes"])
    peak = max(max(row["peak_bytes"], row["prefill_peak_bytes"]) for row in record["rows"])
    plan = planned(record, stack["contender"], max(row["context"] for row in record["rows"]))
    assert plan.fits
    assert least < (plan.device + plan.optional_copies) / peak < most


def test_what_prefill_and_decoding_took_belong_to_different_stacks() -> None:
    """The prompts of this record were read by ``auto``, which had a level over a 4-bit copy in those days."""
    record = json.loads((BENCHMARKS / "h200-trees-offload.json").read_text())
    context = record["rows"][0]["context"]
    for stack, kind in (("triforce-int4", "prefill_peak_bytes"), ("triforce", "peak_bytes")):
        plan, peak = planned(record, stack, context), max(row[kind] for row in record["rows"])
        assert 0.97 < (plan.device + plan.optional_copies) / peak < 1.04


def planned(record: dict[str, Any], stack: str, context: int) -> MemoryPlan:
    """The plan of a bench's engine, as it was on that machine."""
    known = {each.name for each in SPECIFICATIONS}
    given = {name: value for name, value in record["settings"].items() if name in known}
    settings = Settings(**{**given, "stack": stack, "device": "auto"})
    model = describe(settings.model)
    name = draft_name(settings, model)
    sizes = record["inflated"] or {}
    own = {each.name: sizes[each.name] for each in fields(BigShape) if each.name in sizes}
    spec = EngineSpec(settings, shape=BigShape(**own) if own else None)
    memory = Memory(record["device_memory"] or WHOLE, 10**12)
    room = context + settings.max_tokens + AROUND
    machine = torch.device("cuda"), torch.bfloat16, memory
    target = resized(model, spec, torch.bfloat16)
    return plan_for(settings, target, describe(name) if name else None, room, machine, settings.tp)
