"""How many sequences of a batch fit into a machine's memory at once, and how many have to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from triforce_chat.memory_plan.plan import Memory, MemoryPlan
from triforce_chat.memory_plan.workload import Workload

# Of a GPU's free memory for what a server's answers add to the documents; the rest is for small caches and graphs.
SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Some sequences of equal length at once; ``shared`` of each one's tokens are in memory once for all."""

    sequences: int
    context: int  # tokens of each, shared ones included
    shared: int
    own_parts: Mapping[str, int]  # bytes that one more sequence takes, by purpose
    common_parts: Mapping[str, int]  # bytes that all take together, by purpose
    memory: Memory
    token: int  # bytes of one token's keys and values
    served: bool = False  # the answers are those of a server, which lends its memory in equal shares

    @property
    def each(self) -> int:
        return sum(self.own_parts.values())

    @property
    def common(self) -> int:
        return sum(self.common_parts.values())

    @property
    def at_once(self) -> int:
        """How many fit."""
        left = Memory.usable(self.memory.device) - self.common
        return int(min(self.sequences, max(0, left) // self.each))

    @property
    def waiting(self) -> int:
        """How many begin only when others have ended."""
        return self.sequences - self.at_once

    @property
    def room(self) -> int:
        """Tokens after the documents that a server has room for in each of its answers."""
        free = self.memory.device
        if free is None or self.memory.is_host:
            return self.context
        return min(self.context, room_each(max(0, free - self.common), self.sequences, self.token))


def room_each(free: int, sequences: int, token: int) -> int:
    """Tokens that each of a server's sequences has room for in ``free`` bytes; ``token``: bytes of one."""
    return int(SHARE * free / sequences) // token


def plan_batch(
    plan: MemoryPlan, workload: Workload, sequences: int, context: int, shared: int = 0, served: bool = False
) -> BatchPlan:
    """Plan sequences of ``context`` tokens with the model of a plan, all keys and values on the device.

    ``workload``: that of the plan as so many sequences have it, see ``inputs.of_several``.
    """
    whole = replace(workload, context=context)
    own = {
        "kv": kv(replace(whole, context=context - shared)),
        "retrieval": whole.retrieval,
        "draft": whole.draft_caches,
    }
    common = {
        "weights": whole.weights,
        "kv": kv(replace(plan.workload, context=shared)) if shared else 0,
        "draft": whole.draft_bytes - whole.draft_caches,
        "activations": whole.activations,
    }
    grain = whole.layout.grain
    token = (kv(replace(whole, context=2 * grain)) - kv(replace(whole, context=grain))) // grain
    return BatchPlan(sequences, context, shared, own, common, plan.memory, token, served)


def kv(workload: Workload) -> int:
    """Keys and values of a context, and the latest queries."""
    return workload.target.layers * workload.layer_kv + workload.latest_queries
