"""A plan in words."""

from __future__ import annotations

from collections.abc import Iterator

from triforce_chat.memory_plan.plan import SPARE, MemoryPlan
from triforce_chat.memory_plan.remedies import Remedies
from triforce_chat.settings.sizes import readable

NAMES = {
    "weights": "weights",
    "kv": "KV",
    "retrieval": "retrieval",
    "draft": "draft",
    "activations": "activations",
}


def plan_line(plan: MemoryPlan) -> str:
    """The whole plan in one line."""
    parts = ", ".join(f"{NAMES[name]} {readable(size)}" for name, size in plan.parts.items() if size)
    free = plan.memory.device
    there = "" if free is None else f"; {readable(free)} free"
    return f"{plan.work.context:,} tokens take {readable(plan.device)}: {parts}{there}"


def moved_line(plan: MemoryPlan) -> str:
    """Where the KV went, and what it costs."""
    layers = plan.work.target.layers
    return (
        f"keys and values of {layers - plan.resident} of {layers} layers in host memory "
        f"({readable(plan.host)}): each step takes longer the more of the context is in use"
    )


def shortage(plan: MemoryPlan, fitting: int) -> str:
    """What is lacking, and the largest context that fits."""
    free = readable(plan.memory.device or 0)
    needed = f"{readable(plan.device)} in all, of {free} free"
    if fitting:
        return f"{needed}; --context {fitting} is the most that fits"
    return f"{needed}; no context fits beside {readable(plan.work.weights)} of weights, take a smaller model"


def heading(plan: MemoryPlan, name: str, dtype: str) -> str:
    """What is planned."""
    gpus = f" on each of {plan.work.gpus} GPUs" if plan.work.gpus > 1 and not plan.memory.is_host else ""
    return f"{name} in {dtype} with a context of {plan.work.context:,} tokens{gpus}"


def rows(plan: MemoryPlan, draft: str | None) -> Iterator[tuple[str, str, str]]:
    """Of a table: what, how much of it on each device, and what there is to say of it."""
    work = plan.work
    remarks = {
        "weights": "",
        "kv": _kv_remark(plan),
        "retrieval": f"room for {work.stack.retrieval:,} tokens, and its making",
        "draft": draft or "none: lookup drafts",
        "activations": f"of a prefill in chunks of {work.prefill:,} tokens",
    }
    for name, size in plan.parts.items():
        yield NAMES[name], readable(size) if size else "-", remarks[name]
    yield "together", readable(plan.device), _of(plan.memory.device)
    if plan.host:
        yield "host, pinned", readable(plan.host), _of(plan.memory.host)


def verdict(plan: MemoryPlan) -> str:
    """One sentence."""
    where = _place(plan)
    if plan.verdict == "fits":
        return f"fits {where}"
    if plan.verdict == "offloaded":
        layers = plan.work.target.layers
        return f"fits with the KV of {layers - plan.resident} of {layers} layers in host memory"
    if plan.fits_device:
        return f"does not fit: the host has no room for {readable(plan.host)} of KV"
    return f"does not fit {where}"


def advice(plan: MemoryPlan, relaxed: MemoryPlan, found: Remedies) -> str:
    """The flags that would make it fit, as they are typed; empty where nothing is to be done.

    ``relaxed`` is the plan without ``--offload``, for which the remedies were found.
    """
    if relaxed.fits and not plan.fits:
        return "would fit without --offload"
    shortened = f" --context {found.dtype_context}" if found.dtype_context else ""
    typed = {
        f"--context {found.context}": found.context,
        f"--context {found.offloaded_context} and KV in host memory": found.offloaded_context,
        f"--dtype {found.dtype}{shortened}": found.dtype,
        f"--tp {found.tp}": found.tp,
    }
    flags = ", or with ".join(each for each, works in typed.items() if works)
    if not plan.fits:
        forced = "without --offload and " if plan.offloaded and not relaxed.offloaded else ""
        return (
            f"would fit {forced}with {flags}"
            if flags
            else "no single change makes it fit: take a smaller model"
        )
    return f"would fit without host memory with {flags}" if flags else ""


def _place(plan: MemoryPlan) -> str:
    if plan.memory.is_host:
        return "into memory"
    return "on the GPU" if plan.work.gpus == 1 else f"on {plan.work.gpus} GPUs"


def _kv_remark(plan: MemoryPlan) -> str:
    if not plan.offloaded:
        return f"of {plan.work.context:,} tokens"
    return f"of {plan.passing} layers that pass through, and {plan.resident} that stay"


def _of(there: int | None) -> str:
    return "" if there is None else f"of {readable(there)}, {100 * SPARE:.0f} % of it kept free"
