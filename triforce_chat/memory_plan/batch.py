"""How many sequences of a batch fit into a machine's memory at once, and how many have to wait."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triforce_chat.memory_plan.plan import Memory, MemoryPlan
from triforce_chat.memory_plan.workload import Workload


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Some sequences of equal length at once; ``shared`` of each one's tokens are in memory once for all."""

    sequences: int
    context: int  # tokens of each, shared ones included
    shared: int
    each: int  # bytes that one more sequence takes
    common: int  # bytes that all take together: weights, shared keys and values, and one forward
    memory: Memory

    @property
    def at_once(self) -> int:
        """How many fit."""
        left = Memory.usable(self.memory.device) - self.common
        return int(min(self.sequences, max(0, left) // self.each))

    @property
    def waiting(self) -> int:
        """How many begin only when others have ended."""
        return self.sequences - self.at_once


def plan_batch(plan: MemoryPlan, sequences: int, context: int, shared: int = 0) -> BatchPlan:
    """Plan sequences of ``context`` tokens with the model of a plan, all keys and values on the device."""
    whole = replace(plan.workload, context=context)
    caches = whole.retrieval + whole.draft_caches
    own, once = (
        kv(replace(whole, context=context - shared)),
        kv(replace(whole, context=shared)) if shared else 0,
    )
    common = whole.weights + whole.draft_bytes - whole.draft_caches + whole.activations + once
    return BatchPlan(sequences, context, shared, own + caches, common, plan.memory)


def kv(workload: Workload) -> int:
    """Keys and values of a context, and the latest queries."""
    return workload.target.layers * workload.layer_kv + workload.latest_queries
