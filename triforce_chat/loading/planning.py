"""The memory plan of a load: how long a context fits, and where its keys and values go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from triforce_chat.engine.cache.evicting import queries_of
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.quantized import storage_for
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVStorage
from triforce_chat.engine.forward.streamed_weights import StreamedWeights
from triforce_chat.engine.group import RankGroup
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import check_streamed, rereads
from triforce_chat.errors import OutOfMemory
from triforce_chat.loading.device import device_and_dtype, keeps_format, kv_dtype, may_keep_format
from triforce_chat.loading.spec import EngineSpec
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.inputs import (
    Machine,
    available_memory,
    describe_draft,
    smallest_memory,
    workload_of,
)
from triforce_chat.memory_plan.messages import offload_line, plan_line, shortage, weights_line
from triforce_chat.memory_plan.plan import (
    CONTEXT_STEP,
    Memory,
    MemoryPlan,
    Offload,
    largest_context,
    place_kv,
)
from triforce_chat.memory_plan.workload import Workload
from triforce_chat.models.describe import Description, as_stored
from triforce_chat.models.drafts import draft_for
from triforce_chat.models.progress import Note
from triforce_chat.settings.engine_options import LARGEST_BUDGET, stack_options
from triforce_chat.settings.settings import STORED, Settings

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType as Kind

# Budgets to try, the largest first, if KV streams from host memory. A verification is so expensive there that a
# slower middle level pays if more of its drafts are accepted.
STREAMED_BUDGETS = (16_384, 8192, LARGEST_BUDGET)


def memory_plan(
    spec: EngineSpec, model: Description, draft: str | None, context: int, group: RankGroup
) -> MemoryPlan:
    """Plan ``context`` tokens on this machine, the same on every rank.

    Raises UsageError if the ranks cannot share the target.
    """
    name, dtype = device_and_dtype(spec.settings)
    device = torch.device(name)
    memory = smallest_memory(available_memory(device, group.sharing, spec.device_memory), group)
    machine = device, dtype, memory
    return plan_for(
        spec.settings, resized(model, spec, dtype), describe_draft(draft), context, machine, group.size
    )


def resized(model: Description, spec: EngineSpec, dtype: torch.dtype) -> Description:
    """The description of a model in the dimensions that are wished, or of the model itself."""
    if spec.shape is None:
        return model
    fields = {**model.fields, **spec.shape.fields}
    stored = None
    if kind := rounded_to(spec):
        from triforce_chat.memory_plan.rounded import stored_of

        stored = stored_of(Dimensions.of(fields), dtype.itemsize, kind)
    return replace(model, fields=fields, source=None, preset=None, stored=stored)


def rounded_to(spec: EngineSpec) -> Kind | None:
    """The blocks that an inflated model's matrices are rounded to, if weights are to stay as they are stored."""
    if spec.shape is None or spec.settings.dtype != STORED:
        return None
    from triforce_chat.models.rounding import KINDS

    return KINDS[spec.shape.bits]


def draft_name(settings: Settings, target: Description) -> str | None:
    """The draft model that the user named, or with "auto" the one that suits; None for lookup."""
    if settings.draft == "auto":
        return draft_for(target)
    return None if settings.draft == "none" else settings.draft


def plan_for(
    settings: Settings,
    model: Description,
    draft: Description | None,
    context: int,
    machine: Machine,
    gpus: int,
) -> MemoryPlan:
    """Plan for a machine, which need not be this one, with the largest retrieval cache that pays.

    On a GPU quantized weights of a GGUF file stay as they are only where expanded ones leave no room for the cache, and
    expanded ones are in host memory only where neither fit, not even with a shorter context if none is asked for.
    Raises UsageError if so many GPUs cannot share the target.
    """
    device, dtype, _ = machine
    expanded = _plan(
        settings, replace(model, stored=None), draft and replace(draft, stored=None), context, machine, gpus
    )
    if not may_keep_format(settings, device.type):
        return expanded
    moved = expanded.workload.streamed_layers or (expanded.offloaded and not settings.offload)
    preferred = keeps_format(settings, device.type)
    if expanded.fits and not moved and not preferred:
        return expanded
    kept = as_stored(model, device, dtype), draft and as_stored(draft, device, dtype)
    plan = _plan(settings, *kept, context, machine, gpus)
    shorter = settings.room is None and expanded.workload.streamed_layers and not plan.workload.streamable
    return plan if plan.fits or preferred or shorter or not expanded.fits else expanded


def _plan(
    settings: Settings,
    model: Description,
    draft: Description | None,
    context: int,
    machine: Machine,
    gpus: int,
) -> MemoryPlan:
    device, dtype, memory = machine
    if model.stored and device.type == "cpu":
        dtype = torch.float32  # of everything else

    kv = kv_dtype(settings, device.type, dtype, model.stored is not None)

    def with_budget(largest: int, offloaded: bool) -> MemoryPlan:
        stack = stack_options(settings, model.context, largest, offloaded)
        workload = with_weighing(workload_of(model, draft, context, stack, device, dtype, gpus, kv), settings)
        if not memory.is_host:
            workload = with_weights(workload, memory, settings)
        return place_kv(workload, memory, offload_of(settings))

    usual = with_budget(LARGEST_BUDGET, False)
    # With a seed the answer must not depend on how much memory happens to be free.
    if not usual.offloaded or settings.seed is not None:
        return usual
    placed = usual.resident, usual.workload.streamed_layers
    larger = (with_budget(largest, True) for largest in STREAMED_BUDGETS)
    return next(
        (each for each in larger if each.fits and placed == (each.resident, each.workload.streamed_layers)),
        with_budget(usual.workload.caches.budget, True),
    )


def with_weighing(workload: Workload, settings: Settings) -> Workload:
    """The workload, with the queries by which an endless conversation's cache weighs its tokens."""
    rule = settings.eviction
    if rule is None or not rule.weighs:
        return workload
    layout = replace(workload.layout, queries=queries_of(rule))
    return replace(workload, layout=layout)


def with_weights(workload: Workload, memory: Memory, settings: Settings) -> Workload:
    """The workload, with the weights where the settings want them.

    Unless a context is asked for, they go to host memory only where they leave no room for any: with a shorter context
    everything is faster.
    """
    own = replace(workload, gpu_layers=settings.gpu_layers)
    short = replace(own, context=min(own.context, CONTEXT_STEP))
    needed = settings.room is not None or not place_kv(short, memory, offload_of(settings)).fits
    return replace(own, streamable=needed and may_stream(settings))


def may_stream(settings: Settings) -> bool:
    """Whether weights go to host memory if they do not fit.

    In one process, and with no level below the target that would have to wait for the same weights.
    """
    return settings.gpu_layers is None and settings.tp == 1 and not rereads(settings.stack)


def keeps_stored(settings: Settings, device: str, plan: MemoryPlan) -> bool:
    """Whether what is loaded for a plan keeps the format of its GGUF file."""
    by_plan = plan.workload.stored is not None or plan.workload.stored_draft is not None
    return keeps_format(settings, device) or by_plan


def offload_of(settings: Settings) -> Offload:
    """The planner's choice of where KV may go; tokens that an endless conversation moves are on the device."""
    stack = STACKS[settings.stack]
    # The target itself verifies trees over keys and values in one place only.
    under_target = settings.drafts_trees and stack.draft_caches and not stack.retrieval_caches
    if settings.offload and not settings.eviction:
        return "always"
    return "never" if settings.eviction or under_target else "auto"


def shortened_to_fit(plan: MemoryPlan, settings: Settings, note: Note) -> MemoryPlan:
    """The plan, or one whose context is the longest that fits.

    Raises OutOfMemory if the user asked for a context that does not fit.
    """
    wanted, offload = plan.workload.context, offload_of(settings)
    if plan.fits:
        return plan
    most = largest_context(plan.workload, plan.memory, offload, wanted)
    if settings.room:
        raise no_memory(wanted, shortage(plan, most, "--keep" if settings.eviction else "--context"))
    context = min(wanted, max(most, CONTEXT_STEP))
    note(plan_line(plan))
    note(
        f"context of {context:,} tokens, because there is not enough memory for the {wanted:,} of {settings.model}"
    )
    return place_kv(plan.with_context(context).workload, plan.memory, offload)


def kv_storage(plan: MemoryPlan, note: Note) -> Callable[[Shape, int], KVStorage]:
    """A function that allocates the full cache's keys and values where the plan places them."""
    if not plan.offloaded:
        return storage_for

    def offloaded(shape: Shape, capacity: int) -> OffloadedKV:
        storage = OffloadedKV(shape, capacity, plan.resident)
        note(offload_line(plan))
        if storage.pageable:
            note(f"{storage.pageable} of these layers are slower: the system declined to pin their memory")
        return storage

    return offloaded


def streamed_weights(plan: MemoryPlan, settings: Settings, device: str, note: Note) -> StreamedWeights | None:
    """The place of the target's layers, where the plan keeps the weights of some in host memory.

    Raises UsageError for a stack that makes no sense then.
    """
    if not plan.workload.streamed_layers:
        return None
    check_streamed(settings.stack)
    note(weights_line(plan))
    return StreamedWeights(torch.device(device), plan.workload.target.layers - plan.workload.streamed_layers)


def no_memory(context: int, advice: str = "choose a smaller --context") -> OutOfMemory:
    """The error for a cache that cannot be allocated."""
    return OutOfMemory(f"no memory for a cache of {context:,} tokens; {advice}")
