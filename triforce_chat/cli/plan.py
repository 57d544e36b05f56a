"""``triforce-chat plan``: the memory that a model takes at a context length, before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.output import print_line, print_record, screen_of, show_notes, show_warning
from triforce_chat.errors import OutOfMemory, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO
from triforce_chat.settings.sizes import Group, parsed_batch, parsed_size, readable

if TYPE_CHECKING:
    from rich.console import Console

    from triforce_chat.loading.choose_model import Choice
    from triforce_chat.memory_plan.batch import BatchPlan
    from triforce_chat.memory_plan.inputs import Machine
    from triforce_chat.memory_plan.plan import MemoryPlan
    from triforce_chat.models.describe import Description
    from triforce_chat.settings.settings import Settings

DeviceMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Plan for a GPU with this much memory: 24GB, 24GiB, 80G.")
]
HostMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Host memory to plan with (default: what is free now).")
]

Batch = Annotated[
    str | None,
    typer.Option(metavar="NxTOKENS,...", help="Sequences at once, as in 2x57344,6x19456: how many fit."),
]
Shared = Annotated[
    int | None, typer.Option(min=1, help="Questions at once about one document: how many fit.")
]
Parallel = Annotated[
    int | None,
    typer.Option(
        min=1, help="Answers of serve at once, about documents that fill the context: room of each."
    ),
]
QUESTION_ROOM = 64  # tokens of a question of --shared and --parallel


def plan(
    options: Options,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    batch: Batch = None,
    shared: Shared = None,
    parallel: Parallel = None,
) -> None:
    """Show how much memory a model takes and whether it fits (if not: exit code 6); nothing is loaded."""
    from triforce_chat.models.describe import describe
    from triforce_chat.models.draft_head import check_answers

    groups = parsed_batch(batch) if batch else []
    settings, screen = options.settings, screen_of(options)
    if groups and settings.context is None:
        settings = dataclasses.replace(settings, context=max(group.context for group in groups))
    there, automatic = machine(settings, device_memory, host_memory), settings.model == AUTO
    if automatic:
        choice = choice_for(settings, there, device_memory)
        settings = dataclasses.replace(settings, model=choice.model)
        show_notes([choice.summary], screen)
    target = describe(settings.model)
    if target.source:
        check_answers(settings.model, target.source.folder)
    made, draft = make_plan(settings, target, there)
    stored = made.workload.stored
    at_once = batch_plans(made, groups, shared, parallel, settings, target.context)
    dtype = "float32" if stored and there[0].type == "cpu" else str(there[1]).removeprefix("torch.")
    kv = kept_in(settings, there, made)
    if warning := target.warning(made.workload.context):
        show_warning(options, screen, warning)
    if options.json:
        mark = {"automatic": True} if automatic else {}
        batches = {"batches": list(map(batch_record, at_once))} if at_once else {}
        print_record({**record_of(made, target, draft, dtype, kv), **mark, **batches})
    else:
        formats = [stored.format if stored else dtype, *([f"keys and values in {kv}"] if kv else [])]
        show(made, target, draft, ", ".join(formats), screen.out)
        for each in at_once:
            print_line(screen.out, batch_line(each))
    if not (made.fits and all(each.at_once for each in at_once)):
        raise typer.Exit(OutOfMemory.exit_code)


def batch_plans(
    made: MemoryPlan,
    groups: Sequence[Group],
    shared: int | None,
    parallel: int | None,
    settings: Settings,
    made_for: int,
) -> list[BatchPlan]:
    """What fits of each group, and of questions and a server's answers about documents that fill the context."""
    from triforce_chat.memory_plan.batch import plan_batch
    from triforce_chat.memory_plan.inputs import caches_of_several
    from triforce_chat.settings.engine_options import stack_options

    stack = stack_options(settings, made_for, made.workload.caches.budget)
    fit = partial(plan_batch, made, caches=caches_of_several(stack))
    context = made.workload.context
    documents = max(0, context - settings.max_tokens - QUESTION_ROOM)
    plans = [fit(*group) for group in groups]
    plans += [fit(shared, context, documents)] if shared else []
    return plans + ([fit(parallel, context, documents, served=True)] if parallel else [])


def batch_line(plan: BatchPlan) -> str:
    """One line: what fits at once, and how many wait."""
    about = f"{plan.sequences:,} x {plan.context:,} tokens"
    if plan.shared:
        about += f", {plan.shared:,} of them kept once"
    waits = f", {plan.waiting:,} wait" if plan.waiting else ""
    each = f"each takes {readable(plan.each)} ({parts_line(plan.own_parts)})"
    common = f"{readable(plan.common)} for all ({parts_line(plan.common_parts)})"
    room = f"; in a server each has room for {plan.room:,} tokens after the documents" if plan.served else ""
    return f"{about}: {plan.at_once:,} at once{waits}; {each} beside {common}{room}"


def parts_line(parts: Mapping[str, int]) -> str:
    """Bytes by purpose, without what takes none."""
    from triforce_chat.memory_plan.messages import LABELS

    return ", ".join(f"{LABELS[name]} {readable(size)}" for name, size in parts.items() if size)


def batch_record(plan: BatchPlan) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "sequences": plan.sequences,
        "context": plan.context,
        "shared": plan.shared,
        "at_once": plan.at_once,
        "waiting": plan.waiting,
        "bytes": {"each": plan.each, "common": plan.common},
        "parts": {"each": dict(plan.own_parts), "common": dict(plan.common_parts)},
        **({"room": plan.room} if plan.served else {}),
    }


def machine(settings: Settings, device_memory: str | None, host_memory: str | None) -> Machine:
    """The machine to plan for: this one, or one with a GPU of that size: (device, dtype, memory). Raises UsageError."""
    import torch

    from triforce_chat.loading.device import device_and_dtype, dtype_on
    from triforce_chat.memory_plan.inputs import available_memory

    if device_memory and settings.device == "cpu":
        raise UsageError("--device-memory is the memory of a GPU; with --device cpu use --host-memory")
    device = torch.device("cuda" if device_memory else device_and_dtype(settings)[0])
    own, host = (parsed_size(text) if text else None for text in (device_memory, host_memory))
    return device, dtype_on(device.type, settings), available_memory(device, settings.tp, own, host)


def kept_in(settings: Settings, machine: Machine, made: MemoryPlan) -> str:
    """The dtype of keys and values if they are kept in another one than they are computed in; else empty.

    Raises UsageError if the settings name one that is not offered there.
    """
    import torch

    from triforce_chat.engine.cache.quantization import format_name
    from triforce_chat.loading.device import kv_dtype, require_kv

    (device, dtype, _), quantized = machine, made.workload.stored is not None
    kv = kv_dtype(
        settings, device.type, torch.float32 if quantized and device.type == "cpu" else dtype, quantized
    )
    require_kv(settings, kv)
    return format_name(kv) if made.workload.converts else ""


def choice_for(settings: Settings, machine: Machine, device_memory: str | None) -> Choice:
    """The model that auto would choose for the machine. Raises DoesNotFit and UsageError."""
    from triforce_chat.loading.choose_model import Computer, choose, gpu_memory

    own = parsed_size(device_memory) if device_memory else gpu_memory(machine[0])
    return choose(settings, Computer(machine, own))


def make_plan(
    settings: Settings,
    target: Description,
    machine: Machine,
) -> tuple[MemoryPlan, str | None]:
    """(plan, name of the draft). Raises DoesNotFit, ModelError and UsageError."""
    from triforce_chat.loading.planning import draft_name, plan_for
    from triforce_chat.models.describe import describe
    from triforce_chat.models.presets import short_name

    name, context = draft_name(settings, target), target.reach(settings.context)
    draft = describe(name) if name else None
    return plan_for(settings, target, draft, context, machine, settings.tp), name and short_name(name)


def record_of(
    made: MemoryPlan, target: Description, draft: str | None, dtype: str, kv: str = ""
) -> dict[str, Any]:
    """The plan as plain values."""
    from triforce_chat.memory_plan.plan import without_forced_offload
    from triforce_chat.memory_plan.remedies import find_remedies

    workload = made.workload
    return {
        "model": target.name,
        **({"weights": workload.stored.format} if workload.stored else {}),
        "draft": draft,
        "context": workload.context,
        "made_for": target.context,
        "dtype": dtype,
        **({"kv": kv} if kv else {}),
        "gpus": workload.gpus,
        "verdict": made.verdict,
        "fits": made.fits,
        "bytes": {**made.parts, "device": made.device, "host": made.host},
        "available": {"device": made.memory.device, "host": made.memory.host},
        "layers": workload.target.layers,
        "resident_layers": made.resident,
        **streamed_of(made),
        **copied_of(made),
        "would_fit": dataclasses.asdict(find_remedies(without_forced_offload(made))),
        "warning": target.warning(workload.context),
    }


def streamed_of(made: MemoryPlan) -> dict[str, Any]:
    """How many layers have their weights on the device, and what it takes to copy those of others, if there are any."""
    from triforce_chat.memory_plan.messages import pass_ms

    workload = made.workload
    if not workload.streamed_layers:
        return {}
    return {
        "gpu_layers": workload.target.layers - workload.streamed_layers,
        "pass_ms": round(pass_ms(made), 1),
    }


def copied_of(made: MemoryPlan) -> dict[str, Any]:
    """Bytes that cross the bus in a forward, if some do, and what they would be if the other of two streamed."""
    from triforce_chat.memory_plan.plan import DRAFT, other_way

    if not made.host:
        return {}
    other = other_way(made)
    return {
        "copied": {
            "token": made.copied(),
            "draft": made.copied(DRAFT),
            "otherwise": other and other.copied(),
        }
    }


def show(made: MemoryPlan, target: Description, draft: str | None, dtype: str, console: Console) -> None:
    """Print a table, the verdict, and what would make the model fit."""
    from rich.table import Table
    from rich.text import Text

    from triforce_chat.memory_plan import messages
    from triforce_chat.memory_plan.plan import without_forced_offload
    from triforce_chat.memory_plan.remedies import find_remedies
    from triforce_chat.ui.clean import one_line

    print_line = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    print_line(one_line(messages.heading(made, target.name, dtype)))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for what, size, remark in messages.rows(made, draft):
        table.add_row(what, size, Text(one_line(remark), "dim"))
    console.print(table)
    print_line(messages.verdict(made), style="green" if made.fits else "bold red")
    if advice := messages.advice(
        made, without_forced_offload(made), find_remedies(without_forced_offload(made))
    ):
        print_line(advice)
