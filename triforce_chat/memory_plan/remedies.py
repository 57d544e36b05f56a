"""What would make a run fit; every remedy was planned itself and found to work."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from triforce_chat.memory_plan.plan import Memory, MemoryPlan, Offload, largest_context, planned
from triforce_chat.memory_plan.work import FP32, Work

MOST_GPUS = 8
SHORT = 2  # bytes of a number in bfloat16


@dataclass(frozen=True, slots=True)
class Remedies:
    """Each alone is enough; None where it is not, or would change nothing."""

    context: int | None  # the most tokens whose KV fits on the device
    offloaded_context: int | None  # the same with KV in host memory, where that is more
    dtype: str | None  # a shorter one
    dtype_context: int | None  # the most tokens that fit with it, where all do not
    tp: int | None  # the fewest GPUs of this size


NONE = Remedies(None, None, None, None, None)


def remedies(plan: MemoryPlan) -> Remedies:
    """What would make a plan fit, or let one with KV in host memory do without."""
    if plan.fits and planned(plan.work, plan.memory, "never").fits:
        return NONE
    offload: Offload = "never" if plan.verdict == "offloaded" else "auto"
    work, memory = plan.work, plan.memory
    context = largest_context(work, memory, "never", work.context)
    offloaded = largest_context(work, memory, offload, work.context)
    shortened = _shortened(work, memory, offload)
    return Remedies(
        context=context or None,
        offloaded_context=offloaded if offloaded > context else None,
        dtype="bfloat16" if shortened > offloaded else None,
        dtype_context=shortened if work.context > shortened > offloaded else None,
        tp=None if memory.is_host else _fewest_gpus(plan, offload),
    )


def _shortened(work: Work, memory: Memory, offload: Offload) -> int:
    """The most tokens that fit in 16 bit; 0 where that would change nothing."""
    if work.itemsize != FP32:
        return 0
    layout = dataclasses.replace(work.layout, packed=False)
    half = dataclasses.replace(work, itemsize=SHORT, layout=layout)
    return largest_context(half, memory, offload, work.context)


def _fewest_gpus(plan: MemoryPlan, offload: Offload) -> int | None:
    """GPUs of the same size that can share it and hold it."""
    work = plan.work
    for gpus in range(work.gpus + 1, MOST_GPUS + 1):
        if work.target.divides_among(gpus):
            more = dataclasses.replace(work, gpus=gpus)
            if planned(more, plan.memory, offload).fits:
                return gpus
    return None
