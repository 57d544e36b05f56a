"""From settings to a running engine; the place where models, engine and session meet."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.retrieval import Budget
from triforce_chat.engine.cache.storage import KVBuffer, KVStorage, Shape
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward import attention
from triforce_chat.engine.forward.runner import Runner
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.engine.prefix_store import PrefixStore
from triforce_chat.engine.sampling.options import Sampling
from triforce_chat.engine.speculation.stacks import StackOptions
from triforce_chat.errors import ModelError, OutOfMemory, UsageError
from triforce_chat.memory_plan.draw import Machine, agreed, draft_described, memory_of, work_of
from triforce_chat.memory_plan.plan import CONTEXT_STEP, MemoryPlan, Offload, largest_context, planned
from triforce_chat.memory_plan.words import moved_line, plan_line, shortage
from triforce_chat.models.describe import Description, described
from triforce_chat.models.drafts import draft_for
from triforce_chat.models.failures import is_out_of_memory
from triforce_chat.models.load import LoadedModel, check_draft, load_model
from triforce_chat.models.presets import short_name
from triforce_chat.models.progress import Report, unheard
from triforce_chat.models.registry import resolve
from triforce_chat.models.resize import inflated
from triforce_chat.models.shapes import BigShape
from triforce_chat.models.sharding import split
from triforce_chat.settings.settings import SAMPLED, Settings
from triforce_chat.settings.sizes import readable

SEEDED_GAMMA, SEEDED_DRAFT_GAMMA = 8, 4  # tokens drafted where nothing may depend on the clock
SMALLEST_BUDGET, LARGEST_BUDGET = 512, 4096  # tokens; the latter is the paper's optimum
# The same where keys and values stream: a verification is so dear that a middle level which is right more often
# may take longer. The first that drives no layer from the device.
STREAMED_BUDGETS = (16_384, 8192)


Note = Callable[[str], None]  # hears one line about a choice that was made for the user


def unsaid(line: str) -> None:
    """A note that nobody reads."""


Remember = Callable[[LoadedModel], PrefixStore | None]  # its weights are still as they were loaded


def forget(loaded: LoadedModel) -> PrefixStore | None:  # noqa: ARG001
    """No memory: every prompt is read anew."""
    return None


def load_engine(
    settings: Settings,
    report: Report = unheard,
    room: int | None = None,
    note: Note = unsaid,
    shape: BigShape | None = None,
    remember: Remember = forget,
    warn: Note = unsaid,
    group: RankGroup = SINGLE,
    device_memory: int | None = None,
) -> tuple[Engine, LoadedModel]:
    """Load target and draft and put the stack together.

    ``room`` allocates that many tokens whatever the model was made for: speed can be measured there.
    ``shape`` makes the target that big without changing what it says; the draft stays what it was for it.
    ``remember`` makes the memory that outlives the engine. ``warn`` hears what a user must know of the answers.
    With a ``group`` the ranks call this together and share the target; each has the whole draft.
    ``device_memory`` is all of its GPU, in bytes, that this process shall ever have.
    Raises ModelError, UsageError, DoesNotFit (a context beyond the model's) or OutOfMemory.
    """
    device, dtype = place(settings)
    if device_memory:
        cap(torch.device(device), device_memory)
    attention.register()
    model = described(resolve(settings.model, report=report))
    wanted = model.reach(settings.context)  # complains before anything else is fetched
    drafting = draft_name(settings, model)
    plan = memory_plan(settings, model, drafting, room or wanted, shape, group, device_memory)
    if room is None:
        plan = fitting(plan, settings, note)
    context = group.all_reduce_min(plan.work.context)
    if warning := model.warning(wanted):
        warn(warning)
    load = partial(load_model, device=device, dtype=dtype, attention=attention.NAME, report=report)
    target = load(settings.model, context=wanted, ranks=1 if shape else group.size)
    draft = load_draft(settings, drafting, target, load, note)
    if not group.all_reduce_min(draft is not None):
        draft = None  # one rank cannot have it
    if shape:
        target = in_parts(inflated(target, shape), group.size)
        note(f"{target.name}: as slow as that, and no better than before")
    memory = remember(target)  # before the runner packs the weights
    largest = LARGEST_BUDGET if settings.budget else group.all_reduce_min(plan.work.stack.budget)
    target = dataclasses.replace(target, offloaded=plan.offloaded, largest_budget=largest)
    try:
        runner = Runner(target.model, group=group)
        drafter = Runner(draft.model, target.vocab_size) if draft else None
        engine = Engine(
            runner,
            context,
            target.eos_ids,
            decoder(target.tokenizer),
            drafter,
            stack_for(settings, target),
            memory,
            store_of(plan, settings, note),
            group,
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise no_memory(context) from error
    return engine, dataclasses.replace(target, draft=short_name(draft.name) if draft else None)


def draft_name(settings: Settings, target: Description) -> str | None:
    """The draft model that the user named, or with "auto" the one that suits; None for lookup."""
    if settings.draft == "auto":
        return draft_for(target)
    return None if settings.draft == "none" else settings.draft


def in_parts(whole: LoadedModel, ranks: int) -> LoadedModel:
    """This rank's part of a model that was made whole."""
    return whole if ranks == 1 else dataclasses.replace(whole, model=split(whole.model, ranks))


def load_draft(
    settings: Settings,
    name: str | None,
    target: LoadedModel,
    load: Callable[..., LoadedModel],
    note: Note,
) -> LoadedModel | None:
    """The draft model of that name; None for lookup.

    Only a draft that was named may fail: ModelError.
    """
    if name is None:
        if settings.draft == "auto":
            note(f"no draft model for {target.name} here: lookup drafts; --draft names one")
        return None
    try:
        draft = load(name, tokenizer=target.tokenizer)
        check_draft(target, draft)
    except (ModelError, OutOfMemory) as error:
        if settings.draft != "auto":
            raise
        note(f"lookup drafts, because the draft model cannot be had: {error}")
        return None
    return draft


def place(settings: Settings) -> tuple[str, torch.dtype]:
    """Device and dtype; on a CPU fp32, because most have no fast 16-bit arithmetic."""
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.split(":")[0]
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise UsageError(f"no device '{device}'; choose auto, cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device on this machine; choose --device cpu")
    return device, dtype_on(kind, settings)


def dtype_on(kind: str, settings: Settings) -> torch.dtype:
    """What was asked for, else what suits a "cpu" or "cuda"."""
    if settings.dtype != "auto":
        chosen: torch.dtype = getattr(torch, settings.dtype)
        return chosen
    return torch.float32 if kind == "cpu" else torch.bfloat16


def memory_plan(
    settings: Settings,
    model: Description,
    draft: str | None,
    context: int,
    shape: BigShape | None = None,
    group: RankGroup = SINGLE,
    device_memory: int | None = None,
) -> MemoryPlan:
    """What so many tokens of context take beside everything else, and where the KV goes."""
    name, dtype = place(settings)
    device = torch.device(name)
    if shape:
        model = dataclasses.replace(model, fields={**model.fields, **shape.fields})
    memory = agreed(memory_of(device, group.sharing, device_memory), group)
    return plan_of(settings, model, draft_described(draft), context, (device, dtype, memory), group.size)


def plan_of(
    settings: Settings,
    model: Description,
    draft: Description | None,
    context: int,
    machine: Machine,
    gpus: int,
) -> MemoryPlan:
    """The plan for a machine that need not be this one, with the largest retrieval cache that pays."""
    device, dtype, memory = machine

    def with_budget(largest: int) -> MemoryPlan:
        stack = stack_of(settings, model.context, largest)
        work = work_of(model, draft, context, stack, device, dtype, gpus)
        return planned(work, memory, offload_of(settings))

    usual = with_budget(LARGEST_BUDGET)
    # What a seed gives must not depend on what memory happens to be free.
    richer = map(with_budget, STREAMED_BUDGETS if usual.offloaded and settings.seed is None else ())
    return next((plan for plan in richer if plan.fits and plan.resident == usual.resident), usual)


def require_gpu(settings: Settings) -> None:
    """Raise UsageError where ``cap`` has nothing to cap."""
    if place(settings)[0] == "cpu":
        raise UsageError("--device-memory caps what is used of a GPU; this runs on the CPU, so leave it out")


def cap(device: torch.device, size: int) -> None:
    """Let this process have so many bytes of its GPU at most. Raises UsageError where that is more than it has."""
    whole: int = torch.cuda.get_device_properties(device).total_memory
    if size > whole:
        raise UsageError(f"--device-memory {readable(size)}, but the GPU has {readable(whole)}")
    number = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.set_per_process_memory_fraction(size / whole, number)


def offload_of(settings: Settings) -> Offload:
    return "always" if settings.offload else "auto"


def fitting(plan: MemoryPlan, settings: Settings, note: Note) -> MemoryPlan:
    """The plan, or one with as much of its context as fits.

    Raises OutOfMemory where less than was asked for would.
    """
    wanted, offload = plan.work.context, offload_of(settings)
    if plan.fits:
        return plan
    most = largest_context(plan.work, plan.memory, offload, wanted)
    if settings.context:
        raise no_memory(wanted, shortage(plan, most))
    context = min(wanted, max(most, CONTEXT_STEP))
    note(plan_line(plan))
    note(f"context of {context:,} tokens, because memory does not hold the {wanted:,} of {settings.model}")
    return planned(dataclasses.replace(plan.work, context=context), plan.memory, offload)


def store_of(plan: MemoryPlan, settings: Settings, note: Note) -> Callable[[Shape, int], KVStorage]:
    """Makes the room for the KV where the plan puts it."""
    if settings.offload and plan.memory.is_host:
        note("--offload changes nothing without a GPU: keys and values are in main memory as it is")
    if not plan.offloaded:
        return KVBuffer

    def made(shape: Shape, capacity: int) -> OffloadedKV:
        store = OffloadedKV(shape, capacity, plan.resident)
        note(moved_line(plan))
        if store.pageable:
            note(f"{store.pageable} layers of it are not pinned, which the system declined: they are slower")
        return store

    return made


def no_memory(context: int, advice: str = "choose a smaller --context") -> OutOfMemory:
    return OutOfMemory(f"no memory for a cache of {context:,} tokens; {advice}")


def stack_of(settings: Settings, positions: int, largest: int = LARGEST_BUDGET) -> StackOptions:
    """Settings as the engine's options; the budget grows with the context up to ``largest``.

    ``positions`` is what the model was made for, which counts unless a context was asked for.
    """
    budget = settings.budget or max(SMALLEST_BUDGET, min(largest, (settings.context or positions) // 8))
    name, gamma, draft_gamma, middle = settings.stack, settings.gamma, settings.draft_gamma, settings.middle
    if settings.seed is not None:  # planners decide by the clock, and other plans draw other random numbers
        name = "lookup" if name == "auto" else name
        gamma, draft_gamma = gamma or SEEDED_GAMMA, draft_gamma or SEEDED_DRAFT_GAMMA
        middle = "full" if middle == "auto" else middle  # nor on what memory happens to be free
    return StackOptions(
        name=name,
        gamma=gamma,
        draft_gamma=draft_gamma,
        policy=settings.policy,
        middle=middle,
        budget=Budget(tokens=budget, chunk=settings.chunk),
    )


def stack_for(settings: Settings, loaded: LoadedModel) -> StackOptions:
    """The same for a model that is loaded, in the room that was planned for it."""
    return stack_of(settings, loaded.context, loaded.largest_budget)


def sampling_of(settings: Settings, loaded: LoadedModel) -> Sampling:
    """What the user set, else what the model's preset recommends, else the plain default."""

    def chosen(name: str) -> Any:
        value = getattr(settings, name)
        return loaded.sampling.get(name, getattr(Sampling(), name)) if value is None else value

    return Sampling(**{name: chosen(name) for name in SAMPLED})


def decoder(tokenizer: Any) -> Callable[[Any], str]:
    """Ids to text, nothing cleaned up, nothing skipped but special tokens."""

    def decode(ids: Any) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    return decode
