"""Loads target and draft and builds a running engine from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from triforce_chat.engine.cache.eviction import ENDLESS
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.forward import attention
from triforce_chat.engine.group import SINGLE, RankGroup
from triforce_chat.errors import ModelError, OutOfMemory
from triforce_chat.loading.attention_choice import choose_attention, require_gpu_for_attention
from triforce_chat.loading.device import (
    cap_memory,
    device_and_dtype,
    keeps_format,
    kv_dtype,
    require_kv,
    require_own_memory_if_endless,
)
from triforce_chat.loading.ineffective_settings import without_effect
from triforce_chat.loading.join_draft import runners
from triforce_chat.loading.planning import (
    draft_name,
    keeps_stored,
    kv_storage,
    memory_plan,
    no_memory,
    rounded_to,
    shortened_to_fit,
    streamed_weights,
)
from triforce_chat.loading.spec import EngineSpec, LoadHooks
from triforce_chat.memory_plan.plan import MemoryPlan
from triforce_chat.models.describe import Description, as_stored, describe_source
from triforce_chat.models.failures import is_out_of_memory
from triforce_chat.models.load import LoadedModel, Settle, check_draft, load_model
from triforce_chat.models.placement import placement
from triforce_chat.models.presets import short_name
from triforce_chat.models.progress import Note
from triforce_chat.models.registry import resolve
from triforce_chat.models.resize import resize_loaded
from triforce_chat.models.rounding import finish_rounding, round_layer
from triforce_chat.models.sharding import split
from triforce_chat.settings.engine_options import LARGEST_BUDGET, stack_for
from triforce_chat.settings.settings import Settings

HOOKS = LoadHooks()


def load_engine(
    spec: EngineSpec, hooks: LoadHooks = HOOKS, group: RankGroup = SINGLE
) -> tuple[Engine, LoadedModel]:
    """Load target and draft and build the engine.

    With several ranks all of them call this together: they share the target, and each holds the whole draft.
    Raises ModelError, UsageError, DoesNotFit (a context beyond the model's) or OutOfMemory.
    """
    settings = spec.settings
    device, dtype = device_and_dtype(settings)
    require_own_memory_if_endless(settings, device)
    require_gpu_for_attention(settings, device)
    if spec.device_memory:
        cap_memory(torch.device(device), spec.device_memory)
    model = describe_source(resolve(settings.model, report=hooks.progress))
    wanted = model.reach(settings.room)  # fails before anything else is downloaded
    place = placement(torch.device(device), dtype)
    if keeps_format(settings, device) and as_stored(model, place.device, dtype).stored:
        place.compile(hooks.note)  # before the plan, which depends on whether that works
    drafting = draft_name(settings, model)
    plan = memory_plan(spec, model, drafting, spec.capacity or wanted, group)
    quantized = plan.workload.stored is not None
    kv = kv_dtype(settings, place.device.type, place.dtype if quantized else dtype, quantized)
    require_kv(settings, kv)
    if spec.capacity is None:
        plan = shortened_to_fit(plan, settings, hooks.note)
    tell_before_reading(spec, hooks, model, place.device, wanted)
    plan = plan.with_context(group.all_reduce_min(plan.workload.context))
    load = partial(load_model, device=device, dtype=dtype, attention=attention.NAME)
    load = partial(load, report=hooks.progress, note=hooks.note)
    keep = keeps_stored(settings, device, plan)
    whole = spec.shape is not None  # resized before it is split
    streamed = streamed_weights(plan, settings, device, hooks.note)
    settle = streamed.take if streamed else None
    target = load(
        settings.model,
        context=wanted,
        ranks=1 if whole else group.size,
        keep_format=keep and not whole,
        before_weights=partial(hooks.before_weights, context_of(plan, settings)),
        settle=None if whole else settle,
    )
    load = partial(load, dtype=target.model.dtype, keep_format=keep)
    draft = load_draft(settings, drafting, target, load, hooks.note)
    if not group.all_reduce_min(draft is not None):
        draft = None  # some rank could not load it
    target = inflated(target, spec, group.size, settle, hooks.note)
    largest = LARGEST_BUDGET if settings.budget else group.all_reduce_min(plan.workload.caches.budget)
    target = dataclasses.replace(
        target,
        offloaded=plan.offloaded,
        largest_budget=largest,
        stored=plan.workload.stored if whole else target.stored,
        kv=kv,
        streamed=streamed,
    )
    target = dataclasses.replace(target, attention=choose_attention(settings, target.model, group))
    engine = build_engine(spec, hooks, group, plan, target, draft)
    return engine, dataclasses.replace(target, draft=short_name(draft.name) if draft else None)


def tell_before_reading(
    spec: EngineSpec, hooks: LoadHooks, model: Description, device: torch.device, wanted: int
) -> None:
    """Say which settings have no effect, and what makes answers doubtful."""
    for line in without_effect(spec.settings, model, device) if spec.shape is None else ():
        hooks.note(line)
    if warning := model.warning(wanted):
        hooks.warn(warning)


def build_engine(
    spec: EngineSpec,
    hooks: LoadHooks,
    group: RankGroup,
    plan: MemoryPlan,
    target: LoadedModel,
    draft: LoadedModel | None,
) -> Engine:
    """The engine over models that are in memory, with its KV where the plan puts it. Raises OutOfMemory."""
    eviction = spec.settings.eviction
    # Before the runner repacks the weights. What is left of an endless conversation is of no use to others.
    prefix_store = None if eviction else hooks.prefix_store(target)
    try:
        forward, drafting = runners(target, draft, group)
        return Engine(
            forward,
            context_of(plan, spec.settings),
            TextCodec(decoder(target.tokenizer), target.eos_ids),
            drafting,
            stack_for(spec.settings, target),
            prefix_store,
            kv_storage(plan, hooks.note),
            None if eviction else hooks.calibrations(target, draft, group.size),
            eviction=eviction,
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise no_memory(plan.workload.context) from error


def context_of(plan: MemoryPlan, settings: Settings) -> int:
    """Tokens that a prompt and its answer may have."""
    return ENDLESS if settings.eviction else plan.workload.context


def load_draft(
    settings: Settings,
    name: str | None,
    target: LoadedModel,
    load: Callable[..., LoadedModel],
    note: Note,
) -> LoadedModel | None:
    """The draft model of that name; None for lookup.

    Raises ModelError or OutOfMemory for a draft that the user named; another one is replaced by lookup.
    """
    if name is None:
        # With the stack "auto" lookup is as good a drafter as any that may be chosen: nothing to tell.
        if settings.draft == "auto" and settings.stack != "auto":
            note(
                f"no draft model for {target.name} on this machine: n-gram lookup drafts instead; --draft names one"
            )
        return None
    try:
        draft = load(name, tokenizer=target.tokenizer)
        check_draft(target, draft)
    except (ModelError, OutOfMemory) as error:
        if settings.draft != "auto":
            raise
        note(f"n-gram lookup drafts, because the draft model cannot be loaded: {error}")
        return None
    return draft


def inflated(
    loaded: LoadedModel, spec: EngineSpec, ranks: int, settle: Settle | None, note: Note
) -> LoadedModel:
    """This rank's part of a model in the dimensions that are wished; the model itself if none are."""
    if spec.shape is None:
        return loaded
    kind = rounded_to(spec)
    target = resize_loaded(loaded, spec.shape, partial(round_layer, kind) if kind else settle)
    if kind:
        finish_rounding(target.model, settle)
    note(f"{target.name}: as slow as a model of that size, but its answers are those of the original")
    return split_among(target, ranks)


def split_among(whole: LoadedModel, ranks: int) -> LoadedModel:
    """This rank's part of a model that is in memory as a whole."""
    return whole if ranks == 1 else dataclasses.replace(whole, model=split(whole.model, ranks))


def decoder(tokenizer: Any) -> Callable[[Any], str]:
    """A function from ids to their exact text, without special tokens."""

    def decode(ids: Any) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    return decode
