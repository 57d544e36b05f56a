"""The process that compiles the kernels of a job: which ones a GPU will need for the models that are being loaded.

Transformers is imported only for models whose configuration is known to it alone; presets bring theirs along.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from triforce_chat.engine.compile_ahead import Formats, Kernels, compile_all
from triforce_chat.engine.engine import SLACK
from triforce_chat.engine.speculation.stacks import largest_forward, retrieval_budget
from triforce_chat.engine.together import GRAIN
from triforce_chat.loading.compile_job import Job
from triforce_chat.loading.device import dtype_on, kv_dtype
from triforce_chat.loading.planning import draft_name, plan_for, resized, shortened_to_fit
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.inputs import GPU, available_memory, describe_draft
from triforce_chat.memory_plan.plan import MemoryPlan
from triforce_chat.models.describe import Description, describe
from triforce_chat.models.progress import ignore_note
from triforce_chat.settings.engine_options import stack_options
from triforce_chat.settings.settings import AUTO, Settings

if TYPE_CHECKING:
    from triforce_chat.models.stored_format import StoredWeights

NICE = 5  # of these processes: loading goes first


def main() -> None:
    """Do the job on standard input."""
    os.nice(NICE)
    job = Job.of(sys.stdin.read())
    try:
        compile_all(needed(job), job.gpu.capability, job.gpu.shared_memory)
    finally:  # what cannot be compiled ahead is compiled at its first launch, and not tried here again
        job.marker.parent.mkdir(parents=True, exist_ok=True)
        job.marker.touch()


def needed(job: Job) -> Iterator[Kernels]:
    """The kernels of the engine that will be loaded, if its GPU is free then.

    Raises ModelError, OutOfMemory, DoesNotFit and UsageError as loading the engine will.
    """
    spec, gpu = job.spec, job.gpu
    dtype = dtype_on("cuda", spec.settings)
    machine = (
        GPU,
        dtype,
        available_memory(GPU, spec.settings.tp, min(gpu.memory, spec.device_memory or gpu.memory)),
    )
    settings = spec.settings
    if settings.model == AUTO:
        from triforce_chat.loading.choose_model import Computer, choose

        chosen = choose(settings, Computer(machine, gpu.memory)).model
        settings = dataclasses.replace(settings, model=chosen)
    model = describe(settings.model)
    draft = describe_draft(draft_name(settings, model))
    context = spec.capacity or model.reach(settings.context)
    plan = plan_for(settings, resized(model, spec, dtype), draft, context, machine, settings.tp)
    if spec.capacity is None:
        plan = shortened_to_fit(plan, settings, ignore_note)
    return kernels_of(settings, plan, model, draft, dtype, spec.sequences)


def kernels_of(
    settings: Settings,
    plan: MemoryPlan,
    target: Description,
    draft: Description | None,
    dtype: torch.dtype,
    sequences: int = 1,
) -> Iterator[Kernels]:
    """What the target and its draft will launch by this plan, for up to so many ``sequences`` at once."""
    options = stack_options(settings, target.context, plan.workload.caches.budget, plan.offloaded)
    options = options.streaming(plan.workload.streamed_layers > 0, plan.offloaded).beside(sequences)
    budget, retrieval = retrieval_budget(options), plan.workload.caches.retrieval > 0
    copied = retrieval and (sequences > 1 or not plan.lists)
    buffers = [plan.workload.context + plan.workload.slack, *([budget.capacity] if copied else [])]
    copies = options.middle != "full" and plan.workload.stored is None
    int8 = retrieval and copies and dtype == torch.bfloat16
    own = plan.workload.target
    layers = formats_of(plan.workload.stored)
    room = GRAIN + SLACK  # as most sequences have it
    kept = budget if retrieval else None
    lists = retrieval and plan.lists
    trees = options.tree.most if options.tree else 0
    kv = kv_dtype(settings, "cuda", dtype, plan.workload.stored is not None)
    more: dict[str, Any] = {
        "rows": largest_forward(options),
        "quantized_copy": plan.workload.quantized_copy > 0,
        "own": room,
        "trees": trees,
        "kv": kv if kv != dtype else None,
    }
    yield Kernels(own, dtype, buffers, kept, lists, int8, settings.tp, layers, sequences, **more)
    if draft is not None and plan.workload.caches.streaming:
        layers = formats_of(plan.workload.stored_draft)
        of_draft: dict[str, Any] = {"sequences": sequences, "trees": trees, "drawn": own.vocabulary}
        yield Kernels(Dimensions.of(draft.fields), dtype, [options.window], layers=layers, **of_draft)


def formats_of(stored: StoredWeights | None) -> Sequence[Formats]:
    """The formats of a model's blocks."""
    if stored is None:
        return ({},)
    from triforce_chat.models.dequantize import BLOCKS
    from triforce_chat.models.repack import weight_format

    kinds = [dict(layer) for layer in stored.layers]
    return [{role: weight_format(kind) for role, kind in each.items() if kind in BLOCKS} for each in kinds]


if __name__ == "__main__":
    main()
