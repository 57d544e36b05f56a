"""From settings to a running engine; the place where models, engine and session meet."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from triforce_chat.bench.inflate import inflated
from triforce_chat.bench.shapes import BigShape
from triforce_chat.config import SAMPLED, Settings
from triforce_chat.engine import attention
from triforce_chat.engine.accord import ALONE, Accord
from triforce_chat.engine.cache.retrieval import Budget
from triforce_chat.engine.cache.slab import Shape
from triforce_chat.engine.engine import Engine
from triforce_chat.engine.memory import Memory
from triforce_chat.engine.options import Sampling
from triforce_chat.engine.runner import Runner
from triforce_chat.engine.stacks import StackOptions
from triforce_chat.errors import DoesNotFit, ModelError, OutOfMemory, UsageError
from triforce_chat.models.drafts import draft_for
from triforce_chat.models.failures import is_out_of_memory
from triforce_chat.models.load import LoadedModel, check_draft, load_model
from triforce_chat.models.memory import free_bytes
from triforce_chat.models.presets import short_name
from triforce_chat.models.progress import Report, unheard
from triforce_chat.models.sharding import split

GAMMA = 8  # of a fixed stack
MOST_GAMMA = 16  # what the planner may choose from
CACHE_SHARE = 0.8  # of the memory that is left; the rest is for activations and for other programs
CONTEXT_STEP = 1024  # tokens
SMALLEST_BUDGET, LARGEST_BUDGET = 512, 4096  # tokens


Note = Callable[[str], None]  # hears one line about a choice that was made for the user


def unsaid(line: str) -> None:
    """A note that nobody reads."""


Remember = Callable[[LoadedModel], Memory | None]  # its weights are still as they were loaded


def forget(loaded: LoadedModel) -> Memory | None:  # noqa: ARG001
    """No memory: every prompt is read anew."""
    return None


def load_engine(
    settings: Settings,
    report: Report = unheard,
    room: int | None = None,
    note: Note = unsaid,
    shape: BigShape | None = None,
    remember: Remember = forget,
    accord: Accord = ALONE,
) -> tuple[Engine, LoadedModel]:
    """Load target and draft and put the stack together.

    ``room`` allocates that many tokens whatever the model was made for: speed can be measured there.
    ``shape`` makes the target that big without changing what it says; the draft stays what it was for it.
    ``remember`` makes the memory that outlives the engine. With an ``accord`` the ranks call this together and share
    the target; each has the whole draft.
    Raises ModelError, UsageError, DoesNotFit (a context beyond the model's) or OutOfMemory.
    """
    device, dtype = place(settings)
    attention.register()
    load = partial(load_model, device=device, dtype=dtype, attention=attention.NAME, report=report)
    target = load(settings.model, ranks=1 if shape else accord.size)
    if settings.context:
        checked_context(settings, target)  # complains before a draft is fetched
    draft = load_draft(settings, target, load, note)
    if not accord.least(draft is not None):
        draft = None  # one rank cannot have it
    if shape:
        target = in_parts(inflated(target, shape), accord.size)
        note(f"{target.name}: as slow as that, and no better than before")
    memory = remember(target)  # before the runner packs the weights
    runner = Runner(target.model)
    drafter = Runner(draft.model, target.vocab_size) if draft else None
    context = accord.least(room or chosen_context(settings, target, held_here(runner.shape, accord), note))
    try:
        engine = Engine(
            runner,
            context,
            target.eos_ids,
            decoder(target.tokenizer),
            drafter,
            stack_of(settings, target.context),
            memory,
            accord,
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise no_memory(context) from error
    return engine, dataclasses.replace(target, draft=short_name(draft.name) if draft else None)


def in_parts(whole: LoadedModel, ranks: int) -> LoadedModel:
    """This rank's part of a model that was made whole."""
    return whole if ranks == 1 else dataclasses.replace(whole, model=split(whole.model, ranks))


def held_here(shape: Shape, accord: Accord) -> Shape:
    """What all ranks that take from this memory hold together."""
    return dataclasses.replace(shape, kv_heads=shape.kv_heads * accord.sharing)


def load_draft(
    settings: Settings, target: LoadedModel, load: Callable[..., LoadedModel], note: Note
) -> LoadedModel | None:
    """The draft model that the user named, or with "auto" the one that suits; None for lookup.

    Only a draft that was named may fail: ModelError.
    """
    if settings.draft == "none":
        return None
    name = draft_for(target) if settings.draft == "auto" else settings.draft
    if name is None:
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
    if settings.dtype != "auto":
        return device, getattr(torch, settings.dtype)
    return device, torch.float32 if kind == "cpu" else torch.bfloat16


def checked_context(settings: Settings, target: LoadedModel) -> int:
    """The context to allocate: what was asked for, within what the model was made for."""
    context = settings.context or target.context
    if context > target.context:
        raise DoesNotFit(
            f"{target.name} was made for {target.context:,} tokens; --context {context:,} is more"
        )
    return context


def chosen_context(settings: Settings, target: LoadedModel, shape: Shape, note: Note) -> int:
    """Tokens to allocate: what was asked for, else as much of the model's context as memory holds.

    Raises DoesNotFit and OutOfMemory for what was asked for.
    """
    wanted = checked_context(settings, target)
    free = free_bytes(shape.device)
    if free is None or wanted * shape.bytes_per_token <= free * (1 if settings.context else CACHE_SHARE):
        return wanted
    if settings.context:
        raise no_memory(wanted)
    fits = int(free * CACHE_SHARE) // shape.bytes_per_token // CONTEXT_STEP * CONTEXT_STEP
    context = min(wanted, max(fits, CONTEXT_STEP))
    note(f"context of {context:,} tokens, because memory does not hold the {wanted:,} of {target.name}")
    return context


def no_memory(context: int) -> OutOfMemory:
    return OutOfMemory(f"no memory for a cache of {context:,} tokens; choose a smaller --context")


def stack_of(settings: Settings, positions: int) -> StackOptions:
    """Settings as the engine's options; the budget grows with the context up to the paper's optimum.

    ``positions`` is what the model was made for, which counts unless a context was asked for.
    """
    # The planner decides by the clock, and another plan draws its random numbers in another order.
    name = "lookup" if settings.stack == "auto" and settings.seed is not None else settings.stack
    budget = settings.budget or max(
        SMALLEST_BUDGET, min(LARGEST_BUDGET, (settings.context or positions) // 8)
    )
    gamma = settings.gamma or (MOST_GAMMA if name == "auto" else GAMMA)
    return StackOptions(
        name=name,
        gamma=gamma,
        draft_gamma=settings.draft_gamma,
        policy=settings.policy,
        budget=Budget(tokens=budget, chunk=settings.chunk),
    )


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
