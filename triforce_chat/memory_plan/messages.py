"""Memory plans as text for the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triforce_chat.memory_plan.plan import DRAFT, MIDDLE_LEVEL, SPARE, MemoryPlan, other_way
from triforce_chat.memory_plan.remedies import FILE, Outcome, Remedy
from triforce_chat.settings.settings import FLOAT8, QUANTIZED
from triforce_chat.settings.sizes import readable

LABELS = {
    "weights": "weights",
    "kv": "KV",
    "retrieval": "retrieval",
    "draft": "draft",
    "activations": "activations",
}
KEEPING_GPUS = "on GPUs of compute capability 8.0 or more (RTX 30, A100 and later)"
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
        f"({readable(plan.host)}): the fuller the context, the longer each step takes"
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
    return f"copying them takes {1000 * size / BUS:,.0f} ms per forward, at {BUS / 1e9:.0f} GB/s"


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
        f"{needed}; no context fits beside {readable(plan.workload.weights)} of weights; "
        "'triforce-chat plan' with the same options says what would help"
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
    yield "total", readable(plan.device), _of(plan.memory.device) + _more(plan)
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


def advice(outcome: Outcome, found: Sequence[Remedy], host: int | None = None) -> str:
    """What the remedies are for; empty if there is nothing to do. ``host``: bytes of host memory that are enough."""
    if not found:
        more = f", or a machine with {readable(host)} of free host memory" if host else ""
        return (
            ""
            if outcome.fits
            else f"no change of one or two settings makes it fit: use a smaller model{more}"
        )
    return "what would keep all of it on the GPU:" if outcome.fits else "what would make it fit:"


def remedy_line(remedy: Remedy) -> str:
    """What to change, what the run takes then, and how long a context may be."""
    gpus = f" on each of {remedy.gpus} GPUs" if remedy.gpus > 1 else ""
    host = f" and {readable(remedy.host)} in host memory" if remedy.host else ""
    context = "" if remedy.shortened else f", and up to {remedy.context:,} tokens fit"
    where = f"; {KEEPING_GPUS}" if FILE in remedy.changes else ""
    rounded = "; rounds keys and values" if remedy.changes.get("kv") in (FLOAT8, *QUANTIZED) else ""
    return f"  {remedy.flags}: {readable(remedy.device)}{gpus}{host}{context}{rounded}{where}"


def usual_context(context: int) -> str:
    """What a chat does about a default context that does not fit."""
    return f"a chat takes the longest context that fits, {context:,} tokens, unless --context names one"


def _location(plan: MemoryPlan) -> str:
    if plan.memory.is_host:
        return "into memory"
    return "on the GPU" if plan.workload.gpus == 1 else f"on {plan.workload.gpus} GPUs"


def _retrieval_remark(plan: MemoryPlan) -> str:
    slots = f"{plan.workload.caches.retrieval:,} slots"
    if plan.lists:
        return f"lists of {slots}, and the tensors that choose them"
    selected = f" for {plan.workload.caches.budget:,} selected tokens" if plan.offloaded else ""
    return f"{slots}{selected}, and the tensors that build it"


def _weights_remark(plan: MemoryPlan) -> str:
    workload = plan.workload
    if not workload.streamed_layers:
        copies = workload.int8_copies if workload.middle == "int8" else 0
        return f"{readable(copies)} of them 8-bit copies for the middle level" if copies else ""
    resident = workload.target.layers - workload.streamed_layers
    streamed = min(workload.layout.buffers, workload.streamed_layers)
    return f"{_layers(resident, streamed)}; {_which(plan)} stream: {_copied(workload.streamed_weights)}"


def _copied_remark(plan: MemoryPlan) -> str:
    """What a forward copies, and why it is this."""
    more = plan.copied(DRAFT) - plan.copied()
    draft = f"{readable(more)} more" if more else "as much"
    copied = (
        f"copied to the GPU for one token when the context is full; {draft} for a draft of {DRAFT} tokens"
    )
    return copied + _choice(plan)


def _choice(plan: MemoryPlan) -> str:
    """Why weights stream rather than keys and values, or the reverse, where both would do."""
    other = other_way(plan)
    if other is None or other.burden < plan.burden:
        return ""  # no choice, or the user's
    streams = ("weights", "keys and values")
    chosen, instead = streams if plan.workload.streamed_layers else streams[::-1]
    reason = f"; {chosen} stream, because streaming {instead} would copy {readable(other.copied())}"
    if plan.copied() > other.copied():
        more = f"with which a forward confirms about {MIDDLE_LEVEL} times as many tokens"
        return f"{reason} and rule out the middle level, {more}"
    return reason


def _each_chunk(plan: MemoryPlan) -> str:
    return ", each of which copies the streamed weights once" if plan.workload.streamed_layers else ""


def _kv_remark(plan: MemoryPlan) -> str:
    copied = f", and {readable(plan.workload.copy)} of a 4-bit copy" if plan.workload.copy else ""
    if not plan.offloaded:
        return f"of {plan.workload.context:,} tokens{copied}"
    return f"{_layers(plan.resident, plan.streamed)}{copied}"


def _layers(resident: int, streamed: int) -> str:
    """Of which layers something is on the GPU; ``streamed``: of those in host memory so many at once."""
    if not resident:
        return f"of {streamed} layers at a time; all are in host memory"
    return f"of {resident} layers, and of {streamed} at a time of the others, which are in host memory"


def _more(plan: MemoryPlan) -> str:
    copies = plan.optional_copies
    return f"; {readable(copies)} more for 8-bit copies of the weights, as there is room" if copies else ""


def _of(available: int | None) -> str:
    return "" if available is None else f"of {readable(available)}, {100 * SPARE:.0f} % of it kept free"
