"""Which kernels a GPU will need for the models that are being loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch

from triforce_chat.engine.cache.streaming import HOP, SINKS, WINDOW
from triforce_chat.engine.compile_ahead import Kernels
from triforce_chat.engine.engine import SLACK
from triforce_chat.memory_plan.plan import MemoryPlan
from triforce_chat.models.describe import Description
from triforce_chat.settings.engine_options import stack_options
from triforce_chat.settings.settings import Settings


def kernels_of(
    settings: Settings, plan: MemoryPlan, target: Description, draft: Description | None, dtype: torch.dtype
) -> Iterator[Kernels]:
    """What the target and its draft will launch, as far as that is known before they are loaded."""
    name, context = str(dtype).removeprefix("torch."), plan.workload.context
    options = stack_options(settings, target.context, plan.workload.caches.budget)
    budget, retrieval = options.budget, plan.workload.caches.retrieval > 0
    buffers = [context + SLACK, *([budget.capacity] if retrieval else [])]
    int8 = retrieval and options.middle != "full" and dtype == torch.bfloat16
    yield Kernels(dict(target.fields), name, buffers, asdict(budget) if retrieval else None, int8)
    if draft is not None and plan.workload.caches.streaming:
        yield Kernels(dict(draft.fields), name, [SINKS + WINDOW + HOP])
