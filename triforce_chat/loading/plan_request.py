"""What ``plan`` is asked: a model with settings on a machine, alone or several times at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from triforce_chat.engine.cache.quantization import format_name
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import check_streamed
from triforce_chat.errors import UsageError
from triforce_chat.loading.device import dtype_on, kv_dtype, require_kv, require_own_memory_if_endless
from triforce_chat.loading.planning import offload_of, plan_for
from triforce_chat.memory_plan.batch import BatchPlan, plan_batch
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.memory_plan.inputs import Machine, of_several
from triforce_chat.memory_plan.plan import CONTEXT_STEP, SPARE, Memory, MemoryPlan, largest_context
from triforce_chat.memory_plan.remedies import FILE, GPUS, Changes, Outcome
from triforce_chat.memory_plan.rounded import file_in_4_bits
from triforce_chat.models.describe import Description
from triforce_chat.settings.engine_options import LARGEST_BUDGET, SMALLEST_BUDGET, stack_options
from triforce_chat.settings.settings import Settings
from triforce_chat.settings.sizes import Group

QUESTION_ROOM = 64  # tokens of a question of ``shared`` and ``parallel``
MAX_GPUS = 8
# To what settings can be changed so that less is taken or more is possible, the mildest first.
VALUES: Mapping[str, Sequence[Any]] = {
    "offload": (False,),
    "gpu_layers": (None,),
    "dtype": ("auto", "bfloat16"),
    "tree": ("chain",),
    "stack": ("auto", "lookup"),
    "draft": ("none",),
    "kv": ("auto", "float16", "int8", "fp8", "int4"),
    "budget": (None, LARGEST_BUDGET // 2, LARGEST_BUDGET // 4, SMALLEST_BUDGET),
}


def with_context_of(settings: Settings, groups: Sequence[Group]) -> Settings:
    """The settings, with the context of the longest sequence if they have none of their own."""
    if not groups or settings.context is not None:
        return settings
    return replace(settings, context=max(group.context for group in groups))


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model with its settings and the sequences that are to run at once, on a machine that need not be this one."""

    settings: Settings
    target: Description
    draft: Description | None
    device: torch.device
    memory: Memory
    groups: tuple[Group, ...] = ()
    shared: int | None = None  # questions about one document
    parallel: int | None = None  # answers of a server

    @property
    def machine(self) -> Machine:
        return self.device, dtype_on(self.device.type, self.settings), self.memory

    @property
    def full_settings(self) -> Settings:
        return with_context_of(self.settings, self.groups)

    @property
    def context(self) -> int:
        """Tokens that the model is planned with. Raises DoesNotFit for more than it can have."""
        return self.target.reach(self.full_settings.room)

    @property
    def wanted(self) -> int:
        return max(self.context, *(group.context for group in self.groups), 0)

    @property
    def reach(self) -> int:
        return self.wanted if self.groups else self.target.context

    def planned(self) -> Outcome:
        """The plan of the model, and what fits at once. Raises UsageError and DoesNotFit as a load would."""
        settings = self.full_settings
        if settings.eviction and (self.groups or self.shared or self.parallel):
            raise UsageError(f"--endless {settings.endless} is for one conversation at a time")
        require_own_memory_if_endless(settings, self.device.type)
        made = plan_for(settings, self.target, self.draft, self.context, self.machine, settings.tp)
        require_kv(settings, self._kv(made))
        if made.workload.streamed_layers:
            check_streamed(settings.stack)
        return Outcome(made, tuple(self._batches(made)))

    def _kv(self, made: MemoryPlan) -> torch.dtype:
        (device, dtype, _), quantized = self.machine, made.workload.stored is not None
        dtype = torch.float32 if quantized and device.type == "cpu" else dtype
        return kv_dtype(self.settings, device.type, dtype, quantized)

    def kv_format(self, made: MemoryPlan) -> str:
        """The dtype of keys and values if they are kept in another one than they are computed in; else empty."""
        return format_name(self._kv(made)) if made.workload.converts else ""

    def chat_context(self, made: MemoryPlan) -> int | None:
        """The context that a chat takes where the model's own does not fit and no other is asked for; else None."""
        settings = self.full_settings
        if made.fits or settings.room is not None:
            return None
        shorter = largest_context(made.workload, self.memory, offload_of(settings), self.context)
        return shorter if shorter >= CONTEXT_STEP else None

    def enough_host(self) -> int | None:
        """Bytes of free host memory with which the run would fit; None if none would be enough."""
        if self.memory.is_host:
            return None
        plan = replace(self, memory=replace(self.memory, host=None)).planned()
        return int(plan.host / (1 - SPARE)) + 1 if plan.fits else None

    def _batches(self, made: MemoryPlan) -> Iterator[BatchPlan]:
        """What fits of each group, and of questions and a server's answers about documents that fill the context."""
        settings = self.full_settings
        stack = stack_options(settings, self.target.context, made.workload.caches.budget)
        documents = max(0, self.context - settings.max_tokens - QUESTION_ROOM)

        def fit(sequences: int, context: int, shared: int = 0, served: bool = False) -> BatchPlan:
            several = of_several(made.workload, stack, sequences, apart=not shared)
            return plan_batch(made, several, sequences, context, shared, served)

        for group in self.groups:
            yield fit(*group)
        if self.shared:
            yield fit(self.shared, self.context, documents)
        if self.parallel:
            yield fit(self.parallel, self.context, documents, served=True)

    def offers(self) -> Mapping[str, Sequence[Any]]:
        found = {
            name: [each for each in values if self._is_new(name, each)] for name, values in VALUES.items()
        }
        return {**found, FILE: [True] if self._may_be_quantized() else [], GPUS: list(self._more_gpus())}

    def _is_new(self, name: str, value: Any) -> bool:
        current, stack = getattr(self.settings, name), STACKS[self.settings.stack]
        if name == "draft":
            return self.draft is not None and not stack.needs_draft
        if name == "budget" and value and current:
            return bool(value < current)
        return bool(value != current)

    def _may_be_quantized(self) -> bool:
        """Whether a file with its weights in 4 bits would be another model to this program."""
        source, preset = self.target.source, self.target.preset
        from_file = source is not None and source.gguf_file is not None
        packed = preset is not None and preset.packed is not None
        return self.device.type != "cpu" and self.target.stored is None and not (from_file or packed)

    def _more_gpus(self) -> Iterator[int]:
        """Numbers of GPUs that can share the model; of CPUs there is one memory."""
        if not self.memory.is_host:
            own = Dimensions.of(self.target.fields)
            yield from filter(own.divides_among, range(self.settings.tp + 1, MAX_GPUS + 1))

    def changed(self, changes: Changes) -> PlanRequest:
        """The request with other settings. Raises UsageError."""
        target = self.target
        if FILE in changes:
            target = replace(target, stored=file_in_4_bits(Dimensions.of(target.fields)))
        settings = replace(self.settings, **{name: value for name, value in changes.items() if name != FILE})
        return replace(
            self, settings=settings, target=target, draft=self.draft if settings.draft != "none" else None
        )

    def with_context(self, context: int) -> PlanRequest:
        groups = tuple(Group(each.sequences, min(each.context, context)) for each in self.groups)
        settings = self.settings
        if settings.eviction:
            settings = replace(settings, keep=context)
        elif not groups:
            settings = replace(settings, context=context)
        elif settings.context is not None:
            settings = replace(settings, context=min(context, settings.context))
        return replace(self, settings=settings, groups=groups)

    def option(self, context: int) -> str:
        changed = self.with_context(context)
        options = []
        if changed.settings.eviction:
            options.append(f"--keep {context}")
        elif changed.settings != self.settings or not self.groups:
            options.append(f"--context {context}")
        if changed.groups != self.groups:
            sizes = ",".join(f"{each.sequences}x{each.context}" for each in changed.groups)
            options.append(f"--batch {sizes}")
        return " ".join(options)
