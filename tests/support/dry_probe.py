"""Prints, as JSON, the kernels that an engine launched and those that would have been compiled ahead of it.

``python dry_probe.py STACK``: in a process of its own, as tests make Triton interpret its kernels. Graphs are emulated,
and every launch is a dry one beside plain arithmetic. On a GPU, ``python dry_probe.py compile`` compiles ahead for
the answers of ``python dry_probe.py run``; both print nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from support import plain_kernels
from support.emulated_graphs import captured_pair, emulate
from support.labs import ARCHITECTURES, SMALL_BUDGET, random_model, spell
from support.tiny_models import write_quantized_gguf
from triforce_chat.engine import kernels
from triforce_chat.engine.cache.eviction import SINKS, WINDOW
from triforce_chat.engine.cache.offload import OffloadedKV
from triforce_chat.engine.cache.quantization import FP8, INT4, INT8, format_name
from triforce_chat.engine.cache.quantized import storage_for
from triforce_chat.engine.cache.query_ring import QueryRing
from triforce_chat.engine.cache.shape import Shape
from triforce_chat.engine.cache.storage import KVBuffer, WriteSlot
from triforce_chat.engine.cache.streaming import HOP, LONG_HOP
from triforce_chat.engine.compile_ahead import (
    META,
    DryRank,
    Kernels,
    begun,
    compile_all,
    forwards,
    launch,
    launch_on,
    untouched,
)
from triforce_chat.engine.cuda_graph import USUAL
from triforce_chat.engine.detokenizer import TextCodec
from triforce_chat.engine.engine import SLACK, Engine, Request
from triforce_chat.engine.exactness import tokens_of
from triforce_chat.engine.forward.fused import Decoder
from triforce_chat.engine.forward.grouped_matrix import MOST_ROWS
from triforce_chat.engine.forward.quantized import QuantizedLayer
from triforce_chat.engine.forward.small_decoder import small_decoder
from triforce_chat.engine.kernels import TreeRows, chip, dry
from triforce_chat.engine.prefix_store import DocumentSpan
from triforce_chat.engine.sampling.executor import GraphExecutor
from triforce_chat.engine.speculation.stack_specs import STACKS
from triforce_chat.engine.speculation.stacks import (
    MOST_DRAFT_GAMMA,
    StackOptions,
    largest_forward,
    retrieval_budget,
)
from triforce_chat.engine.speculation.tree_plan import TreeOptions
from triforce_chat.engine.together import answer_together
from triforce_chat.loading.compiling import formats_of
from triforce_chat.memory_plan.dimensions import Dimensions
from triforce_chat.models import load
from triforce_chat.models.placement import OnGpu

HOPPER = 90, chip.HOPPER
CONTEXT, SEQUENCES = 256, 3
LAUNCHED = (
    "rms_norm",
    "silu_mul",
    "rotate_and_store",
    "decode_attention",
    "decode_grouped",
    "decode_quantized",
    "quantize_full",
    "attend_together",
    "quantized_linear",
    "draw_token",
)


KEPT = (INT8, INT4, FP8)
PLAIN = StackOptions("triforce", budget=SMALL_BUDGET)
# Of stacks that are compiled for and run on a GPU.
CHANGES: list[dict[str, Any]] = [
    *(
        {"middle": middle, "policy": policy}
        for middle in ("full", "int8")
        for policy in ("mean", "attention")
    ),
    *({"middle": middle, "tree": TreeOptions("sequoia", 16, 4)} for middle in ("full", "int8")),
]


def needed(*models: Kernels) -> dict[Any, dry.Launch]:
    return {key: found for each in models for key, found in dry.recorded(partial(launch, each)).items()}


def kernels_of(
    config: dict[str, Any],
    options: StackOptions,
    sequences: int = 1,
    own: int = 0,
    kv: torch.dtype | None = None,
) -> list[Kernels]:
    """Of a target and a draft with the same configuration."""
    sizes, trees = Dimensions.of(config), options.tree.most if options.tree else 0
    lists = options.policy == "attention"
    capacities = [CONTEXT + SLACK, *([] if lists else [retrieval_budget(options).capacity])]
    copied = STACKS[options.name].quantized_copies > 0
    more: dict[str, Any] = {
        "rows": largest_forward(options),
        "sequences": sequences,
        "own": own,
        "quantized_copy": copied,
        "trees": trees,
        "kv": kv,
    }
    target = Kernels(sizes, torch.float32, capacities, SMALL_BUDGET, lists, True, **more)
    window = [options.window]
    drawn = sizes.vocabulary
    return [target, Kernels(sizes, torch.float32, window, sequences=sequences, trees=trees, drawn=drawn)]


def of_transformers(name: str, **changes: Any) -> tuple[set[Any], set[Any]]:
    """What a model of transformers launches without memory, and what is compiled ahead for it, also in 8 bits."""
    config = random_model(name, head_dim=16, **changes).config
    with META:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shape = Shape.of(config, torch.bfloat16, META)
    buffer = KVBuffer(shape, 128)

    def work() -> None:
        decoder = Decoder(model, shape)
        forwards(decoder, WriteSlot(buffer, 0, QueryRing(shape, USUAL)))
        forwards(decoder.quantized(), WriteSlot(buffer, 0, QueryRing(shape, USUAL)))

    kernels = Kernels(Dimensions.of(config.to_dict()), torch.bfloat16, [128], int8=True)
    return {*dry.recorded(work)}, {*needed(kernels)}


def of_a_file(**kinds: Kind) -> tuple[set[Any], set[Any]]:
    """What a model launches whose weights keep the format of their GGUF file, and what is compiled ahead for it."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "placement", OnGpu)
        file = write_quantized_gguf(Path(folder) / "m.gguf", **kinds)
        loaded = load.load_model(str(file), attention="sdpa", dtype=torch.bfloat16, keep_format=True)
    model = loaded.model.to(META)
    for layer in model.modules():
        if isinstance(layer, QuantizedLayer):
            weight = layer.matrix.weight  # type: ignore[attr-defined]
            moved = weight._replace(data=weight.data.to(META), scale=weight.scale.to(META))
            layer.matrix.weight = moved  # type: ignore[attr-defined]
    shape = Shape.of(model.config, torch.bfloat16, META)
    buffer = KVBuffer(shape, 128)

    def work() -> None:
        decoder = Decoder(model, shape)
        forwards(decoder, WriteSlot(buffer, 0, QueryRing(shape, USUAL)))
        for rows in (USUAL, 2 * MOST_ROWS):
            ids = torch.zeros(rows, dtype=torch.long, device=META)
            decoder(ids, torch.arange(rows, device=META), untouched)

    sizes = Dimensions.of(model.config.to_dict())
    kernels = Kernels(sizes, torch.bfloat16, [128], layers=formats_of(loaded.stored))
    return {*dry.recorded(work)}, {*needed(kernels)}


def answered(
    stack: str,
    patch: pytest.MonkeyPatch,
    sequences: int = 1,
    own: int = 0,
    kv: torch.dtype | None = None,
    storage: Any = storage_for,
    **more: Any,
) -> tuple[set[Any], set[Any]]:
    """What an engine launches in an answer, or in several at once, and what is compiled ahead for it."""
    originals = {name: getattr(kernels, name) for name in LAUNCHED}
    emulate(patch)
    target, draft = captured_pair("cpu", patch, kv)
    launched: set[Any] = set()
    for name, original in originals.items():
        plain = getattr(plain_kernels, name)

        def both(*given: Any, plain: Any = plain, original: Any = original, **named: Any) -> Any:
            launched.update(dry.recorded(lambda: original(*given, **named)))
            return plain(*given, **named)

        patch.setattr(kernels, name, both)
    options = StackOptions(stack, budget=SMALL_BUDGET, middle="int8", **more)
    engine = Engine(target, CONTEXT, TextCodec(spell), draft, options, storage=storage)
    engine.executor = GraphExecutor()
    prompt = torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    if sequences == 1:
        engine.prepare(Request(prompt, 60))
        tokens_of(engine, Request(prompt, 60))
    else:
        spans = (DocumentSpan(len(prompt)),)
        requests = [Request([*prompt, *range(1, 4 + 7 * i)], 40, spans=spans) for i in range(sequences)]
        for _ in answer_together(engine, requests, lambda one, request: one.answer(request), sequences):
            pass
    for name, original in originals.items():
        patch.setattr(kernels, name, original)
    return launched, {*needed(*kernels_of(target.model.config.to_dict(), options, sequences, own, kv))}


def of_a_small_draft(window: int) -> tuple[set[Any], set[Any]]:
    """What the forwards of a small draft model of three blocks launch, and what is compiled ahead for it.

    ``window``: slots of its cache.
    """
    config = random_model(head_dim=32, num_hidden_layers=3).config
    with META:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shape = Shape.of(config, torch.bfloat16, META)
    small = small_decoder(Decoder(model, shape), KVBuffer(shape, window))
    assert small

    def work() -> None:
        # At first as many tokens as the last draft had, and one more; then one by one.
        for rows, step in ((1, 7), *((n + 1, 0) for n in range(1, MOST_DRAFT_GAMMA + 1))):
            ids = torch.zeros(rows + 1, dtype=torch.long, device=META)[1:]
            small(ids, torch.zeros(2, dtype=torch.long, device=META), step)
        ids, n = torch.zeros(19, dtype=torch.long, device=META), 15
        logits = small(
            ids[:8], torch.zeros(2, dtype=torch.long, device=META), 7, None, TreeRows(ids[9:17, None], 3, 2)
        )
        one = torch.empty_like(ids[:1])
        links, lines = one.expand(1, 2, n + 1), one.expand(1, n + 1, 4)
        numbers, since = torch.empty(1, n, dtype=torch.float64, device=META), logits[:1].short()
        how, probs = (
            kernels.Drawing(0.6, numbers, 1.2, since),
            torch.empty(1, n, logits.shape[1], device=META),
        )
        given = how, links.clone(), lines.clone(), ids[None, 1:9], 2, ids[None, :n].clone(), probs
        kernels.draw_children(logits[None], *given)

    sizes = Dimensions.of(config.to_dict())
    ahead = Kernels(sizes, torch.bfloat16, [window], trees=True, drawn=sizes.vocabulary)
    return {*dry.recorded(work)}, {*needed(ahead)}


def of_builds(kv: torch.dtype | None) -> tuple[set[Any], set[Any]]:
    """What builds of a retrieval cache from any number of tokens launch to score chunks, and what is compiled ahead."""
    config = random_model(head_dim=16).config
    shape = Shape.of(config, torch.float32, META, kv=kv)
    queries = torch.empty(shape.query_heads, SMALL_BUDGET.queries, shape.head_dim, device=META)

    def work() -> None:
        for tokens in range(SMALL_BUDGET.tokens, 3 * SMALL_BUDGET.tokens, SMALL_BUDGET.chunk):
            view = storage_for(shape, CONTEXT).view(0, tokens)
            kernels.chunk_scores(queries, view.whole[0][0], SMALL_BUDGET.chunk)

    return {*dry.recorded(work)}, {*needed(*kernels_of(config.to_dict(), PLAIN, kv=kv))}


def run() -> None:
    """Answer on a GPU, plainly and by all levels."""
    with pytest.MonkeyPatch.context() as patch:
        target, draft = captured_pair("cuda", patch)
        for changes in CHANGES:
            options = StackOptions("triforce", budget=SMALL_BUDGET, **changes)
            engine = Engine(target, CONTEXT, TextCodec(spell), draft, options)
            prompt = torch.randint(1, 48, (90,), generator=torch.Generator().manual_seed(3)).tolist()
            tokens_of(engine, Request(prompt, 120))
            tokens_of(engine, Request(prompt, 60), True)
        for kv in KEPT:
            target, draft = captured_pair("cuda", patch, kv)
            engine = Engine(target, CONTEXT, TextCodec(spell), draft, PLAIN)
            tokens_of(engine, Request(prompt, 120))


def compile_for_run() -> None:
    """Compile for this machine's GPU what ``run`` will launch."""
    config = random_model(head_dim=16).config.to_dict()
    options = [StackOptions("triforce", budget=SMALL_BUDGET, **changes) for changes in CHANGES]
    kernels = [each for one in options for each in kernels_of(config, one)]
    kernels += [each for kv in KEPT for each in kernels_of(config, PLAIN, kv=kv)]
    compile_all(kernels, torch.cuda.get_device_capability(), chip.shared_memory())


class Slow(NamedTuple):
    """A launch whose kernel takes some seconds to compile, if that works; it notes the process that does so."""

    number: int
    seconds: float
    file: Path
    works: bool = True

    def compile(self) -> None:
        if not self.works:
            raise RuntimeError("this kernel cannot be compiled")
        time.sleep(self.seconds)
        with self.file.open("a") as file:
            file.write(f"{self.number} {os.getpid()}\n")


def in_turns() -> list[list[int]]:
    """Launches, the first of which is slow, in the order in which two processes compiled them, and these."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "compiled"
        launches: list[Any] = [Slow(number, 0.0 if number else 2.0, file) for number in range(9)]
        for child in begun(launches, 2):
            os.waitpid(child, 0)
        return [[*map(int, line.split())] for line in file.read_text().splitlines()]


def despite_failures() -> list[int]:
    """Of launches, as many of which as there are processes cannot be compiled, those that were."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "compiled"
        launches: list[Any] = [Slow(number, 0.0, file, number > 1) for number in range(6)]
        for child in begun(launches, 2):
            os.waitpid(child, 0)
        return sorted(int(line.split()[0]) for line in file.read_text().splitlines())


def main() -> None:
    found: dict[str, Any] = {"turns": in_turns(), "others": despite_failures()}
    with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
        launched, ahead = answered(sys.argv[1], patch)
        found["launched"], found["ahead"] = ([key[0] for key in keys] for keys in (launched, ahead))
        found["missed"] = [str(key) for key in launched - ahead]
    with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
        launched, ahead = answered(sys.argv[1], patch, policy="attention")
        found["lists"] = [key[0] for key in launched], [str(key) for key in launched - ahead]
    with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
        launched, ahead = answered("naive", patch, SEQUENCES, CONTEXT + SLACK - 90)
        found["together"] = [key[0] for key in launched], [str(key) for key in launched - ahead]
    with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
        launched, ahead = answered("triforce", patch, tree=TreeOptions("sequoia", 16, 4))
        found["trees"] = [key[0] for key in ahead], [str(key) for key in launched - ahead]
    with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
        tree = TreeOptions("sequoia", 16, 4)
        launched, ahead = answered("naive", patch, SEQUENCES, CONTEXT + SLACK - 90, tree=tree)
        found["trees together"] = [key[0] for key in launched], [str(key) for key in launched - ahead]
    for stack in ("triforce", "auto"):
        with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
            launched, ahead = answered(stack, patch, storage=OffloadedKV, streams=True)
            names, missed = [key[0] for key in launched], [str(key) for key in launched - ahead]
            found[f"{stack} over keys in host memory"] = names, missed
    with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
        launched, ahead = answered("auto", patch)
        found["auto"] = [key[0] for key in launched], [str(key) for key in launched - ahead]
    for kv in KEPT:
        with dry.without_gpu(*HOPPER), pytest.MonkeyPatch.context() as patch:
            launched, ahead = answered("triforce", patch, kv=kv)
            found[format_name(kv)] = [key[0] for key in launched], [str(key) for key in launched - ahead]
    with dry.without_gpu(*HOPPER):
        for kv in (None, *KEPT):
            launched, ahead = of_builds(kv)
            name = format_name(kv) if kv else "as the model"
            found[f"builds {name}"] = [key[0] for key in launched], [str(key) for key in launched - ahead]
        for name in ARCHITECTURES:
            launched, ahead = of_transformers(name)
            found[name] = [str(key) for key in launched - ahead], [key[0] for key in ahead]
        launched, ahead = of_transformers("llama", attention_bias=True, mlp_bias=True)
        found["biased"] = [str(key) for key in launched - ahead], [key[0] for key in ahead]
        for name, kinds in (("file", {}), ("mixed file", {"attn_v": Kind.Q6_K, "ffn_up": Kind.F16})):
            launched, ahead = of_a_file(**kinds)
            found[name] = [str(key) for key in launched - ahead], [key[0] for key in ahead]
        for name, hop in (("small draft", HOP), ("small draft of long proposals", LONG_HOP)):
            launched, ahead = of_a_small_draft(SINKS + WINDOW + hop)
            found[name] = [key[0] for key in launched], [str(key) for key in launched - ahead]
        sizes = Dimensions.of(random_model(head_dim=16).config.to_dict())
        shared = Kernels(sizes, torch.bfloat16, [128], int8=True, ranks=2)
        first = dry.recorded(partial(launch_on, shared, DryRank(0, 2)))
        found["shared"] = [key[0] for key in needed(shared).keys() - first.keys()]
    print(json.dumps(found))


if __name__ == "__main__":
    {"run": run, "compile": compile_for_run}.get(sys.argv[1], main)()
