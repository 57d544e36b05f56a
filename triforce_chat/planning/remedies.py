"""What would make a run fit; every remedy was planned itself and found to work."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from triforce_chat.planning.plan import MemoryPlan, Offload, largest_context, planned
from triforce_chat.planning.work import FP32

MOST_GPUS = 8
SHORT = 2  # bytes of a number in bfloat16


@dataclass(frozen=True, slots=True)
class Remedies:
    """Each alone is enough; None where it is not, or would change nothing."""

    context: int | None  # the most tokens whose KV fits on the device
    offloaded_context: int | None  # the same with KV in host memory, where that is more
    dtype: str | None  # a shorter one
    tp: int | None  # the fewest GPUs of this size


NONE = Remedies(None, None, None, None)


def remedies(plan: MemoryPlan) -> Remedies:
    """What would make a plan fit, or let one with KV in host memory do without."""
    if plan.verdict == "fits":
        return NONE
    offload: Offload = "never" if plan.verdict == "offloaded" else "auto"
    work, memory = plan.work, plan.memory
    context = largest_context(work, memory, "never", work.context)
    offloaded = largest_context(work, memory, offload, work.context)
    layout = dataclasses.replace(work.layout, packed=False)
    half = dataclasses.replace(work, itemsize=SHORT, layout=layout)
    return Remedies(
        context=context or None,
        offloaded_context=offloaded if offloaded > context else None,
        dtype="bfloat16" if work.itemsize == FP32 and planned(half, memory, offload).fits else None,
        tp=None if memory.is_host else _fewest_gpus(plan, offload),
    )


def _fewest_gpus(plan: MemoryPlan, offload: Offload) -> int | None:
    """GPUs of the same size that hold it; KV heads are divided among them."""
    work = plan.work
    for gpus in range(work.gpus + 1, MOST_GPUS + 1):
        if work.target.kv_heads % gpus == 0:
            more = dataclasses.replace(work, gpus=gpus)
            if planned(more, plan.memory, offload).fits:
                return gpus
    return None
