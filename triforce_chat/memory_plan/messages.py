"""Memory plans as text for the user."""

from __future__ import annotations

from collections.abc import Iterator

from triforce_chat.memory_plan.plan import DRAFT, MIDDLE_LEVEL, SPARE, MemoryPlan, other_way
from triforce_chat.memory_plan.remedies import Remedies
from triforce_chat.settings.sizes import readable

LABELS = {
    "weights": "weights",
    "kv": "KV",
    "retrieval": "retrieval",
    "draft": "draft",
    "activations": "activations",
}
BUS = 55e9  # bytes per second from pinned host memory, as PCIe 5 carries them to an H100 or H200


def plan_line(plan: MemoryPlan) -> str:
    """The whole plan in one line."""
    parts = ", ".join(f"{LABELS[name]} {readable(size)}" for name, size in plan.parts.items() if size)
    free = plan.memory.device
    available = "" if free is None else f"; {readable(free)} free"
    return f"{plan.workload.context:,} tokens take {readable(plan.device)}: {parts}{available}"


def offload_line(plan: MemoryPlan) -> str:
    """The amount of KV in host memory, and its effect on speed."""
    layers = plan.workload.target.layers
    return (
        f"keys and values of {layers - plan.resident} of {layers} layers in host memory "
        f"({readable(plan.host)}): each step takes longer the more of the context is in use"
    )


def weights_line(plan: MemoryPlan) -> str:
    """The weights in host memory, and what they cost."""
    workload = plan.workload
    return (
        f"weights of {workload.streamed_layers} of {workload.target.layers} layers in host memory "
        f"({readable(workload.streamed_weights)}, {_which(plan)}): {_copied(workload.streamed_weights)}"
    )


def _which(plan: MemoryPlan) -> str:
    """Which layers have their weights in host memory, and how they are kept."""
    workload, last = plan.workload, plan.workload.target.layers
    first = last - workload.streamed_layers + 1
    layers = f"layers {first} to {last}" if first < last else f"layer {last}"
    return f"{layers} in {workload.weight_format}"


def _copied(size: int) -> str:
    return f"{1000 * size / BUS:,.0f} ms for copies in each forward, at {BUS / 1e9:.0f} GB/s"


def pass_ms(plan: MemoryPlan) -> float:
    """Milliseconds that the streamed weights take to cross the bus."""
    return 1000 * plan.workload.streamed_weights / BUS


def shortage(plan: MemoryPlan, fitting: int, option: str = "--context") -> str:
    """The needed and the free memory, and the longest context that fits; ``fitting`` is 0 if none does."""
    free = readable(plan.memory.device or 0)
    needed = f"{readable(plan.device)} in all, of {free} free"
    if fitting:
        return f"{needed}; {option} {fitting} is the most that fits"
    return (
        f"{needed}; no context fits beside {readable(plan.workload.weights)} of weights; use a smaller model"
    )


def heading(plan: MemoryPlan, name: str, dtype: str) -> str:
    """The table's heading: model, dtype, context and GPUs."""
    gpus = (
        f" on each of {plan.workload.gpus} GPUs" if plan.workload.gpus > 1 and not plan.memory.is_host else ""
    )
    return f"{name} in {dtype} with a context of {plan.workload.context:,} tokens{gpus}"


def rows(plan: MemoryPlan, draft: str | None) -> Iterator[tuple[str, str, str]]:
    """The table's rows: (purpose, size on each device, remark)."""
    workload = plan.workload
    remarks = {
        "weights": _weights_remark(plan),
        "kv": _kv_remark(plan),
        "retrieval": _retrieval_remark(plan),
        "draft": draft or "none: lookup drafts",
        "activations": f"of a prefill in chunks of {workload.prefill:,} tokens{_each_chunk(plan)}",
    }
    for name, size in plan.parts.items():
        yield LABELS[name], readable(size) if size else "-", remarks[name]
    yield "total", readable(plan.device), _of(plan.memory.device)
    if plan.host:
        yield "host, pinned", readable(plan.host), _of(plan.memory.host)
        yield "each forward", readable(plan.copied()), _copied_remark(plan)


def verdict(plan: MemoryPlan) -> str:
    """The verdict in one sentence."""
    where = _location(plan)
    if plan.verdict == "fits":
        return f"fits {where}"
    layers, streamed = plan.workload.target.layers, plan.workload.streamed_layers
    if plan.verdict == "offloaded":
        kv = f"the KV of {layers - plan.resident} of {layers} layers" if plan.offloaded else ""
        weights = f"the weights of {streamed} of {layers} layers" if streamed else ""
        return f"fits with {' and '.join(filter(None, (weights, kv)))} in host memory"
    if plan.fits_device:
        what = "weights" if streamed else "KV"
        return f"does not fit: the host has no room for {readable(plan.host)} of {what}"
    return f"does not fit {where}"


def advice(plan: MemoryPlan, relaxed: MemoryPlan, found: Remedies) -> str:
    """The flags that would make the plan fit; empty if there is nothing to do.

    ``found`` are the remedies of ``relaxed``, the plan without ``--offload``.
    """
    if relaxed.fits and not plan.fits:
        return "would fit without --offload"
    shortened = f" --context {found.dtype_context}" if found.dtype_context else ""
    flags_of = {
        f"--context {found.context}": found.context,
        f"--context {found.offloaded_context} and KV in host memory": found.offloaded_context,
        f"--dtype {found.dtype}{shortened}": found.dtype,
        f"--tp {found.tp}": found.tp,
    }
    flags = ", or with ".join(each for each, works in flags_of.items() if works)
    if not plan.fits:
        forced = "without --offload and " if plan.offloaded and not relaxed.offloaded else ""
        return (
            f"would fit {forced}with {flags}"
            if flags
            else "no single change makes it fit: use a smaller model"
        )
    return f"would fit without host memory with {flags}" if flags else ""


def _location(plan: MemoryPlan) -> str:
    if plan.memory.is_host:
        return "into memory"
    return "on the GPU" if plan.workload.gpus == 1 else f"on {plan.workload.gpus} GPUs"


def _retrieval_remark(plan: MemoryPlan) -> str:
    slots = f"{plan.workload.caches.retrieval:,} slots"
    if plan.lists:
        return f"lists of {slots}, and the tensors that choose them"
    selected = (
        f" for {plan.workload.caches.budget:,} selected of the tokens that stream" if plan.offloaded else ""
    )
    return f"{slots}{selected}, and the tensors that build it"


def _weights_remark(plan: MemoryPlan) -> str:
    workload = plan.workload
    if not workload.streamed_layers:
        return ""
    resident = workload.target.layers - workload.streamed_layers
    streamed = min(workload.layout.buffers, workload.streamed_layers)
    return (
        f"of {streamed} streamed and {resident} resident layers; {_which(plan)} stream: "
        f"{_copied(workload.streamed_weights)}"
    )


def _copied_remark(plan: MemoryPlan) -> str:
    """What a forward copies, and why it is this."""
    more = plan.copied(DRAFT) - plan.copied()
    added = f"{readable(more)} more" if more else "no more"
    return f"copied for a token behind a full context, and {added} for a draft of {DRAFT}{_choice(plan)}"


def _choice(plan: MemoryPlan) -> str:
    """Why weights stream rather than keys and values, or the reverse, where both would do."""
    other = other_way(plan)
    if other is None or other.burden < plan.burden:
        return ""  # no choice, or the user's
    streams = ("weights", "keys and values")
    chosen, instead = streams if plan.workload.streamed_layers else streams[::-1]
    reason = f"; {chosen} stream, as {instead} would be {readable(other.copied())}"
    if plan.copied() > other.copied():
        return f"{reason} but leave no middle level, which confirms about {MIDDLE_LEVEL} times the tokens"
    return reason


def _each_chunk(plan: MemoryPlan) -> str:
    return ", each of which streams the weights once" if plan.workload.streamed_layers else ""


def _kv_remark(plan: MemoryPlan) -> str:
    copied = f", and {readable(plan.workload.copy)} of a 4-bit copy" if plan.workload.copy else ""
    if not plan.offloaded:
        return f"of {plan.workload.context:,} tokens{copied}"
    return f"of {plan.streamed} streamed and {plan.resident} resident layers{copied}"


def _of(available: int | None) -> str:
    return "" if available is None else f"of {readable(available)}, {100 * SPARE:.0f} % of it kept free"
