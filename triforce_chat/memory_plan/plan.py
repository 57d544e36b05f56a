"""Decides whether a run fits into a machine's memory, and where its keys and values go, and its weights."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from triforce_chat.memory_plan.workload import Workload

SPARE = 0.05  # share of the memory left to libraries and fragmentation
CONTEXT_STEP = 1024  # tokens
BESIDE_COPIES = 8 << 30  # bytes that 8-bit copies leave free on a GPU
DRAFT = 16  # tokens, of a usual draft where something streams
# How many times as many tokens a forward confirms if a middle level drafts for it, which only keys and values in host
# memory leave: 14 and 3 to 5 were measured.
MIDDLE_LEVEL = 3

Offload = Literal["never", "auto", "always"]
Verdict = Literal["fits", "offloaded", "does not fit"]
# Where KV is tried to go once weights are streamed.
WITH_WEIGHTS: Mapping[Offload, Sequence[Offload]] = {
    "never": ("never",),
    "auto": ("never", "always"),
    "always": ("always",),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Available bytes; None if unknown, in which case everything fits."""

    device: int | None  # of each GPU, or of the host if a CPU computes
    host: int | None
    is_host: bool = False  # a CPU computes: there is only one memory

    @staticmethod
    def usable(size: int | None) -> float:
        return float("inf") if size is None else (1 - SPARE) * size


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose on each GPU and on the host, with the KV of ``resident`` layers on the device."""

    workload: Workload
    memory: Memory
    resident: int

    def with_context(self, context: int) -> MemoryPlan:
        """This placement with a context of ``context`` tokens."""
        return dataclasses.replace(self, workload=dataclasses.replace(self.workload, context=context))

    @property
    def offloaded(self) -> bool:
        return self.resident < self.workload.target.layers

    @property
    def lists(self) -> bool:
        """Whether the retrieval cache lists slots of the full cache: all of that must be on the device."""
        return self.workload.caches.in_place and not self.offloaded

    @property
    def kv(self) -> int:
        """KV on the device: of resident and of streamed layers, a quantized copy, and the latest queries."""
        layers, workload = self.resident + self.streamed, self.workload
        return layers * workload.layer_kv + workload.copy + workload.latest_queries

    @property
    def streamed(self) -> int:
        """Layers of offloaded KV that are on the device at once: one is read while another is copied."""
        return min(self.workload.layout.buffers, self.workload.target.layers - self.resident)

    @property
    def host(self) -> int:
        """KV and weights in pinned host memory, of all GPUs together."""
        kv = (self.workload.target.layers - self.resident) * self.workload.layer_kv * self.workload.gpus
        return kv + self.workload.streamed_weights

    def copied(self, tokens: int = 1) -> int:
        """Bytes that cross the bus in a forward of so many tokens, on each GPU, after a context that is full.

        Streamed weights and the keys and values of all tokens before go to the device, and those of new ones home.
        """
        kv = self.workload.layer_kv + tokens * self.workload.token_kv
        return (self.workload.target.layers - self.resident) * kv + self.workload.streamed_weights

    @property
    def burden(self) -> float:
        """``copied`` for each token that a forward confirms without a middle level."""
        drafted = self.workload.caches.retrieval and not self.workload.streamed_layers
        return self.copied() / (MIDDLE_LEVEL if drafted else 1)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes on each device by purpose. The names are those of ``plan --json``."""
        workload = self.workload
        copies = workload.int8_copies if workload.middle == "int8" else 0
        return {
            "weights": workload.weights + copies,
            "kv": self.kv,
            "retrieval": workload.lists if self.lists else workload.retrieval,
            "draft": workload.draft_bytes,
            "activations": workload.activations,
        }

    @property
    def device(self) -> int:
        return sum(self.parts.values())

    @property
    def optional_copies(self) -> int:
        """Bytes of 8-bit copies of the weights that are made because the device has room, and not otherwise."""
        copies, free = self.workload.int8_copies, self.memory.device
        if self.workload.middle != "auto" or free is None:
            return 0
        return copies if free - self.device > copies + BESIDE_COPIES else 0

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
        return "offloaded" if self.offloaded or self.workload.streamed_layers else "fits"


def place_kv(workload: Workload, memory: Memory, offload: Offload = "auto") -> MemoryPlan:
    """Place the KV on the device if it fits there, else offload it to the host if that makes it fit.

    With "auto" as many layers as possible stay on the device; with "always" none does. If the workload's weights are
    streamable, they are streamed where that is a lesser burden for the bus, or makes it fit: beside KV on the device,
    if possible, because trees need it there. On a CPU there is only host memory, so nothing is offloaded; nor are
    quantized keys and values.
    """
    plan = _place_kv(workload, memory, offload)
    stays = plan.fits and (offload == "always" or not plan.offloaded)
    if stays or memory.is_host or not workload.streamable:
        return plan
    streamed = next((each for each in streaming(workload, memory, offload) if each.fits), plan)
    return min(plan, streamed, key=burden_of) if plan.fits else streamed


def burden_of(plan: MemoryPlan) -> float:
    return plan.burden


def streaming(workload: Workload, memory: Memory, offload: Offload) -> list[MemoryPlan]:
    """Plans with the weights of some layers in host memory, whether they fit or not."""
    return [_stream_weights(workload, memory, kv) for kv in WITH_WEIGHTS[offload]]


def other_way(plan: MemoryPlan) -> MemoryPlan | None:
    """The plan that streams keys and values where this one streams weights alone, or the reverse; None if none fits."""
    if not plan.workload.streamable or plan.verdict != "offloaded":
        return None
    workload = dataclasses.replace(plan.workload, gpu_layers=None)
    if plan.workload.streamed_layers:
        others = [] if plan.offloaded else [_place_kv(workload, plan.memory, "auto")]
    else:
        others = streaming(workload, plan.memory, "never")
    return next((each for each in others if each.fits), None)


def _stream_weights(workload: Workload, memory: Memory, offload: Offload) -> MemoryPlan:
    """The plan with the weights of as many layers as possible on the device."""

    def with_layers(n: int) -> MemoryPlan:
        return _place_kv(dataclasses.replace(workload, gpu_layers=n), memory, offload)

    # If no more layers leave the device than it has buffers for, that makes no room.
    layers = range(max(1, workload.target.layers - workload.layout.buffers))
    fitting = bisect_left(layers, True, key=lambda n: not with_layers(n).fits_device)
    return with_layers(max(0, fitting - 1))


def _place_kv(workload: Workload, memory: Memory, offload: Offload) -> MemoryPlan:
    """``place_kv`` with the weights where the workload has them."""
    whole = MemoryPlan(workload, memory, workload.target.layers)
    stays = memory.is_host or workload.quantized_kv is not None or offload == "never"
    if stays or (offload == "auto" and whole.fits):
        return whole
    if offload == "always":
        return MemoryPlan(workload, memory, 0)
    moved = MemoryPlan(workload, memory, resident_layers(workload, memory))
    return moved if moved.fits else whole


def with_resident_weights(plan: MemoryPlan, offload: Offload) -> MemoryPlan:
    """The plan with all weights on the device."""
    whole = dataclasses.replace(plan.workload, gpu_layers=None, streamable=False)
    return place_kv(whole, plan.memory, offload)


def resident_layers(workload: Workload, memory: Memory) -> int:
    """The most layers whose KV can stay on the device while the KV of the others is streamed."""
    choices = range(workload.target.layers, -1, -1)
    return next((n for n in choices if MemoryPlan(workload, memory, n).fits_device), 0)


def largest_context(workload: Workload, memory: Memory, offload: Offload, most: int) -> int:
    """The longest context up to ``most`` tokens that fits, in steps of ``CONTEXT_STEP`` if longer than one."""

    def too_long(context: int) -> bool:
        return not place_kv(dataclasses.replace(workload, context=context), memory, offload).fits

    fitting = bisect_left(range(1, most + 1), True, key=too_long)
    return fitting if fitting in (most, fitting % CONTEXT_STEP) else fitting // CONTEXT_STEP * CONTEXT_STEP
