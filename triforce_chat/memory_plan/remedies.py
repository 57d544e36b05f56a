"""Finds changes that would make a run fit; each one is itself planned to check that it works."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from triforce_chat.memory_plan.plan import (
    Memory,
    MemoryPlan,
    Offload,
    largest_context,
    place_kv,
    with_resident_weights,
)
from triforce_chat.memory_plan.workload import FP32, Workload

MAX_GPUS = 8
BF16 = 2  # bytes


@dataclass(frozen=True, slots=True)
class Remedies:
    """Alternatives, each of which is enough; None if it is not or would change nothing.

    The field names are those of ``plan --json``.
    """

    context: int | None  # the longest whose KV fits on the device
    offloaded_context: int | None  # the longest with KV in host memory, if that is longer
    dtype: str | None  # a smaller one
    dtype_context: int | None  # the longest that fits with that dtype, if shorter than the wanted one
    tp: int | None  # the fewest GPUs of this size


NO_REMEDIES = Remedies(None, None, None, None, None)


def find_remedies(plan: MemoryPlan) -> Remedies:
    """Changes that make a plan fit, or that let an offloaded one keep KV and weights on the device."""
    whole = with_resident_weights(plan, "never")
    if plan.fits and whole.fits:
        return NO_REMEDIES
    offload: Offload = "never" if plan.verdict == "offloaded" else "auto"
    workload, memory = whole.workload, plan.memory
    context = largest_context(workload, memory, "never", workload.context)
    offloaded = largest_context(workload, memory, offload, workload.context)
    in_bf16 = _longest_in_bf16(workload, memory, offload)
    return Remedies(
        context=context or None,
        offloaded_context=offloaded if offloaded > context else None,
        dtype="bfloat16" if in_bf16 > offloaded else None,
        dtype_context=in_bf16 if workload.context > in_bf16 > offloaded else None,
        tp=None if memory.is_host or workload.quantized_kv else _fewest_gpus(workload, memory, offload),
    )


def _longest_in_bf16(workload: Workload, memory: Memory, offload: Offload) -> int:
    """The longest context that fits in bfloat16; 0 if the run is not in fp32."""
    if workload.itemsize != FP32:
        return 0
    layout = dataclasses.replace(workload.layout, packed=False)
    half = dataclasses.replace(
        workload,
        itemsize=BF16,
        kv_itemsize=None,
        quantized_kv=None,
        layout=layout,
        stored=None,
        stored_draft=None,
    )
    return largest_context(half, memory, offload, workload.context)


def _fewest_gpus(workload: Workload, memory: Memory, offload: Offload) -> int | None:
    """The smallest number of GPUs of the same size that the model can be split over and fits on."""
    for gpus in range(workload.gpus + 1, MAX_GPUS + 1):
        if workload.target.divides_among(gpus):
            more = dataclasses.replace(workload, gpus=gpus)
            if place_kv(more, memory, offload).fits:
                return gpus
    return None
