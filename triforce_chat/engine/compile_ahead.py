"""Compiles the kernels that an engine will launch, in processes of their own, while it is loaded and reads.

In the first process on a machine, forty variants of the kernels would be compiled one after another, each at its first
launch. Here a separate process finds them all by launching everything on meta tensors, then forks; its children
compile them into Triton's cache on disk. A marker file in that cache says that this was done.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

from triforce_chat.engine.cache.layout import Budget, Layout
from triforce_chat.engine.cache.storage import KVBuffer, QueryRing, Shape, WriteSlot
from triforce_chat.engine.cuda_graph import SIZES, USUAL, ForwardInputs
from triforce_chat.engine.kernels_available import kernels_run

if TYPE_CHECKING:
    from triforce_chat.engine.forward.fused import Decoder

META = torch.device("meta")
MOST_WORKERS = 8  # processes that compile
FED = 9  # most rows of a forward inside of a captured draft
LOOKUP_ORDERS = 8  # tokens of a match
NICE = 5  # of those processes: loading goes first


@dataclass(frozen=True, slots=True)
class Kernels:
    """What decides which kernels a model will launch; plain values, sent as JSON."""

    config: dict[str, Any]  # of the model
    dtype: str  # as torch calls it
    buffers: Sequence[int]  # capacities of its caches, in tokens; that of a target's full cache comes first
    retrieval: dict[str, int] | None = (
        None  # a target's budget of its retrieval cache, which is the last buffer
    )
    int8: bool = False  # forwards over the last buffer may have 8-bit weights


def start(models: Sequence[Kernels], device: torch.device) -> bool:
    """Begin to compile for these models on a GPU; False if that was done before or nothing is to be compiled."""
    if not kernels_run(device) or not hasattr(os, "fork"):
        return False
    from triton import __version__, knobs

    major, minor = torch.cuda.get_device_capability(device)
    job = json.dumps(
        {"capability": 10 * major + minor, "models": [asdict(each) for each in models]}, default=str
    )
    made_by = job, __version__, torch.__version__, sources()
    stamp = Path(knobs.cache.dir) / f"triforce-{hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]}"
    if stamp.exists():
        return False
    # In a thread, which waits for the process; that one goes on if this one ends early.
    Thread(target=run, args=(job, stamp), name="compile ahead", daemon=True).start()
    return True


def run(job: str, stamp: Path) -> None:
    """Run ``main`` in a process of its own."""
    subprocess.run(
        # -P: nothing is imported from the folder in which the user works.
        [sys.executable, "-P", "-m", "triforce_chat.engine.compile_ahead", str(stamp)],
        input=job.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the chat
        check=False,
    )


def sources() -> str:
    """A hash of the kernels' source files."""
    files = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


def main() -> None:
    """The process that ``start`` starts: its standard input describes the models."""
    from triforce_chat.engine.kernels import dry

    os.nice(NICE)
    job, stamp = json.load(sys.stdin), Path(sys.argv[1])
    try:
        with dry.without_gpu(job["capability"]):
            models = [Kernels(**each) for each in job["models"]]
            launches = [*dry.recorded(partial(launch_all, models)).values()]
            workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // 2))
            children = [forked(launches[first::workers]) for first in range(workers)]
        for child in children:
            os.waitpid(child, 0)
    finally:  # what cannot be compiled ahead is compiled at its first launch, and not tried here again
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()


def forked(launches: Sequence[Any]) -> int:
    """Compile in a child process; returns its number."""
    if child := os.fork():
        return child
    try:
        for each in launches:
            each.compile()
    except BaseException:
        os._exit(1)
    os._exit(0)


def launch_all(models: Sequence[Kernels]) -> None:
    """Launch whatever the models' forwards, builds and lookups launch; to be recorded."""
    for each in models:
        launch(each)


def launch(kernels: Kernels) -> None:
    """Launch everything for one model."""
    from triforce_chat.engine.forward.fused import Decoder
    from triforce_chat.engine.kernels import search

    model = meta_model(kernels)
    shape = Shape.of(model.config, getattr(torch, kernels.dtype), META)
    decoder = Decoder(model, shape)
    decoder(torch.zeros(USUAL, dtype=torch.long, device=META), torch.arange(USUAL, device=META), untouched)
    buffers = [KVBuffer(shape, capacity) for capacity in kernels.buffers]
    for buffer in buffers:
        forwards(decoder, shape, buffer)
    if kernels.int8:
        forwards(decoder.quantized(), shape, buffers[-1])
    if kernels.retrieval:
        builds(Budget(**kernels.retrieval), shape, buffers[0], buffers[-1])
        ids = torch.zeros(1, buffers[0].capacity, dtype=torch.long, device=META)
        search(ids[0], torch.zeros((), dtype=torch.long, device=META), LOOKUP_ORDERS)


def meta_model(kernels: Kernels) -> Any:
    """The model without memory; one layer stands for all."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {**kernels.config, "num_hidden_layers": 1, "layer_types": None}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with META:
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, kernels.dtype))


def untouched(layer: int, q: Any, *_: Any) -> Any:  # noqa: ARG001
    """Attention of a prefill, which is torch's."""
    return q


def forwards(decoder: Decoder, shape: Shape, buffer: KVBuffer) -> None:
    """Captured forwards of all sizes, and those inside of captured drafts."""
    from triforce_chat.engine.forward.graphs import ForwardGraphs

    forward = ForwardGraphs(decoder, META).forward(WriteSlot(buffer, 0, QueryRing(shape, USUAL)))
    # The captured sizes, and inside of captured drafts whatever feeds the tokens of the last one again.
    for rows in sorted({*range(1, FED + 1), *(size for size in SIZES if size <= USUAL)}):
        ids, at = (
            torch.zeros(rows, dtype=torch.long, device=META),
            torch.zeros(2, dtype=torch.long, device=META),
        )
        forward(ForwardInputs(ids, at[:1], at[1:], torch.arange(rows, device=META)))


def builds(budget: Budget, shape: Shape, full: KVBuffer, small: KVBuffer) -> None:
    """Builds of a retrieval cache, from odd and even numbers of chunks."""
    from triforce_chat.engine.cache.selection import MeanKey, select

    queries = QueryRing(shape, budget.queries).data
    for total in (2 * budget.tokens, 2 * budget.tokens + budget.chunk):
        if total > full.capacity:
            return
        layout = Layout.of(total, budget)
        chosen = select(MeanKey(), queries, layout.candidates(full.keys), layout.chunks)
        layout.gather(full.keys, chosen, small.keys)


if __name__ == "__main__":
    main()
