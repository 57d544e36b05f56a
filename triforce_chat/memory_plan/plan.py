"""Whether a run fits into a machine's memory, and where its keys and values then lie."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

from triforce_chat.memory_plan.work import Work

SPARE = 0.05  # of the memory: what libraries take for themselves, and what fragmentation loses
CONTEXT_STEP = 1024  # tokens

Offload = Literal["never", "auto", "always"]
Verdict = Literal["fits", "offloaded", "does not fit"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that can be had; None where nobody knows, and then everything fits."""

    device: int | None  # of each GPU; where a CPU computes, the host's
    host: int | None
    is_host: bool = False  # a CPU computes: there is only one memory

    @staticmethod
    def usable(size: int | None) -> float:
        return float("inf") if size is None else (1 - SPARE) * size


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose, on each GPU and on the host, for a work with ``resident`` layers' KV on the device."""

    work: Work
    memory: Memory
    resident: int

    def with_context(self, context: int) -> MemoryPlan:
        """The same placement for another context, in tokens."""
        return dataclasses.replace(self, work=dataclasses.replace(self.work, context=context))

    @property
    def offloaded(self) -> bool:
        return self.resident < self.work.target.layers

    @property
    def kv(self) -> int:
        """On the device: of the layers that stay, of those that pass through, and the latest queries."""
        return (self.resident + self.passing) * self.work.layer_kv + self.work.latest_queries

    @property
    def passing(self) -> int:
        """Layers whose KV is on the device while it passes through: one is read, one arrives."""
        return min(self.work.layout.buffers, self.work.target.layers - self.resident)

    @property
    def host(self) -> int:
        """KV in pinned host memory, that of all GPUs together."""
        return (self.work.target.layers - self.resident) * self.work.layer_kv * self.work.gpus

    @property
    def parts(self) -> dict[str, int]:
        """What lies on each device."""
        work = self.work
        return {
            "weights": work.weights,
            "kv": self.kv,
            "retrieval": work.retrieval,
            "draft": work.draft_bytes,
            "activations": work.activations,
        }

    @property
    def device(self) -> int:
        return sum(self.parts.values())

    @property
    def fits_device(self) -> bool:
        return self.device <= Memory.usable(self.memory.device)

    @property
    def fits_host(self) -> bool:
        return self.host <= Memory.usable(self.memory.host)

    @property
    def fits(self) -> bool:
        return self.fits_device and self.fits_host

    @property
    def verdict(self) -> Verdict:
        if not self.fits:
            return "does not fit"
        return "offloaded" if self.offloaded else "fits"


def planned(work: Work, memory: Memory, offload: Offload = "auto") -> MemoryPlan:
    """Where the KV goes: on the device if it fits there, else to the host if that helps.

    Layers that the device has room for stay there; with ``always`` none does. A CPU has everything in host memory
    as it is.
    """
    whole = MemoryPlan(work, memory, work.target.layers)
    if memory.is_host or offload == "never" or (offload == "auto" and whole.fits):
        return whole
    if offload == "always":
        return MemoryPlan(work, memory, 0)
    moved = MemoryPlan(work, memory, resident_layers(work, memory))
    return moved if moved.fits else whole


def relaxed(plan: MemoryPlan) -> MemoryPlan:
    """The same run as it would be without a demand to have all KV in host memory, where the demand is in the way."""
    return plan if plan.fits else planned(plan.work, plan.memory)


def resident_layers(work: Work, memory: Memory) -> int:
    """How many layers can keep their KV on the device while that of the others streams through it."""
    choices = range(work.target.layers, -1, -1)
    return next((n for n in choices if MemoryPlan(work, memory, n).fits_device), 0)


def largest_context(work: Work, memory: Memory, offload: Offload, most: int) -> int:
    """The longest context of at most ``most`` tokens that fits, in whole steps; 0 if not even one token fits."""

    def too_long(context: int) -> bool:
        return not planned(dataclasses.replace(work, context=context), memory, offload).fits

    fitting = bisect_left(range(1, most + 1), True, key=too_long)
    return fitting if fitting in (most, fitting % CONTEXT_STEP) else fitting // CONTEXT_STEP * CONTEXT_STEP
