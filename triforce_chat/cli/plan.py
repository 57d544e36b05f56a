"""``triforce-chat plan``: the memory that a model takes at a context length, before anything is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triforce_chat.cli.output import print_line, print_record, screen_of, show_notes, show_warning
from triforce_chat.errors import OutOfMemory, UsageError
from triforce_chat.settings.options import Options
from triforce_chat.settings.settings import AUTO
from triforce_chat.settings.sizes import parsed_batch, parsed_size, readable

if TYPE_CHECKING:
    from rich.console import Console

    from triforce_chat.loading.choose_model import Choice
    from triforce_chat.loading.plan_request import PlanRequest
    from triforce_chat.memory_plan.batch import BatchPlan
    from triforce_chat.memory_plan.inputs import Machine
    from triforce_chat.memory_plan.plan import MemoryPlan
    from triforce_chat.memory_plan.remedies import Outcome
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
        min=1, help="Answers of serve at once, about documents that fill the context: the room that each has."
    ),
]


def plan(
    options: Options,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    batch: Batch = None,
    shared: Shared = None,
    parallel: Parallel = None,
) -> None:
    """Show how much memory a model takes and whether it fits (if not: exit code 6); nothing is loaded."""
    from triforce_chat.loading.plan_request import PlanRequest, with_context_of
    from triforce_chat.loading.planning import draft_name
    from triforce_chat.models.describe import describe

    groups = tuple(parsed_batch(batch)) if batch else ()
    settings, screen = options.settings, screen_of(options)
    device, _, memory = there = machine(settings, device_memory, host_memory)
    automatic = settings.model == AUTO
    if automatic:
        choice = choice_for(with_context_of(settings, groups), there, device_memory)
        settings = dataclasses.replace(settings, model=choice.model)
        show_notes([choice.summary], screen)
    target = checked(describe(settings.model), settings.model)
    name = draft_name(settings, target)
    draft = describe(name) if name else None
    request = PlanRequest(settings, target, draft, device, memory, groups, shared, parallel)
    outcome = request.planned()
    if warning := target.warning(request.context):
        show_warning(options, screen, warning)
    if options.json:
        mark = {"automatic": True} if automatic else {}
        print_record({**record_of(request, outcome), **mark})
    else:
        show(request, outcome, screen.out)
    if not outcome.fits:
        raise typer.Exit(OutOfMemory.exit_code)


def checked(target: Description, name: str) -> Description:
    """The description. Raises ModelError for a model that only drafts."""
    from triforce_chat.models.draft_head import check_answers

    if target.source:
        check_answers(name, target.source.folder)
    return target


def notes_of(request: PlanRequest, made: MemoryPlan) -> Iterator[str]:
    """What a load with these settings would say about them, and where else it would be another one."""
    from triforce_chat.loading.ineffective_settings import expanded_file, kept_where, without_effect

    settings, target, (device, dtype, _) = request.settings, request.target, request.machine
    yield from without_effect(settings, target, device)
    yield from filter(None, [expanded_file(settings, target, device, dtype), kept_where(made, device)])


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


def choice_for(settings: Settings, machine: Machine, device_memory: str | None) -> Choice:
    """The model that auto would choose for the machine. Raises DoesNotFit and UsageError."""
    from triforce_chat.loading.choose_model import Computer, choose, gpu_memory

    own = parsed_size(device_memory) if device_memory else gpu_memory(machine[0])
    return choose(settings, Computer(machine, own))


def record_of(request: PlanRequest, outcome: Outcome) -> dict[str, Any]:
    """The plan as plain values."""
    from triforce_chat.memory_plan.remedies import find_remedies, would_fit
    from triforce_chat.models.presets import short_name

    made, target, draft = outcome.plan, request.target, request.draft
    workload, kv = made.workload, request.kv_format(made)
    return {
        "model": target.name,
        **({"weights": workload.stored.format} if workload.stored else {}),
        "draft": draft and short_name(draft.name),
        "context": workload.context,
        "made_for": target.context,
        "dtype": dtype_name(request, made),
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
        "would_fit": would_fit(find_remedies(request, outcome)),
        "warning": target.warning(workload.context),
        **({"batches": list(map(batch_record, outcome.batches))} if outcome.batches else {}),
    }


def dtype_name(request: PlanRequest, made: MemoryPlan) -> str:
    """The dtype of everything that is not quantized."""
    on_cpu = made.workload.stored and request.device.type == "cpu"
    return "float32" if on_cpu else str(request.machine[1]).removeprefix("torch.")


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


def show(request: PlanRequest, outcome: Outcome, console: Console) -> None:
    """Print a table, the verdict, and what would make the model fit."""
    from triforce_chat.memory_plan import messages
    from triforce_chat.memory_plan.remedies import find_remedies
    from triforce_chat.models.presets import short_name
    from triforce_chat.ui.clean import one_line

    made, draft, kv = outcome.plan, request.draft, request.kv_format(outcome.plan)
    weights = made.workload.stored.format if made.workload.stored else dtype_name(request, made)
    formats = ", ".join([weights, *([f"keys and values in {kv}"] if kv else [])])
    print_whole = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    print_whole(one_line(messages.heading(made, request.target.name, formats)))
    print_table(messages.rows(made, short_name(draft.name) if draft else None), console)
    for note in notes_of(request, made):
        print_whole(one_line(note))
    print_whole(messages.verdict(made), style="green" if made.fits else "bold red")
    for each in outcome.batches:
        print_line(console, batch_line(each))
    if shorter := request.chat_context(made):
        print_whole(messages.usual_context(shorter))
    found = find_remedies(request, outcome)
    host = None if found or outcome.fits else request.enough_host()
    if advice := messages.advice(outcome, found, host):
        print_whole(advice)
    for remedy in found:
        print_whole(messages.remedy_line(remedy))


def print_table(rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    """Print rows of (what, size, remark)."""
    from rich.table import Table
    from rich.text import Text

    from triforce_chat.ui.clean import one_line

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for what, size, remark in rows:
        table.add_row(what, size, Text(one_line(remark), "dim"))
    console.print(table)
